"""The holders of objects: each member is asked what it has of them, by the control plane."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from hoplite_ray.control import control_pb2 as pb
from hoplite_ray.control.client import ControlClient
from hoplite_ray.control.view import Member
from hoplite_ray.errors import ControlError, InvalidArgumentError, NodeLostError

IDS_MAX = 10_000  # of one call: 300 KB to each member

_IS_COMPLETE = {"whole": True, "spilled": True, "partial": False, "writing": False}


@dataclass(frozen=True, slots=True)
class Holder:
    """A node that has an object, or some of it.

    node_id:      the node's id, as `Store.node_id` has it.
    address:      of the node's first rail, as `ADDRESS:PORT`.
    is_complete:  True if all bytes are there, in memory or spilled to disk.
    """

    node_id: int
    address: str
    is_complete: bool


def find_holders(
    directory: Path, object_ids: Sequence[bytes], timeout_s: float
) -> dict[bytes, list[Holder]]:
    """Return the holders of each object, the complete ones first.

    directory:  of this process's own node, which has the cluster's secret.
    timeout_s:  for all members. A member without an answer is left out.

    Raises:  InvalidArgumentError for more than IDS_MAX ids; NodeLostError if no node has started in
             the directory, or it has ended; ControlError if it does not answer.
    """
    wanted = list(dict.fromkeys(object_ids))
    if len(wanted) > IDS_MAX:
        raise InvalidArgumentError(
            f"{len(wanted)} objects are too many to locate at once; give at most {IDS_MAX}"
        )
    control, secret = _read_place(directory)
    with ThreadPoolExecutor(1) as thread:  # the caller's thread may run an event loop
        answers = thread.submit(asyncio.run, _ask(control, secret, wanted, timeout_s)).result()
    return collect_holders(wanted, answers)


def collect_holders(
    wanted: Sequence[bytes], answers: Mapping[Member, Sequence[pb.Object]]
) -> dict[bytes, list[Holder]]:
    """Return the holders of each object by the members' answers. Pure."""
    found: dict[bytes, list[Holder]] = {each: [] for each in wanted}
    for member, rows in answers.items():
        for row in rows:
            is_complete = _IS_COMPLETE.get(row.state)
            if is_complete is not None and row.object_id in found:
                holder = Holder(member.node_id, member.rails[0], is_complete)
                found[row.object_id].append(holder)
    for holders in found.values():
        holders.sort(key=lambda each: (not each.is_complete, each.node_id))
    return found


async def _ask(
    control: str, secret: bytes, wanted: Sequence[bytes], timeout_s: float
) -> dict[Member, Sequence[pb.Object]]:
    if not wanted:
        return {}
    ends_s = time.monotonic() + timeout_s
    calls = ControlClient(secret)

    async def ask(member: Member) -> Sequence[pb.Object]:
        try:
            left_s = max(ends_s - time.monotonic(), 0.0)
            return await calls.find_objects(member.control, wanted, timeout_s=left_s)
        except ControlError:  # it has left, or is slow: its copies are of no use now
            return ()

    try:
        members = (await calls.view(control, timeout_s=timeout_s)).members
        return dict(zip(members, await asyncio.gather(*map(ask, members)), strict=True))
    finally:
        await calls.close()


def _read_place(directory: Path) -> tuple[str, bytes]:
    """Return the control address of a node, and its cluster's secret."""
    try:
        record = json.loads((directory / "node.json").read_text())
        return str(record["control"]), (directory / "secret").read_bytes().strip()
    except (OSError, ValueError, LookupError) as error:
        raise NodeLostError(
            f"{directory} tells of no node ({error}): the node has ended, or belongs to another "
            "user; attach to one that runs"
        ) from None
