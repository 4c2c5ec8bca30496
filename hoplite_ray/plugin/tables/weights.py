"""Weights: arrays under a name, of which each Ray node has one copy for all of its processes.

They are the latest versions of a table of their own, so no process owns them. A replica of a stage
begins to fetch them before it imports the user's class, and the bytes travel meanwhile.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

from hoplite_ray.errors import GetTimeoutError, InvalidArgumentError, VersionMissingError
from hoplite_ray.plugin.tables.operations import Operations
from hoplite_ray.plugin.tables.steps import Blocking, Steps, run, run_async
from hoplite_ray.tables.log import Options, checked_key, reserve_name
from hoplite_ray.tables.versions import Version
from hoplite_ray.values.codec import freeze_arrays

TABLE = reserve_name("hoplite", "weights")
COPIES = 2

_KEEP_S = 60.0  # of weights that have been replaced: fetches of them end, as others begin
_SILENT_S = 60.0  # after which a publisher counts as dead; half of that of other tables
# For which a call without a limit, or a fetch before the first call, waits for a name; then comes
# GetTimeoutError. A publisher may begin together with its readers, and a wrong name must not hang.
_NAME_S = 60.0
_LOOK_S, _LOOK_MAX_S = 0.02, 0.5  # between two looks for a name: doubles up to the maximum
_LISTED_MAX = 10  # names in an error


def publish_weights(name: str, value: Any, *, timeout_s: float | None = None) -> Version:
    """Publish weights under a name, for `weights` in every process of the cluster.

    They outlive this process. Processes that have mapped the weights before keep what they have.

    Args:    name: a text of at most 1,024 bytes.
             value: as for `hoplite_ray.put`, for example a state dict of torch on the CPU; or None,
             which withdraws the name.
             timeout_s: seconds to wait; None waits without a limit.
    Returns: the version, when every process can read it: `number`, `time_s`, `size_bytes`.
    Raises:  as `Table.put`: InvalidArgumentError naming the part of `value` that can't be stored;
             StoreFullError; GetTimeoutError, after which it may still take effect; ControlError.
    Cost:    a copy of the bytes here and on one other node, where they stay. The bytes before them
             go 60 to 120 s later, as long as a process runs that has used weights.
    Example:

        hop.publish_weights("encoder", {"layer": np.ones((2, 2)), "bias": np.zeros(2)})
        assert hop.weights("encoder")["layer"].sum() == 4
    """
    ops = _open()
    return run(_publish(ops, name, value), ops.open().values, _what("put", name), timeout_s)


async def publish_weights_async(
    name: str, value: Any, *, timeout_s: float | None = None
) -> Version:
    """Like `publish_weights`, but awaitable; when it is cancelled it may still take effect."""
    ops = _open()
    steps = _publish(ops, name, value)
    return await run_async(steps, ops.open().values, _what("put", name), timeout_s)


def weights(name: str | None = None, *, timeout_s: float | None = None) -> Any:
    """Return the weights that were published last under a name, over this node's one copy.

    Args:    name: as for `publish_weights`. It may be left out in a stage that names its weights:
             `@stage(weights="encoder")`.
             timeout_s: seconds to wait for the name and the bytes. None waits 60 s for a name that
             was not published, and without a limit for bytes.
    Returns: the value. Its numpy arrays are read-only; a page of a tensor that this process writes
             into becomes its own.
    Raises:  GetTimeoutError, which lists the names that there are; InvalidArgumentError without any
             name; ObjectLostError if all nodes with a copy are gone; ControlError.
    Cost:    the bytes over this node's link for the first process of the node; for each later one
             one call to Ray's GCS. Nothing is copied above 64 KiB. A copy that came over the link
             may be evicted when the last process has dropped it.
    Example:

        hop.publish_weights("decoder", [np.arange(3)])
        assert hop.weights("decoder", timeout_s=60)[0].tolist() == [0, 1, 2]
    """
    chosen = _choose(name)
    return run(_take(chosen), _open().open().values, _what("get", chosen), timeout_s)


async def weights_async(name: str | None = None, *, timeout_s: float | None = None) -> Any:
    """Like `weights`, but awaitable; cancelling it cancels the transfer."""
    chosen = _choose(name)
    values = _open().open().values
    return await run_async(_take(chosen), values, _what("get", chosen), timeout_s)


# ---- for the replicas of stages ----

_lock = threading.Lock()  # guards all below
_early: dict[str, Future[Any]] = {}  # fetches that no call of `weights` has taken yet
_declared: str | None = None  # the weights of this process's stage


def begin_early(name: str) -> None:
    """Begin to fetch weights for the first call of `weights`, unless that has begun."""
    with _lock:
        if name in _early:
            return
        fetch = _early[name] = Future()
    fetch.set_running_or_notify_cancel()  # a caller that leaves does not cancel it
    thread = threading.Thread(target=_fetch_early, args=(name, fetch), daemon=True)
    thread.name = "hoplite-weights"
    thread.start()


@contextmanager
def declare(name: str) -> Iterator[None]:
    """Make `name` the weights of this process's stage, whose object the body makes.

    The fetch has begun in the body. It is dropped at the end, so that it keeps no memory mapped.
    """
    global _declared
    begin_early(name)
    with _lock:
        _declared = name
    try:
        yield
    finally:
        with _lock:
            _early.pop(name, None)


def _fetch_early(name: str, fetch: Future[Any]) -> None:
    try:
        ops = _open()
        steps = _read(ops, name, time.monotonic() + _NAME_S)
        value = run(steps, ops.open().values, _what("get", name), None)
    except BaseException as error:  # for the caller of `weights`
        fetch.set_exception(error)
    else:
        fetch.set_result(value)


# ---- the operations, each once, for a verb and for its awaitable twin ----


def _open() -> Operations:
    options = Options(keep=1, keep_us=round(_KEEP_S * 1e6), writer_us=round(_SILENT_S * 1e6))
    return Operations(TABLE, options, COPIES)


def _publish(ops: Operations, name: str, value: Any) -> Steps[Version]:
    if value is None:
        return (yield from ops.remove(name))
    return (yield from ops.put_all({name: value}))[name]


def _choose(name: str | None) -> str:
    chosen = _declared if name is None else name
    if chosen is None:
        raise InvalidArgumentError(
            "weights() needs a name here: give it, as in weights('encoder'), or let the stage name "
            "it, as in @stage(weights='encoder')"
        )
    return checked_key(chosen)


def _take(name: str) -> Steps[Any]:
    """Return the value of the fetch that has begun early, or else of one that begins.

    An early fetch that has failed counts for nothing, because the caller's limit may be another.
    """
    limit = time.monotonic() + _NAME_S
    with _lock:
        fetch = _early.pop(name, None)
    if fetch is not None:
        try:
            return (yield fetch)
        except Exception as error:
            if isinstance(error, GetTimeoutError) and not fetch.done():
                raise GetTimeoutError(
                    f"weights {name!r} have not come in time: they are not published yet, or the "
                    "link of this node is slow or busy; raise timeout_s"
                ) from None
    return (yield from _read(_open(), name, limit))


def _read(ops: Operations, name: str, limit: float) -> Steps[Any]:
    """Return the latest value, and wait for the first one; until `limit` without a deadline."""
    try:
        value = yield from ops.get(name, None, None)
    except VersionMissingError:
        yield from _wait_for_name(ops, name, limit)
        value = yield from ops.get(name, None, None)
    freeze_arrays(value)
    return value


def _wait_for_name(ops: Operations, name: str, limit: float) -> Steps[None]:
    """Wait until a name is published. Raises: GetTimeoutError listing the names that there are."""
    pause_s = _LOOK_S
    while True:
        deadline: float | None = yield Blocking(lambda deadline: deadline)
        left = (limit if deadline is None else deadline) - time.monotonic()
        if left < _LOOK_S:
            break
        sleep_s = min(pause_s, left / 2)  # so that the last look is in time
        yield Blocking(lambda _, sleep_s=sleep_s: time.sleep(sleep_s))  # type: ignore[misc]
        pause_s = min(2 * pause_s, _LOOK_MAX_S)
        try:
            yield from ops.find(name, None, None)
        except VersionMissingError:
            continue
        except GetTimeoutError:
            break
        return
    raise _unknown_error(name, ops.open().follower.look_up(lambda state: state.versions.keys("")))


def _what(verb: str, name: str) -> str:
    return f"{verb} of weights {name!r:.80}"


def _unknown_error(name: str, names: list[str]) -> GetTimeoutError:
    listed = ", ".join(map(repr, names[:_LISTED_MAX])) or "none"
    more = f" and {len(names) - _LISTED_MAX} more" if len(names) > _LISTED_MAX else ""
    return GetTimeoutError(
        f"no weights {name!r} have been published in time; there are: {listed}{more}; correct the "
        "name, or publish them by hop.publish_weights"
    )
