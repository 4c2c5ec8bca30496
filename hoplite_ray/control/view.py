"""The view: the members of a cluster in one epoch. Values and pure functions.

A message of another process is checked where it is decoded. A view that reaches the native node or
the other members therefore names each node once, with addresses that can be dialled.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from google.protobuf.message import DecodeError

from hoplite_ray.control import control_pb2 as pb
from hoplite_ray.errors import ControlError

NodeKey = tuple[int, int]  # (node id, incarnation)

MEMBERS_MAX = 1024  # native/base/limits.h kViewMembersMax
EPOCH_MAX = 2**62
RAILS_MAX = 8  # native/base/limits.h kRailsMax


@dataclass(frozen=True, slots=True)
class Member:
    """One incarnation of one node, and its addresses."""

    node_id: int
    incarnation: int
    control: str
    rails: tuple[str, ...]
    data_tls: bool = False  # it speaks TLS on its rails, and nothing else

    @property
    def key(self) -> NodeKey:
        """The name of this incarnation of the node."""
        return (self.node_id, self.incarnation)

    def __str__(self) -> str:
        return f"node {self.node_id:x}/{self.incarnation} at {self.control}"


@dataclass(frozen=True, slots=True)
class View:
    """The members, oldest first. Two views of one epoch are equal."""

    epoch: int = 0
    members: tuple[Member, ...] = ()

    def has(self, key: NodeKey) -> bool:
        """Return True if this incarnation of the node is a member."""
        return any(member.key == key for member in self.members)

    def with_member(self, joiner: Member) -> View:
        """Return the members and, as the newest, `joiner`; its earlier incarnations are gone.

        Raises:  ControlError if that incarnation is over or belongs to another process.
        """
        for member in self.members:
            if member.node_id != joiner.node_id or member == joiner:
                continue
            if member.incarnation >= joiner.incarnation:
                raise ControlError(
                    f"{joiner} can't join: {member} is a member; "
                    f"start it with incarnation {member.incarnation + 1} or another node id"
                )
        if joiner in self.members:
            return self
        others = tuple(m for m in self.members if m.node_id != joiner.node_id)
        if len(others) >= MEMBERS_MAX:
            raise ControlError(
                f"{joiner} can't join: the view has {MEMBERS_MAX} members, which is the most; "
                "end a node first"
            )
        return View(self.epoch, (*others, joiner))

    def without(self, *keys: NodeKey) -> View:
        """Return the members that are none of `keys`."""
        return View(self.epoch, tuple(m for m in self.members if m.key not in keys))

    def to_proto(self) -> pb.View:
        """Return it as the message that travels."""
        return pb.View(epoch=self.epoch, members=[member_to_proto(m) for m in self.members])

    @classmethod
    def from_proto(cls, message: pb.View) -> View:
        """Return what the message says.

        Raises:  ControlError if a member is none, is named twice, or there are too many; and for
                 an epoch that no other could follow.
        """
        if message.epoch >= EPOCH_MAX:
            raise ControlError(f"view {message.epoch} is none: no cluster changes so often")
        members = tuple(member_from_proto(m) for m in message.members)
        if len(members) > MEMBERS_MAX or len({m.node_id for m in members}) < len(members):
            raise ControlError(
                f"view {message.epoch} of {len(members)} members names one twice or has more than "
                f"{MEMBERS_MAX}; run the same release on all nodes"
            )
        return cls(message.epoch, members)

    def to_bytes(self) -> bytes:
        """Encode for a view store."""
        return self.to_proto().SerializeToString(deterministic=True)

    @classmethod
    def from_bytes(cls, encoded: bytes) -> View:
        """Decode what `to_bytes` made.

        Raises:  ControlError if the bytes are no view.
        """
        try:
            return cls.from_proto(pb.View.FromString(encoded))
        except DecodeError as error:
            raise ControlError(
                f"the view store holds {len(encoded)} bytes that are no view ({error}); "
                "another program writes to it, or another release of this one"
            ) from error


def member_to_proto(member: Member) -> pb.Member:
    """Return the member as the message that travels."""
    return pb.Member(
        node_id=member.node_id,
        incarnation=member.incarnation,
        control=member.control,
        rails=member.rails,
        data_tls=member.data_tls,
    )


def member_from_proto(message: pb.Member) -> Member:
    """Return the member that the message describes.

    Raises:  ControlError if it has no id, no incarnation, or an address that can't be dialled.
    """
    member = Member(
        message.node_id,
        message.incarnation,
        message.control,
        tuple(message.rails),
        data_tls=message.data_tls,
    )
    addresses = (member.control, *member.rails)
    is_named = member.node_id > 0 and member.incarnation > 0
    if not is_named or not 1 <= len(member.rails) <= RAILS_MAX:
        raise ControlError(
            f"{member} with {len(member.rails)} rails is no member; it takes an id and an "
            f"incarnation from 1 up and 1 to {RAILS_MAX} rails"
        )
    for address in addresses:
        if not is_address(address):
            raise ControlError(
                f"node {member.node_id:x}/{member.incarnation} gives {address[:60]!r} as an "
                "address; it takes ADDRESS:PORT"
            )
    return member


def is_address(text: str) -> bool:
    """Tell whether `text` is ADDRESS:PORT, by its form alone: 192.0.2.1:7000, [::1]:7000."""
    found = _ADDRESS.fullmatch(text[:_ADDRESS_CHARACTERS_MAX])
    return found is not None and 1 <= int(found[1]) <= 65535


_ADDRESS_CHARACTERS_MAX = 262  # a name of DNS, which has at most 256, and a port
_ADDRESS = re.compile(r"(?:\[[\w:.%]+\]|[A-Za-z0-9][\w.-]*):(\d{1,5})", re.ASCII)
