"""The flag: `ray.init(runtime_env={"hoplite": {"arena_bytes": 2 << 30}})`.

After an import of hoplite_ray, ray.init calls `expand` before Ray's own hooks (import_hooks.py).
Bad options raise there, at once. No environment variable names the hook, because child processes
whose Python lacks the package would inherit it.

`expand` removes the key, which Ray does not know. It gives every worker a setup function that hands
the worker the options. That function travels by value: a worker whose Python lacks the package then
starts, and fails with a reason at the first use. With an import string it would crash.

This module imports neither ray nor numpy, because `import hoplite_ray` imports it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

from hoplite_ray.config import Config, variable_of
from hoplite_ray.errors import InvalidArgumentError
from hoplite_ray.plugin.process import job_options
from hoplite_ray.plugin.process.job_options import KEY

SETUP_KEY = "worker_process_setup_hook"

_SETUP_NAME = "set_up_hoplite"


def expand(runtime_env: dict[str, Any] | None) -> dict[str, Any] | None:
    """Consume the flag of `ray.init(runtime_env=...)`, and add this driver's own variables.

    In a process that has joined Ray it only checks the flag, because that ray.init is ignored, or
    raises.
    """
    asked = None
    if runtime_env is not None and KEY in runtime_env:
        options = runtime_env[KEY]
        if not isinstance(options, Mapping):
            raise InvalidArgumentError(
                f'runtime_env["{KEY}"] must be a dict of options, not '
                f'{type(options).__name__}: write {{"{KEY}": {{"arena_bytes": 2 << 30}}}}'
            )
        rest = {key: value for key, value in runtime_env.items() if key != KEY}
        asked = Config.from_options(options)
        runtime_env = {**rest, SETUP_KEY: _setup(asked.explicit(), rest.get(SETUP_KEY))}
    if not _is_joined():
        is_given = is_set_up_by(runtime_env or {})
        if asked is None and not is_given:
            asked = Config()
        # With None the options stay: the setup function comes from `runtime_env` below.
        job_options.remember(asked, is_given=is_given)
        runtime_env = _with_variables(runtime_env)
    return runtime_env


def _with_variables(runtime_env: dict[str, Any] | None) -> dict[str, Any] | None:
    """Hand on the options in this process's environment, because workers have their Ray node's.

    A variable in `runtime_env` itself comes first.
    """
    variables = Config.variables()
    if not variables:
        return runtime_env
    given = runtime_env or {}
    return {**given, "env_vars": {**variables, **(given.get("env_vars") or {})}}


def runtime_env(**options: object) -> dict[str, Any]:
    """The runtime environment of the flag, for launchers that ask no hook of Ray's.

    `ray.init` asks one, also under `ray job submit` and `uv run`: these take the flag itself.

    Raises: InvalidArgumentError for an unknown option or a wrong value.
    """
    asked = Config.from_options(options)
    if not _is_joined():
        job_options.remember(asked, is_given=True)
    variables = {variable_of(name): str(value) for name, value in options.items()}
    return {SETUP_KEY: _setup(asked.explicit(), None), "env_vars": variables}


def is_set_up_by(runtime_env: Mapping[str, Any]) -> bool:
    """Return True if `runtime_env` is of `runtime_env()`, or the flag in it was consumed."""
    return getattr(runtime_env.get(SETUP_KEY), "__name__", "") == _SETUP_NAME


def _is_joined() -> bool:
    ray = sys.modules.get("ray")
    return ray is not None and ray.is_initialized()


def _setup(options: dict[str, object], users_setup: str | Callable[[], object] | None) -> Any:
    def set_up_hoplite() -> None:  # nested, so that it is pickled by value
        try:
            from hoplite_ray.plugin.hooks import worker

            worker.accept(options)
        except BaseException:  # the import at the first use raises it
            pass
        if isinstance(users_setup, str):
            import importlib

            module, _, name = users_setup.rpartition(".")
            getattr(importlib.import_module(module), name)()
        elif users_setup is not None:
            users_setup()

    return set_up_hoplite
