"""The vote itself: whoever asks, whatever is lost, there is one answer."""

from __future__ import annotations

import asyncio
import random

from hypothesis import example, given, settings
from hypothesis import strategies as st

from hoplite_ray.control.client import UnreachableError
from hoplite_ray.control.view import Member, View
from hoplite_ray.control.views.view_store import VotedViews
from hoplite_ray.control.voting import Vote, Voter, VoteRequest
from hoplite_ray.errors import ControlError
from tests.unit.memberships import in_virtual_time


class Losing:
    """The part of ControlClient that a candidate uses; loses requests, and answers to them."""

    def __init__(self, voters: dict[Member, Voter], prng: random.Random) -> None:
        self._voters = voters
        self._prng = prng

    async def vote(self, voter: Member, request: VoteRequest) -> Vote:
        await self._travel()
        vote = self._voters[voter].vote(request)
        await self._travel()
        return vote

    async def has_ended(self, member: Member) -> bool:
        return False

    async def _travel(self) -> None:
        await asyncio.sleep(self._prng.random())
        if self._prng.random() < 0.4:
            raise UnreachableError("lost")


@settings(max_examples=300)
@example(seed=194, count=3, candidates=3)  # found a candidate that asked without a quorum's promise
@given(seed=st.integers(0, 2**32 - 1), count=st.integers(1, 6), candidates=st.integers(1, 4))
def test_all_candidates_get_the_same_view(seed: int, count: int, candidates: int) -> None:
    """Some give up at any point, which is a crash as seen by the others."""
    prng = random.Random(seed)
    random.seed(seed)
    members = tuple(
        Member(id_, 1, f"10.0.0.{id_}:1", ("10.0.0.1:2",)) for id_ in range(1, count + 1)
    )
    base = View(7, members)
    voters = {member: Voter() for member in members}
    calls = Losing(voters, prng)

    async def stand(candidate: Member) -> View | None:
        async def vote(request: VoteRequest) -> Vote:
            return voters[candidate].vote(request)

        store = VotedViews(candidate, calls=calls, vote=vote)  # type: ignore[arg-type]
        proposal = View(8, (candidate,))
        await asyncio.sleep(prng.random() * 3)
        for _ in range(prng.randrange(1, 20)):
            try:
                async with asyncio.timeout(prng.random() * 20):
                    return await store.commit(base, proposal)
            except (ControlError, TimeoutError):
                await asyncio.sleep(prng.random())
        return None

    async def all_stand() -> list[View | None]:
        return await asyncio.gather(*map(stand, members[:candidates]))

    decided = {view for view in in_virtual_time(all_stand()) if view is not None}
    assert len(decided) <= 1
    if count == 1:
        assert decided == {View(8, members)}
