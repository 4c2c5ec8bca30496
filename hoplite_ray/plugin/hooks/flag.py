"""The flag: `ray.init(runtime_env={"hoplite": {"arena_bytes": 2 << 30}})`.

Importing hoplite_ray has ray.init call `expand` before Ray's own hooks (joining.py): bad options
raise there, at once. No variable says so, because processes that this one starts would inherit it,
also those whose Python lacks the package. The key is removed (Ray knows nothing of it) and every
worker gets a setup function that hands it the options. That function travels by value: a worker
whose Python lacks the package still starts, and says so at the first use, where an import string
would cost a crash without a reason.

This module must import neither ray nor numpy: `import hoplite_ray` runs it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

from hoplite_ray.config import Config, variable_of

KEY = "hoplite"
SETUP_KEY = "worker_process_setup_hook"

_SETUP_NAME = "set_up_hoplite"

_asked = Config()
_is_given = False
_asks = True  # False in a process that serves all jobs
_setup_error: Exception | None = None


def expand(runtime_env: dict[str, Any] | None) -> dict[str, Any] | None:
    """Consume the flag of `ray.init(runtime_env=...)`, and add this driver's own variables.

    While Ray is there it only checks the flag: that ray.init is ignored, or raises.
    """
    global _asked, _is_given
    asked = None
    if runtime_env is not None and KEY in runtime_env:
        options = runtime_env[KEY]
        if not isinstance(options, Mapping):
            raise ValueError(
                f'runtime_env["{KEY}"] must be a dict of options, not '
                f'{type(options).__name__}: write {{"{KEY}": {{"arena_bytes": 2 << 30}}}}'
            )
        rest = {key: value for key, value in runtime_env.items() if key != KEY}
        asked = Config.from_options(options)
        runtime_env = {**rest, SETUP_KEY: _setup(asked.explicit(), rest.get(SETUP_KEY))}
    if not _is_joined():
        setup = (runtime_env or {}).get(SETUP_KEY)
        _is_given = getattr(setup, "__name__", "") == _SETUP_NAME
        if asked is not None:
            _asked = asked
        elif not _is_given:  # else it comes from `runtime_env` below
            _asked = Config()
        runtime_env = _with_variables(runtime_env)
    return runtime_env


def _with_variables(runtime_env: dict[str, Any] | None) -> dict[str, Any] | None:
    """Hand the options in this process's environment on: workers have that of their Ray node.

    What `runtime_env` itself says of a variable stands.
    """
    variables = Config.variables()
    if not variables:
        return runtime_env
    given = runtime_env or {}
    return {**given, "env_vars": {**variables, **(given.get("env_vars") or {})}}


def runtime_env(**options: object) -> dict[str, Any]:
    """The runtime environment of the flag, for launchers that ask no hook of Ray's.

    `ray.init` asks one, also under `ray job submit` and `uv run`: these take the flag itself.

    Raises: ValueError for an unknown option or a wrong value.
    """
    global _asked, _is_given
    asked = Config.from_options(options)
    if not _is_joined():
        _asked, _is_given = asked, True
    variables = {variable_of(name): str(value) for name, value in options.items()}
    return {SETUP_KEY: _setup(asked.explicit(), None), "env_vars": variables}


def asked() -> Config:
    """The options that this job asked for: the flag's, then those of HOPLITE_RAY_* variables.

    Raises: what went wrong in this worker's setup, at the first use, where it can be seen.
    """
    if not _asks:
        return Config()
    if _setup_error is not None:
        raise _setup_error
    return Config.from_options({**Config.from_environment().explicit(), **_asked.explicit()})


def origins() -> dict[str, str]:
    """Where each option that `asked` returns is from: "flag", or the name of a variable."""
    from_flag = _asked.explicit()
    return {name: "flag" if name in from_flag else variable_of(name) for name in asked().explicit()}


def ask_nothing() -> None:
    """Have `asked` ask for no option in this process: it follows the cluster's."""
    global _asks
    _asks = False


def is_given() -> bool:
    """Whether the flag was given here, or this worker was set up by it."""
    return _is_given


def refuse_raw(runtime_env: Mapping[str, Any]) -> None:
    """Raise if `runtime_env`, as Ray has it, still holds a flag that nobody consumed."""
    if KEY in runtime_env:
        raise ValueError(
            f'runtime_env={{"{KEY}": ...}} was not consumed: import hoplite_ray before '
            "ray.init, and give the flag to ray.init, not to a task or an actor; "
            "Ray Client (ray://) consumes none: use 'ray job submit'"
        )


def accept(options: Mapping[str, object]) -> None:
    """Remember the options in a worker; an error is kept for the first use. Never raises."""
    global _asked, _is_given, _setup_error
    try:
        _is_given = True
        _asked = Config.from_options(options)
        from hoplite_ray.plugin.direct import tables as direct

        direct.read()
    except Exception as error:
        _setup_error = error


def _is_joined() -> bool:
    ray = sys.modules.get("ray")
    return ray is not None and ray.is_initialized()


def _setup(options: dict[str, object], users_setup: str | Callable[[], object] | None) -> Any:
    def set_up_hoplite() -> None:  # nested, so that it is pickled by value
        try:
            from hoplite_ray.plugin.hooks import flag

            flag.accept(options)
        except BaseException:  # its import says so at the first use
            pass
        if isinstance(users_setup, str):
            import importlib

            module, _, name = users_setup.rpartition(".")
            getattr(importlib.import_module(module), name)()
        elif users_setup is not None:
            users_setup()

    return set_up_hoplite
