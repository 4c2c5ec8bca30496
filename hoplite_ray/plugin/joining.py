"""Ray's table of tensor transports: ours join it when Ray fills it, at its first use in a process.

Not before, for Ray imports torch to fill it; and not after, for a class may name its transport
before ray.init. `import hoplite_ray` must not import ray: where Ray is not there yet, its import
is waited for.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

_TABLE = "ray.experimental.rdt.util"


def install() -> None:
    """Have ours join, as soon as the table is there."""
    table = sys.modules.get(_TABLE)
    if table is None:
        sys.meta_path.insert(0, _Import())
    else:
        _wait_for_first_use(table)


class _Import(MetaPathFinder):
    """Sees the table's module being imported, which the finders behind it do."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != _TABLE:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loaded(spec.loader)
        return spec


class _Loaded(Loader):
    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        _wait_for_first_use(module)


def _wait_for_first_use(table: Any) -> None:
    fill = table._ensure_default_transports_registered

    def filled() -> None:
        fill()
        from hoplite_ray.plugin import direct

        direct.join()

    table._ensure_default_transports_registered = filled
