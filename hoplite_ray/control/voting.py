"""One member's votes on the view that is to follow its own. Values and a machine without I/O.

Views form a chain, and each link of it is one single-decree Paxos (Lamport, "Paxos Made Simple",
2001): the members of a view vote on the one view that comes next. A candidate first asks a quorum
to promise to take no lower ballot, and hears which views its members have accepted. Then it asks a
quorum to accept the accepted view, or its own view if there is none. So a view that may have been
decided is kept.

Nothing is stored: an incarnation that ends never votes again, because the next one is another
member. A vote is about the newest view only; a candidate with an older base gets the newer view.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from hoplite_ray.control import control_pb2 as pb
from hoplite_ray.control.view import NodeKey, View
from hoplite_ray.errors import ControlError

_ROUND_MAX = 2**62


class Ballot(NamedTuple):
    """One attempt of one candidate; later ones are higher, and no two are equal."""

    round: int = 0
    node_id: int = 0

    def to_proto(self) -> pb.Ballot:
        """Return the ballot as a message."""
        return pb.Ballot(round=self.round, node_id=self.node_id)

    @classmethod
    def from_proto(cls, message: pb.Ballot) -> Ballot:
        """Return what the message says.

        Raises:  ControlError for a round that no candidate ever reaches, and none could outbid.
        """
        if message.round >= _ROUND_MAX:
            raise ControlError(f"round {message.round} of node {message.node_id:x} is none")
        return cls(message.round, message.node_id)


NO_BALLOT = Ballot()


@dataclass(frozen=True, slots=True)
class VoteRequest:
    """A candidate asks for a promise, or, with a `proposal`, for its acceptance."""

    base: View
    ballot: Ballot
    proposal: View | None = None

    def to_proto(self, voter: NodeKey) -> pb.VoteRequest:
        """Return the request as a message to that incarnation of a node."""
        return pb.VoteRequest(
            node_id=voter[0],
            incarnation=voter[1],
            base=self.base.to_proto(),
            ballot=self.ballot.to_proto(),
            proposal=self.proposal.to_proto() if self.proposal else None,
        )

    @classmethod
    def from_proto(cls, message: pb.VoteRequest) -> VoteRequest:
        """Return what the message says.

        Raises:  ControlError if the proposal does not follow the base.
        """
        base = View.from_proto(message.base)
        proposal = View.from_proto(message.proposal) if message.HasField("proposal") else None
        if proposal is not None and proposal.epoch != base.epoch + 1:
            raise ControlError(f"view {proposal.epoch} can't follow view {base.epoch}")
        return cls(base, Ballot.from_proto(message.ballot), proposal)


@dataclass(frozen=True, slots=True)
class Vote:
    """An answer. `newer` is set, and nothing else counts, if the base is not the newest view."""

    granted: bool = False
    promised: Ballot = NO_BALLOT
    accepted: tuple[Ballot, View] | None = None
    newer: View | None = None
    why: str = ""  # it was not granted though no higher ballot was promised

    def to_proto(self, voter: NodeKey) -> pb.VoteReply:
        """Return the vote as a message from that incarnation of a node."""
        ballot, view = self.accepted or (None, None)
        return pb.VoteReply(
            node_id=voter[0],
            incarnation=voter[1],
            granted=self.granted,
            promised=self.promised.to_proto(),
            accepted_ballot=ballot.to_proto() if ballot else None,
            accepted=view.to_proto() if view else None,
            newer=self.newer.to_proto() if self.newer else None,
            why=self.why,
        )

    @classmethod
    def from_proto(cls, message: pb.VoteReply) -> Vote:
        """Return what the message says.

        Raises:  ControlError if one of its views is none.
        """
        accepted = None
        if message.HasField("accepted"):
            ballot = Ballot.from_proto(message.accepted_ballot)
            accepted = (ballot, View.from_proto(message.accepted))
        return cls(
            granted=message.granted,
            promised=Ballot.from_proto(message.promised),
            accepted=accepted,
            newer=View.from_proto(message.newer) if message.HasField("newer") else None,
            why=message.why,
        )


class Voter:
    """The promise and the accepted view of one member. Its Membership owns it."""

    def __init__(self) -> None:
        self._epoch = 0
        self._promised = NO_BALLOT
        self._accepted: tuple[Ballot, View] | None = None

    def vote(self, request: VoteRequest) -> Vote:
        """Answer a candidate.

        REQUIRES: the base is the newest view that this member knows, and never becomes older.
        """
        if request.base.epoch != self._epoch:
            self._epoch, self._promised, self._accepted = request.base.epoch, NO_BALLOT, None
        granted = request.ballot >= self._promised
        if granted:
            self._promised = request.ballot
            if request.proposal is not None:
                self._accepted = (request.ballot, request.proposal)
        return Vote(granted=granted, promised=self._promised, accepted=self._accepted)
