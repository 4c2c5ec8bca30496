"""The stores in which the next view is committed: one view follows another.

With Ray that is one key per epoch of the GCS key-value store (`TableViews`, plugin/seams/table.py).
Without Ray the members of the newest view vote (`VotedViews`, design decision 8).

A quorum is more than half of a view's members. Exactly half of them are a quorum too, if the
candidate is among them and the process of every other member is known to have ended. Any two
quorums share a member: of two halves that share none, each would have proven the other one dead.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Protocol

from hoplite_ray.control.client import ControlClient, NoQuorumError, OtherIncarnationError
from hoplite_ray.control.view import Member, View
from hoplite_ray.control.voting import NO_BALLOT, Ballot, Vote, VoteRequest
from hoplite_ray.errors import ControlError

_ROUNDS_MAX = 5  # each lost one means that another candidate was faster; then the caller retries
_REASONS_MAX = 4  # of members that did not vote for a view; a gRPC status holds some 8 KB
_OUTBID_S = 0.1  # the longest wait before the next round: some round trips of a busy machine


class ViewStore(Protocol):
    """One event loop owns it."""

    async def read(self, known: View) -> View:
        """Return a committed view; `known` if no newer one is heard of.

        Raises:  NoQuorumError if only the store could tell, and doesn't answer.
        """
        ...

    async def commit(self, base: View, proposal: View) -> View:
        """Have one view follow `base` and return it, or a newer one if more have.

        Raises:  NoQuorumError if too few members answer.
        """
        ...


class Table(Protocol):
    """A shared value that is replaced epoch by epoch. Calls may block and come from any thread."""

    def read(self) -> tuple[int, bytes]:
        """Return the newest epoch and its value; (0, b"") when nothing was ever stored."""
        ...

    def compare_and_set(self, epoch: int, value: bytes) -> bool:
        """Store `value` as `epoch`; False, and nothing stored, if there is one at >= `epoch`."""
        ...


class TableViews:
    """Views in a table that all nodes share, which decides alone."""

    def __init__(self, table: Table) -> None:
        self._table = table

    async def read(self, known: View) -> View:
        """Return the newest view of the table."""
        try:
            epoch, encoded = await asyncio.to_thread(self._table.read)
        except ControlError as error:
            raise NoQuorumError(str(error)) from error
        return View.from_bytes(encoded) if epoch else View()

    async def commit(self, base: View, proposal: View) -> View:
        """Store `proposal` unless an epoch after `base` is stored already."""
        encoded = proposal.to_bytes()
        try:
            stored = await asyncio.to_thread(self._table.compare_and_set, proposal.epoch, encoded)
        except ControlError as error:
            raise NoQuorumError(str(error)) from error
        return proposal if stored else await self.read(base)


class VotedViews:
    """Views on which their members vote; this node as the candidate."""

    def __init__(
        self,
        own: Member,
        *,
        calls: ControlClient,
        vote: Callable[[VoteRequest], Awaitable[Vote]],
    ) -> None:
        self._own = own
        self._calls = calls
        self._vote = vote  # our own
        self._round = 0
        self._turn = 0

    async def read(self, known: View) -> View:
        """Ask one of the other members, the next one each time."""
        others = [member for member in known.members if member != self._own]
        if not others:
            return known
        self._turn += 1
        try:
            return await self._calls.view(others[self._turn % len(others)].control)
        except ControlError:
            return known

    async def commit(self, base: View, proposal: View) -> View:
        """Be a candidate until one view is decided; the first view needs no vote.

        Cost:    two calls to every member at once, of the size of both views.
        """
        if not base.members:
            return proposal
        if self._own not in base.members:
            raise ControlError(f"{self._own} is no member of view {base.epoch} and can't change it")
        for _ in range(_ROUNDS_MAX):
            self._round += 1
            ballot = Ballot(self._round, self._own.node_id)
            promises = await self._ask_all(VoteRequest(base, ballot))
            if promises.newer is not None:
                return promises.newer
            if promises.is_quorum:
                chosen = promises.accepted_view or proposal
                accepted = await self._ask_all(VoteRequest(base, ballot, chosen))
                if accepted.newer is not None:
                    return accepted.newer
                if accepted.is_quorum:
                    return chosen
            await asyncio.sleep(random.random() * _OUTBID_S)
        raise ControlError(f"other candidates were faster after view {base.epoch}; ask again")

    async def _ask_all(self, request: VoteRequest) -> _Votes:
        """Ask every member at once, until enough have answered or all have been asked.

        Raises:  ControlError unless a quorum, a newer view or a higher ballot was found; and
                 NoQuorumError if not even enough for a quorum have answered.
        """
        votes = _Votes(request.base)
        votes.add(self._own, await self._vote(request))
        others = [member for member in request.base.members if member != self._own]
        asked = {asyncio.create_task(self._calls.vote(m, request)): m for m in others}
        pending = set(asked)
        try:
            while pending and not votes.is_done:
                done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                for answer in done:
                    votes.add_answer(asked[answer], answer)
            if not votes.is_done and votes.is_half:
                silent = [member for member in others if member not in votes.ended]
                have_ended = await asyncio.gather(*map(self._calls.has_ended, silent))
                votes.ended |= {m for m, ended in zip(silent, have_ended, strict=True) if ended}
        finally:
            for each in pending:
                each.cancel()
        self._round = max(self._round, votes.highest.round)
        if votes.is_done or votes.highest > request.ballot:
            return votes
        raise votes.failure


class _Votes:
    """The members' answers to one request."""

    def __init__(self, base: View) -> None:
        self._base = base
        self._answered: set[Member] = set()
        self._granted: set[Member] = set()
        self._why: dict[Member, str] = {}
        self._accepted: tuple[Ballot, View] | None = None
        self.highest = NO_BALLOT
        self.newer: View | None = None
        self.ended: set[Member] = set()

    def add(self, voter: Member, vote: Vote) -> None:
        if vote.newer is not None and vote.newer.epoch > self._base.epoch:
            self.newer = vote.newer
        self._answered.add(voter)
        self.highest = max(self.highest, vote.promised)
        if vote.granted:
            self._granted.add(voter)
        else:
            self._why[voter] = vote.why or "it has promised another candidate"
        if vote.accepted is not None:
            self._accepted = max(self._accepted or vote.accepted, vote.accepted, key=_ballot)

    def add_answer(self, voter: Member, answer: asyncio.Task[Vote]) -> None:
        try:
            self.add(voter, answer.result())
        except OtherIncarnationError as error:
            self.ended.add(voter)
            self._why[voter] = str(error)
        except ControlError as error:
            self._why[voter] = str(error)

    @property
    def accepted_view(self) -> View | None:
        """The proposal of the highest ballot that a voter has accepted."""
        return self._accepted and self._accepted[1]

    @property
    def is_half(self) -> bool:
        return 2 * len(self._granted) == len(self._base.members)

    @property
    def is_quorum(self) -> bool:
        members = set(self._base.members)
        is_half_of_all_left = self.is_half and members - self._granted <= self.ended
        return 2 * len(self._granted) > len(members) or is_half_of_all_left

    @property
    def is_done(self) -> bool:
        return self.is_quorum or self.newer is not None

    @property
    def failure(self) -> ControlError:
        count, epoch = len(self._base.members), self._base.epoch
        reasons = [f"{member}: {why}" for member, why in self._why.items()]
        if len(reasons) > _REASONS_MAX:
            reasons[_REASONS_MAX:] = [f"and {len(reasons) - _REASONS_MAX} more"]
        reasons_text = f"({'; '.join(reasons)})"
        if 2 * len(self._answered) > count:
            return ControlError(
                f"the members of view {epoch} disagree on who is alive; wait {reasons_text}"
            )
        return NoQuorumError(
            f"only {len(self._answered)} of the {count} members of view {epoch} answer, and a next "
            f"one takes {count // 2 + 1}; bring the others back, or end this node and start it "
            f"again beside those that go on {reasons_text}"
        )


def _ballot(accepted: tuple[Ballot, View]) -> Ballot:
    return accepted[0]
