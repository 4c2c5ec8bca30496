"""One source of a pending reduce or gather: from a ref to the handle of a value in the store.

Runs in the steward. A bare value, which a task returned without hop.array, is put into the store on
the Ray node that has it.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from hoplite_ray.codec import Encoded, encode
from hoplite_ray.errors import InvalidArgumentError, WrongTypeError
from hoplite_ray.plugin import seams
from hoplite_ray.plugin.array import PADDED_BYTES, Array, make
from hoplite_ray.plugin.seams import Ref

# A handle, padded or not, is below this, unless its value has hundreds of arrays; what is larger
# stays where it is until a task there has looked.
_HANDLE_BYTES_MAX = 2 * PADDED_BYTES
_LOCATE_MS = 5_000


@dataclass(slots=True, eq=False)
class Source:
    """A source and what has become of it. Only this refers to its ref, so that it can let go."""

    index: int
    ref: Ref | None
    handle: Array | None = None
    wrapped: Ref | None = None  # of a bare value: the ref of the handle made for it
    failure: Exception | None = None

    def fate(self) -> str:
        assert self.ref is not None
        name = f"source {self.index} ({self.ref.hex()[:12]}..)"
        if self.failure is not None:
            cause = getattr(self.failure, "cause", None) or self.failure
            text = str(cause).strip().splitlines() or [""]
            return f"{name}: {type(cause).__name__}: {text[-1]}"
        return f"{name}: {'was ready' if self.handle is not None else 'pending'}"

    def let_go(self) -> None:
        """Drop refs now: the traceback of an error would keep them until Python collects it."""
        self.ref = self.handle = self.wrapped = self.failure = None


async def resolve(source: Source, arrivals: asyncio.Queue[Source]) -> None:
    """Wait for a source's task and get its handle, or what went wrong."""
    try:
        assert source.ref is not None
        await seams.ready(source.ref)
        size_bytes, node = await asyncio.to_thread(_facts, source)
        if size_bytes > _HANDLE_BYTES_MAX:
            source.wrapped = _wrap_where_it_is(source, node)
        value = await (source.wrapped or source.ref)
        if not isinstance(value, Array):
            value = await asyncio.to_thread(make, _encoded(source.index, value))
        source.handle = value
    except Exception as failure:
        cause = getattr(failure, "cause", None)  # of an error in our own _wrap
        source.failure = cause if isinstance(cause, WrongTypeError) else failure
    await arrivals.put(source)


def _facts(source: Source) -> tuple[int, str | None]:
    """Size of a ready object and a Ray node that has it, asked from its owner, not fetched."""
    if source.ref is None:
        return 0, None
    try:
        located = ray.experimental.get_object_locations([source.ref], timeout_ms=_LOCATE_MS)
    except ray.exceptions.GetTimeoutError:
        return 0, None  # its owner is dying: fetching it tells
    facts = located.get(source.ref, {})
    nodes = facts.get("node_ids") or [None]
    return facts.get("object_size") or 0, nodes[0]


def _encoded(index: int, value: Any) -> Encoded:
    try:
        return encode(value)
    except InvalidArgumentError as error:
        kind = type(value).__name__
        raise WrongTypeError(
            f"source {index} returned {kind}, which can't be put: {error}"
        ) from None


def _wrap_where_it_is(source: Source, node: str | None) -> Ref:
    """Turn a bare value into an object of the store on the Ray node that holds it."""
    assert source.ref is not None
    where = node or ray.get_runtime_context().get_node_id()
    strategy = NodeAffinitySchedulingStrategy(where, soft=True)
    task = _wrap.options(scheduling_strategy=strategy)
    return task.remote([source.ref], source.index)


@ray.remote(num_cpus=0)
def _wrap(refs: list[Ref], index: int) -> Array:
    value = ray.get(refs[0])
    return value if isinstance(value, Array) else make(_encoded(index, value))
