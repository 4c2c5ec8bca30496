"""The holders of objects: each member is asked what it has of them, by the control plane."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hoplite_ray.control import control_pb2 as pb
from hoplite_ray.control.asking import ask_members
from hoplite_ray.control.client import ControlClient
from hoplite_ray.control.view import Member
from hoplite_ray.errors import InvalidArgumentError

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
    if not wanted:
        return {}

    async def ask(calls: ControlClient, member: Member, left_s: float) -> Sequence[pb.Object]:
        return await calls.find_objects(member.control, wanted, timeout_s=left_s)

    return collect_holders(wanted, ask_members(directory, ask, timeout_s))


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
