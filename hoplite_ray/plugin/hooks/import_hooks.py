"""The joints with Ray: ray.init, and its tables of tensor transports and collective backends.

`import hoplite_ray` must not import ray, so each joint is made when Ray's module is imported.

- ray.init hands the runtime environment to `flag` before it asks the hook that a variable names,
  or its own hook under `uv run`.
- The transports join when Ray fills their table, at the first use in a process. They can't join
  before, because Ray imports torch to fill it; nor later, because a class may name its transport
  before ray.init.
- The backend joins when ray.util.collective has been imported.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from hoplite_ray.plugin.hooks import flag


def install() -> None:
    """Make each joint as soon as Ray's module is there."""
    missing = {}
    for name, join in _HOOKS.items():
        module = sys.modules.get(name)
        if module is None:
            missing[name] = join
        else:
            join(module)
    sys.meta_path.insert(0, _ImportHook(missing))


class _ImportHook(MetaPathFinder):
    """Notices imports of Ray's modules, which the finders behind it make.

    It stays in sys.meta_path: if it removed itself, an import that goes through that list would
    miss the next finder.
    """

    def __init__(self, missing: dict[str, Callable[[Any], None]]) -> None:
        self._missing = missing

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        join = self._missing.pop(fullname, None)
        if join is None:
            return None
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            spec.loader = _HookedLoader(spec.loader, join)
        return spec


class _HookedLoader(Loader):
    def __init__(self, loader: Loader, join: Callable[[Any], None]) -> None:
        self._loader = loader
        self._join = join

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        self._join(module)


def _add_transports_at_first_use(table: Any) -> None:
    fill = table._ensure_default_transports_registered

    def fill_and_join() -> None:
        fill()
        from hoplite_ray.plugin.direct import tables

        tables.register()

    table._ensure_default_transports_registered = fill_and_join


def _register_backend(table: Any) -> None:
    # By name, because the import may be under way: that module imports `table` itself.
    importlib.import_module("hoplite_ray.plugin.groups.collective")


def _expand_flag(worker: Any) -> None:
    modify = worker._maybe_modify_runtime_env

    def expand_and_modify(runtime_env: Any, _skip_env_hook: bool) -> Any:
        asked = runtime_env if _skip_env_hook else flag.expand(runtime_env)
        return modify(asked, _skip_env_hook)

    worker._maybe_modify_runtime_env = expand_and_modify


_HOOKS: dict[str, Callable[[Any], None]] = {
    "ray.experimental.rdt.util": _add_transports_at_first_use,
    "ray.util.collective.collective": _register_backend,
    "ray._private.worker": _expand_flag,
}
