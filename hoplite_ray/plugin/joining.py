"""Ray's tables of tensor transports and of collective backends: ours join them.

Under `uv run` Ray asks a hook of its own instead of the one that `flag` has named: it is given what
ours has made of the runtime environment.

The transports do when Ray fills the table, at its first use in a process: not before, for Ray
imports torch to fill it; and not after, for a class may name its transport before ray.init. The
backend does when ray.util.collective has been imported. `import hoplite_ray` must not import ray:
where a table is not there yet, its import is waited for.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from hoplite_ray.plugin import flag


def install() -> None:
    """Have ours join, as soon as the tables are there."""
    for name, join in _TABLES.items():
        table = sys.modules.get(name)
        if table is None:
            sys.meta_path.insert(0, _Import(name, join))
        else:
            join(table)


class _Import(MetaPathFinder):
    """Sees a table's module being imported, which the finders behind it do."""

    def __init__(self, name: str, join: Callable[[Any], None]) -> None:
        self._name = name
        self._join = join

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self._name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loaded(spec.loader, self._join)
        return spec


class _Loaded(Loader):
    def __init__(self, loader: Loader, join: Callable[[Any], None]) -> None:
        self._loader = loader
        self._join = join

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        self._join(module)


def _wait_for_first_use(table: Any) -> None:
    fill = table._ensure_default_transports_registered

    def filled() -> None:
        fill()
        from hoplite_ray.plugin import direct

        direct.join()

    table._ensure_default_transports_registered = filled


def _register_backend(table: Any) -> None:
    from hoplite_ray.plugin import collective

    collective.register()


def _expand_first(module: Any) -> None:
    hook = module.hook
    module.hook = lambda runtime_env: hook(flag.expand(runtime_env))


_TABLES: dict[str, Callable[[Any], None]] = {
    "ray.experimental.rdt.util": _wait_for_first_use,
    "ray.util.collective.collective": _register_backend,
    "ray._private.runtime_env.uv_runtime_env_hook": _expand_first,
}
