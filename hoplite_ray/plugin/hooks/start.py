"""`hoplite_ray.init`: Ray's own init, with the flag set.

This module imports Ray inside functions only, as the others of its room do.
"""

from __future__ import annotations

import difflib
import inspect
import os
from collections.abc import Mapping
from typing import Any

from hoplite_ray.config import Config
from hoplite_ray.errors import HopliteError, InvalidArgumentError, WrongTypeError
from hoplite_ray.plugin.hooks import flag
from hoplite_ray.plugin.process.job_options import KEY


def init(
    address: str | None = None,
    *,
    runtime_env: Mapping[str, Any] | None = None,
    arena_bytes: int | None = None,
    broadcast_stripes: int | None = None,
    link_mbit: int | None = None,
    reduce_degree: int | None = None,
    reduce_stripes: int | None = None,
    spill_directory: str | None = None,
    when_full: str | None = None,
    data_tls: str | None = None,
    rails: str | None = None,
    **ray_init: Any,
) -> Any:
    """Start Ray, or connect to a cluster, with the store switched on.

    It is `ray.init(address, runtime_env={"hoplite": {...}}, ...)`. The first job that uses the
    store fixes the options until the Ray cluster restarts; `hoplite-ray options` shows them.

    Args:    address: the cluster's address; None takes RAY_ADDRESS, or starts Ray here.
             runtime_env: the job's own runtime environment, to which the flag is added.
             arena_bytes, broadcast_stripes, link_mbit, reduce_degree, reduce_stripes,
             spill_directory, when_full, data_tls, rails: the options; `config.Config` says what
             each does. None takes the cluster's.
             ray_init: any other argument of `ray.init`, by its name.
    Returns: what `ray.init` returns.
    Raises:  InvalidArgumentError for a wrong value, for an argument that neither takes, or if
             `runtime_env` or the submission of this job has the flag, too; HopliteError for Ray
             Client; what `ray.init` raises.
    Example:

        hop.init(arena_bytes=64 << 20, num_cpus=2)
    """
    import ray

    given = {
        "arena_bytes": arena_bytes,
        "broadcast_stripes": broadcast_stripes,
        "link_mbit": link_mbit,
        "reduce_degree": reduce_degree,
        "reduce_stripes": reduce_stripes,
        "spill_directory": spill_directory,
        "when_full": when_full,
        "data_tls": data_tls,
        "rails": rails,
    }
    options = Config.from_options(given).explicit()
    _refuse_unknown(ray_init, [*given, *inspect.signature(ray.init).parameters])
    _refuse_client(address)
    own = runtime_env
    if own is None:  # ray.init drops a job_config's runtime_env if it gets another one
        own = getattr(ray_init.get("job_config"), "runtime_env", None) or {}
    return ray.init(address, runtime_env=_with_flag(own, options), **ray_init)


def _refuse_unknown(ray_init: Mapping[str, Any], known: list[str]) -> None:
    for name in ray_init:
        if name in known or name.startswith("_"):  # ray.init knows its hidden arguments itself
            continue
        near = difflib.get_close_matches(name, known, n=1)
        meant = f"is {near[0]} meant?" if near else f"options are {', '.join(Config.names())}"
        raise InvalidArgumentError(
            f"{name!r} is no hoplite option and no argument of ray.init; {meant}"
        )


def _refuse_client(address: str | None) -> None:
    asked = os.environ.get("RAY_ADDRESS") if address in (None, "auto") else address
    if asked and "://" in asked:
        raise HopliteError(
            f"{asked} is a cluster of Ray Client, whose programs share no memory with any node: "
            "run the program there, by 'ray job submit -- python PROGRAM'"
        )


def _with_flag(own: Any, options: dict[str, object]) -> dict[str, Any]:
    """Return the user's `own` runtime environment with the flag for `options`.

    Raises: InvalidArgumentError if the flag would be there twice; WrongTypeError for no mapping.
    """
    if not isinstance(own, Mapping):
        raise WrongTypeError(f"runtime_env is a {type(own).__name__}; it takes a dict")
    if KEY in own or flag.is_set_up_by(own):
        raise InvalidArgumentError(
            f'runtime_env has the flag "{KEY}" already: give its options to hoplite_ray.init, as '
            "init(arena_bytes=2 << 30), or call ray.init"
        )
    if KEY not in _submitted_env():
        return {**own, KEY: options}
    if options:
        raise InvalidArgumentError(
            f'this job was submitted with the flag "{KEY}" in its runtime environment: leave '
            f"{', '.join(options)} out of hoplite_ray.init, or the flag out of the submission"
        )
    return dict(own)  # Ray merges the submission's flag


def _submitted_env() -> Mapping[str, Any]:
    from hoplite_ray.plugin.seams import core as seams

    return seams.submitted_runtime_env()
