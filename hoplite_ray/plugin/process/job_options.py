"""The options that this process's job asks for: those of the flag, then those of variables.

hooks/ writes them, in the driver and in each worker; every other room reads them.
This module imports neither ray nor numpy, because `import hoplite_ray` imports it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hoplite_ray.config import Config, variable_of
from hoplite_ray.errors import InvalidArgumentError

KEY = "hoplite"  # of `ray.init(runtime_env={"hoplite": {...}})`

_flag_options = Config()
_is_given = False
_asks = True  # False in a process that serves all jobs
_setup_error: Exception | None = None


def remember(asked: Config | None, *, is_given: bool) -> None:
    """Remember what the flag asks for, and whether it was given; None keeps what was asked."""
    global _flag_options, _is_given
    _is_given = is_given
    if asked is not None:
        _flag_options = asked


def remember_error(error: Exception) -> None:
    """Have `requested_config` raise `error`: the setup of this worker has failed with it."""
    global _setup_error
    _setup_error = error


def requested_config() -> Config:
    """Return the options that this job asks for: the flag's, then those of HOPLITE_RAY_* variables.

    Raises: the error of this worker's setup, here at the first use, where users see it.
    """
    if not _asks:
        return Config()
    if _setup_error is not None:
        raise _setup_error
    return Config.from_options({**Config.from_environment().explicit(), **_flag_options.explicit()})


def origins() -> dict[str, str]:
    """Return by option of `requested_config` its origin: "flag", or a variable's name."""
    from_flag = _flag_options.explicit()
    return {
        name: "flag" if name in from_flag else variable_of(name)
        for name in requested_config().explicit()
    }


def follow_cluster() -> None:
    """Have `requested_config` ask for no option in this process: it follows the cluster's."""
    global _asks
    _asks = False


def is_given() -> bool:
    """Return True if the flag was given here, or if it has set up this worker."""
    return _is_given


def refuse_raw(runtime_env: Mapping[str, Any]) -> None:
    """Raise InvalidArgumentError if Ray's own `runtime_env` has a flag that no hook consumed."""
    if KEY in runtime_env:
        raise InvalidArgumentError(
            f'runtime_env={{"{KEY}": ...}} was not consumed: import hoplite_ray before '
            "ray.init, and give the flag to ray.init, not to a task or an actor; "
            "Ray Client (ray://) consumes none: use 'ray job submit'"
        )
