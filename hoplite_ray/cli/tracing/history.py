"""The life of one object over all nodes, from the memory of each node by its own clock.

A node's clock is placed on ours by the midpoint of a question and its answer. The node reads its
clock between the two, so that the error is at most half of the time between them. The clocks count
from the machine's start, so that setting the time of day changes nothing.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace

from hoplite_ray.cli.cluster.places import Cluster
from hoplite_ray.cli.cluster.survey import NodeReport, ask_each
from hoplite_ray.control import control_pb2 as pb
from hoplite_ray.control.client import ControlClient
from hoplite_ray.errors import ControlError, HopliteError
from hoplite_ray.values.layout import OBJECT_ID_BYTES

ID_DIGITS = 2 * OBJECT_ID_BYTES
_CLOCK_LOOKS = 4  # the quickest counts; the first one has to connect
_OF_NODES = ("dead", "link down")
_AGAIN = {"granted": ("peer", "stripe"), "receiving": ("node_id", "stripe")}


class NoTraceError(HopliteError):
    """No node, or none any more, remembers the object; the text says which."""


@dataclass(frozen=True, slots=True)
class Moment:
    """One event that a node remembers, by our clock.

    again:  the same stripe was granted to the same receiver, or asked for by it, before.
    """

    node_id: int
    object_id: bytes
    kind: str
    at_s: float
    since_s: float
    error: str
    stripe: int
    stripe_count: int
    process: int
    peer: int
    other: int
    size_bytes: int
    again: bool = False


@dataclass(frozen=True, slots=True)
class Memory:
    """The memory of one node about the objects that were asked for.

    clock_error_s:  by how much all of its moments may be wrong against ours
    whole_since_s:  nothing later than this is forgotten; None if nothing is
    """

    node: NodeReport
    moments: tuple[Moment, ...]
    clock_error_s: float
    kept_max: int
    whole_since_s: float | None


def ask_memories(
    cluster: Cluster, nodes: list[NodeReport], digits: str, *, timeout_s: float
) -> list[Memory | ControlError]:
    """Ask all nodes at once; returns their answers in the order of `nodes`."""

    async def ask() -> list[Memory | ControlError]:
        return await ask_each(
            cluster, nodes, lambda calls, node: _ask_memory(calls, node, digits, timeout_s)
        )

    return asyncio.run(ask())


async def _ask_memory(
    calls: ControlClient, node: NodeReport, digits: str, timeout_s: float
) -> Memory:
    object_id = bytes.fromhex(digits.ljust(ID_DIGITS, "0"))
    ours_s, error_s = 0.0, float("inf")
    for _ in range(_CLOCK_LOOKS):
        asked_s = time.monotonic()
        reply = await calls.trace(
            node.control, object_id, len(digits), timeout_s=timeout_s / _CLOCK_LOOKS
        )
        took_s = time.monotonic() - asked_s
        if took_s / 2 < error_s:
            ours_s, error_s = asked_s + took_s / 2 - reply.now_ns / 1e9, took_s / 2
    return Memory(
        node=node,
        moments=tuple(_moment(node, each, ours_s) for each in reply.moments),
        clock_error_s=error_s,
        kept_max=reply.kept_max,
        whole_since_s=reply.oldest_ns / 1e9 + ours_s if reply.forgotten else None,
    )


def _moment(node: NodeReport, row: pb.Moment, ours_s: float) -> Moment:
    return Moment(
        node_id=node.node_id,
        object_id=row.object_id,
        kind="arriving" if row.kind == "receiving" and row.size_bytes else row.kind,
        at_s=row.at_ns / 1e9 + ours_s,
        since_s=row.since_ns / 1e9 + ours_s,
        error=row.error,
        stripe=row.stripe,
        stripe_count=row.stripe_count,
        process=row.process,
        peer=row.peer,
        other=row.other,
        size_bytes=row.size_bytes,
    )


def object_history(digits: str, memories: Iterable[Memory]) -> list[Moment]:
    """Return all moments of the object with an id that begins with `digits`, in order of time.

    Returns: those of its own, and the deaths and lost links of nodes that had to do with it.
    Raises:  NoTraceError if no node remembers one, or several ids begin so.
    """
    memories = list(memories)
    all_moments = [moment for memory in memories for moment in memory.moments]
    own = [moment for moment in all_moments if moment.kind not in _OF_NODES]
    found = sorted({moment.object_id for moment in own})
    if not found:
        raise NoTraceError(_explain_missing(digits, memories))
    if len(found) > 1:
        some = ", ".join(each.hex() for each in found[:4]) + (", ..." if len(found) > 4 else "")
        raise NoTraceError(
            f"{len(found)} objects begin with {digits}: {some}; give more digits of one"
        )
    present = {node for m in own for node in (m.node_id, m.peer, m.other)}
    began_s = min(moment.since_s for moment in own)
    deaths = [
        moment
        for moment in all_moments
        if moment.kind in _OF_NODES and moment.peer in present and moment.at_s >= began_s
    ]
    return _mark_repeats(sorted(own + deaths, key=lambda moment: moment.at_s))


def _mark_repeats(moments: list[Moment]) -> list[Moment]:
    """Set `again` in grants and receives that repeat an earlier one."""
    seen = set()
    result = []
    for moment in moments:
        key = (moment.kind, *(getattr(moment, name) for name in _AGAIN.get(moment.kind, ())))
        if moment.kind in _AGAIN and key in seen:
            moment = replace(moment, again=True)
        seen.add(key)
        result.append(moment)
    return result


def _explain_missing(digits: str, memories: list[Memory]) -> str:
    text = f"no node remembers an object whose id begins with {digits}: "
    silent = [memory for memory in memories if not memory.kept_max]
    if silent:
        names = ", ".join(f"{memory.node.node_id:x}" for memory in silent)
        return (
            text + f"nodes {names} keep nothing; without Ray, start them with moments_max above 0"
        )
    short = [memory for memory in memories if memory.whole_since_s is not None]
    if not short:
        return text + (
            "none of those that run has ever seen it, and what a node knew ends with it; "
            "hoplite-ray objects lists what is there"
        )
    ago = [
        f"{m.node.node_id:x} remembers {time.monotonic() - (m.whole_since_s or 0):.1f} s"
        for m in short
    ]
    return text + (
        f"it was never there, or is forgotten ({', '.join(ago)} back); trace it sooner, "
        "or, without Ray, start the nodes with a larger moments_max"
    )
