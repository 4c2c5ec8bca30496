"""Views by vote on a bad network: one per epoch; a majority goes on, a minority says why not."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hoplite_ray.control.view import Member, View
from hoplite_ray.control.views.membership import Membership
from hoplite_ray.control.voting import Ballot, VoteRequest
from hoplite_ray.errors import ControlError
from tests.unit.memberships import Calls, Network, Scenario, play


async def together(net: Network, count: int) -> list[Membership]:
    """Start `count` nodes, ids from 1, oldest first, with native parts that see who is gone."""
    nodes = [await net.start(1)]
    for node_id in range(2, count + 1):
        nodes.append(await net.start(node_id, nodes[0].own.control))
    await net.agree(*nodes)
    return nodes


async def until(condition: Callable[[], object]) -> None:
    """Wait, in virtual time, until `condition` holds."""
    while not condition():  # noqa: ASYNC110 - nothing announces a shortage
        await asyncio.sleep(0.1)


def with_verdicts(scenario: Scenario) -> Scenario:
    """Add what native parts see and say."""

    async def both(net: Network) -> None:
        detecting = asyncio.create_task(net.detect())
        try:
            await scenario(net)
        finally:
            detecting.cancel()

    return both


def ids(view: View) -> list[int]:
    return [member.node_id for member in view.members]


def test_a_majority_goes_on_and_a_minority_says_that_it_does_not() -> None:
    async def scenario(net: Network) -> None:
        a, b, c, d, e = await together(net, 5)
        net.part({1, 2}, {3, 4, 5})  # the oldest are the minority
        view = await net.agree(c, d, e)
        assert view.epoch == 6
        await until(lambda: a.shortage and b.shortage)
        assert "only 2 of the 5 members of view 5 answer" in a.shortage
        assert (a.view.epoch, b.view.epoch) == (5, 5)
        assert not (c.shortage or d.shortage or e.shortage)
        with pytest.raises(ControlError, match="only 2 of the 5"):
            await net.start(6, b.own.control)  # nobody joins there
        joined = await net.start(7, d.own.control)
        await net.agree(c, d, e, joined)

    play(with_verdicts(scenario))


def test_a_minority_that_is_back_hears_that_it_is_dead() -> None:
    async def scenario(net: Network) -> None:
        a, b, c, d, e = await together(net, 5)
        net.part({1, 2}, {3, 4, 5})
        await net.agree(c, d, e)
        await asyncio.sleep(20)
        net.heal()
        await asyncio.gather(a.declared_dead.wait(), b.declared_dead.wait())
        assert a.view.epoch == b.view.epoch == 6
        await net.crash(a)
        await net.crash(b)
        asks = [member.control for member in a.view.members]
        again = [await net.start(n, *asks, incarnation=2) for n in (1, 2)]
        view = await net.agree(c, d, e, *again)
        assert ids(view) == [3, 4, 5, 1, 2]

    play(with_verdicts(scenario))


def test_of_two_halves_none_goes_on_and_both_do_when_healed() -> None:
    async def scenario(net: Network) -> None:
        nodes = await together(net, 4)
        net.part({1, 2}, {3, 4})
        await until(lambda: all(node.shortage for node in nodes))
        assert {node.view.epoch for node in nodes} == {4}
        net.heal()
        view = await net.agree(*nodes[:2])  # the older half; each had given up the other
        assert view.epoch == 5
        await asyncio.gather(*(node.declared_dead.wait() for node in nodes[2:]))
        assert not (nodes[0].shortage or nodes[1].shortage)

    play(with_verdicts(scenario))


def test_a_cut_between_two_ends_nothing() -> None:
    async def scenario(net: Network) -> None:
        a, b = await together(net, 2)
        net.part({1}, {2})
        await until(lambda: a.shortage and b.shortage)
        await asyncio.sleep(60)
        assert a.view.epoch == b.view.epoch == 2
        net.heal()
        await net.agree(a)
        await b.declared_dead.wait()

    play(with_verdicts(scenario))


@pytest.mark.parametrize("crashed", [0, 1], ids=["older", "younger"])
def test_of_two_the_one_that_is_left_goes_on(crashed: int) -> None:
    async def scenario(net: Network) -> None:
        nodes = await together(net, 2)
        await net.crash(nodes.pop(crashed))
        await net.agree(*nodes)

    play(with_verdicts(scenario))


def test_half_of_the_members_go_on_if_the_others_have_crashed() -> None:
    async def scenario(net: Network) -> None:
        a, b, c, d = await together(net, 4)
        await net.crash(a)
        await net.crash(c)
        await net.agree(b, d)

    play(with_verdicts(scenario))


def test_half_of_the_members_wait_if_one_of_the_others_may_live() -> None:
    async def scenario(net: Network) -> None:
        a, b, c, d = await together(net, 4)
        await net.crash(a)
        net.part({2, 4}, {3})
        await until(lambda: b.shortage)
        await asyncio.sleep(20)
        assert b.view.epoch == d.view.epoch == 4
        net.heal()
        await net.agree(b, d)  # c is removed by its own vote too, and hears of it
        await c.declared_dead.wait()

    play(with_verdicts(scenario))


def test_more_than_half_crash_at_once_and_the_others_say_so() -> None:
    async def scenario(net: Network) -> None:
        a, b, c, d, e = await together(net, 5)
        for node in (a, b, c):
            await net.crash(node)
        await until(lambda: d.shortage and e.shortage)
        await asyncio.sleep(60)
        assert d.view.epoch == e.view.epoch == 5

    play(with_verdicts(scenario))


def test_what_the_dead_may_have_decided_is_not_decided_again() -> None:
    async def scenario(net: Network) -> None:
        a, b, c, d, e = await together(net, 5)
        net.part({1, 2}, {3, 4, 5, 6})
        await net.agree(c, d, e)
        joined = await net.start(6, c.own.control)
        for node in (c, d, e):
            await net.crash(node)
        net.heal()
        await until(lambda: a.shortage and b.shortage and joined.shortage)
        await asyncio.sleep(60)  # all others of their view are dead, and yet it has a successor
        assert (a.view.epoch, b.view.epoch, joined.view.epoch) == (5, 5, 7)

    play(with_verdicts(scenario))


def test_a_restart_at_the_same_address_proves_the_earlier_life_dead() -> None:
    async def scenario(net: Network) -> None:
        a, b = await together(net, 2)
        await net.crash(b)
        again = await net.start(2, a.own.control, incarnation=2, address=b.own.control)
        view = await net.agree(a, again)
        assert view.epoch == 3

    play(scenario)  # before any native part has seen an end


@pytest.mark.parametrize("way", [(1, 2), (2, 1)], ids=["oldest speaks unheard", "oldest is deaf"])
def test_one_way_between_the_two_oldest(way: tuple[int, int]) -> None:
    async def scenario(net: Network) -> None:
        a, b, c = await together(net, 3)
        net.silence(*way)
        await b.declared_dead.wait()  # the third hears the oldest, and votes for none but it
        assert ids(a.view) == ids(c.view) == [1, 3]
        assert not a.declared_dead.is_set()

    play(with_verdicts(scenario))


@pytest.mark.parametrize("way", [(2, 3), (3, 2)], ids=["younger is deaf", "older is deaf"])
def test_one_way_between_two_who_are_not_the_oldest(way: tuple[int, int]) -> None:
    async def scenario(net: Network) -> None:
        a, b, c = await together(net, 3)
        net.silence(*way)
        await c.declared_dead.wait()  # the younger of the two
        assert ids(a.view) == [1, 2]
        assert not b.declared_dead.is_set()
        await net.crash(c)
        net.heal()
        await net.agree(a, b, await net.start(3, a.own.control, incarnation=2))

    play(with_verdicts(scenario))


def test_a_node_that_nobody_hears_is_removed_and_knows_why() -> None:
    async def scenario(net: Network) -> None:
        a, *others = await together(net, 4)
        for node in others:
            net.silence(1, node.own.node_id)
        await net.agree(*others)
        await until(lambda: a.shortage)  # it hears requests, but none of its calls is answered
        assert a.view.epoch == 4
        net.heal()
        await a.declared_dead.wait()

    play(with_verdicts(scenario))


def test_the_word_of_one_member_is_not_enough() -> None:
    async def scenario(net: Network) -> None:
        a, b, c, d = await together(net, 4)
        b.mark_dead(c.own.key)
        for _ in range(3):  # also not when it says so again
            assert await a.handle_death_report(c.own.key, reporter=b.own.node_id) == a.view
        assert a.view.epoch == 4
        assert await a.handle_death_report(c.own.key, reporter=77) == a.view  # no member
        assert await a.handle_death_report(c.own.key, reporter=3) == a.view  # itself
        d.mark_dead(c.own.key)
        await a.handle_death_report(c.own.key, reporter=d.own.node_id)
        await net.agree(a, b, d)
        await c.declared_dead.wait()
        assert await a.handle_death_report(c.own.key, reporter=2) == a.view  # late: nothing to do

    play(scenario)


def test_a_member_reports_no_death_in_the_name_of_others() -> None:
    async def scenario(net: Network) -> None:
        a, b, c, d, e = await together(net, 5)
        liar = Calls(net, e.own.node_id)
        for named in (b, d):
            with pytest.raises(ControlError, match=f"node {named.own.node_id} does not say that"):
                await liar.report_death(a.own.control, c.own.key, reporter=named.own.node_id)
        for candidate in (b, c):  # who votes for a view of its own takes the older ones for dead
            vote = await liar.vote(d.own, VoteRequest(a.view, Ballot(100, candidate.own.node_id)))
            assert "for it node 1/1 at node1:1 is alive" in vote.why
        with pytest.raises(ControlError, match="does not say that it leaves"):
            await liar.leave(a.own.control, c.own.key)
        assert {each.view.epoch for each in (a, b, c, d, e)} == {5}

    play(scenario)


def test_a_member_that_complains_alone_has_to_go_itself() -> None:
    async def scenario(net: Network) -> None:
        a, b, c, d = await together(net, 4)
        b.mark_dead(c.own.key)  # wrongly, and for good
        b.mark_dead(d.own.key)
        await b.declared_dead.wait()
        await net.agree(a, c, d)

    play(scenario)


def test_what_was_decided_is_kept_though_its_candidate_crashed_before_it_knew() -> None:
    async def scenario(net: Network) -> None:
        a, b, c, d, e = await together(net, 5)
        votes = 0

        async def die(name: str, node: Membership) -> None:
            nonlocal votes
            votes += name == "vote"
            if votes == 4 + 2:  # all have promised, and two have accepted: with itself, three
                net.after = None
                await net.crash(a)

        net.after = die
        joined = await net.start(6, a.own.control)  # by those who ask it for its vote
        assert ids(await net.agree(b, c, d, e, joined)) == [2, 3, 4, 5, 6]
        assert ids(net.committed[6]) == [1, 2, 3, 4, 5, 6]

    play(with_verdicts(scenario))


def test_two_candidates_at_once_decide_one_view() -> None:
    async def scenario(net: Network) -> None:
        a, b, c, d, e = await together(net, 5)
        for node in (b, c, d, e):  # each half thinks that it knows who has to decide
            node.mark_dead(a.own.key)
        joins = [net.start(6, a.own.control), net.start(7, b.own.control)]
        await asyncio.gather(*joins, return_exceptions=True)
        await a.declared_dead.wait()

    for seed in range(20):
        play(scenario, seed=seed)


def test_a_voter_keeps_its_word() -> None:
    async def scenario(net: Network) -> None:
        a, _, c = await together(net, 3)
        base = a.view
        proposal, other = View(4, base.members[:2]), View(4, base.members[:1])
        low, high = Ballot(100, 1), Ballot(101, 1)
        assert (await c.vote(VoteRequest(base, high))).granted
        assert not (await c.vote(VoteRequest(base, low))).granted
        assert not (await c.vote(VoteRequest(base, low, other))).granted
        assert (await c.vote(VoteRequest(base, high, proposal))).accepted == (high, proposal)
        assert (await c.vote(VoteRequest(base, Ballot(102, 1)))).accepted == (high, proposal)
        assert (await c.vote(VoteRequest(View(2, base.members[:2]), high))).newer == base
        with pytest.raises(ControlError, match="has no vote"):
            await c.vote(VoteRequest(View(9, base.members[:2]), high))
        with pytest.raises(ControlError, match="has no vote"):
            await c.vote(VoteRequest(base, Ballot(1, 77)))
        net.committed.clear()  # or the network would object before the voter does
        with pytest.raises(ControlError, match="two clusters"):
            await c.vote(VoteRequest(View(3, base.members[::-1]), high))
        net.committed.clear()
        refused = await c.vote(VoteRequest(base, Ballot(103, 2)))
        assert not refused.granted
        assert "for it node 1/1 at node1:1 is alive, and the oldest" in refused.why

    play(scenario)


def test_the_first_view_of_a_cluster_is_its_founders_own() -> None:
    async def scenario(net: Network) -> None:
        a = await net.start(1)
        stranger = Member(9, 1, "node9:1", ("rail9:1",))
        with pytest.raises(ControlError, match="has no vote"):
            await a.vote(VoteRequest(View(5, (stranger,)), Ballot(1, 9)))
        assert a.view.epoch == 1

    play(scenario)


@settings(max_examples=25)
@given(seed=st.integers(0, 2**32 - 1), count=st.integers(2, 6))
def test_any_schedule_of_cuts_has_one_view_per_epoch_and_ends_in_one(seed: int, count: int) -> None:
    """Cuts of both kinds come and go, and nobody crashes: all are members of one view at the end.

    That no epoch has two views is checked by every node whenever it adopts one.
    """

    async def scenario(net: Network) -> None:
        nodes = await together(net, count)
        choose = random.Random(seed)
        everybody = range(1, count + 3)
        lives = [net.keep(node.own.node_id, node) for node in nodes]
        lives += [net.keep(node_id) for node_id in everybody[count:]]
        for _ in range(choose.randrange(1, 6)):
            match choose.randrange(3):
                case 0:
                    net.heal()
                case 1:
                    side = {n for n in everybody if choose.random() < 0.5}
                    net.part(side, set(everybody) - side)
                case 2:
                    net.silence(choose.choice(everybody), choose.choice(everybody))
            await asyncio.sleep(choose.random() * 8)
        net.heal()

        def is_one() -> bool:
            views = {node.view for node in net.nodes.values()}
            is_short = any(node.shortage for node in net.nodes.values())
            return not is_short and len(views) == 1 and sorted(ids(views.pop())) == [*everybody]

        await until(is_one)
        for task in lives:
            task.cancel()

    play(with_verdicts(scenario), seed=seed)


@settings(max_examples=60)
@given(seed=st.integers(0, 2**32 - 1), count=st.integers(3, 7))
def test_any_schedule_of_crashes_and_cuts_has_one_view_per_epoch(seed: int, count: int) -> None:
    """In the end those that live have one view of exactly them, or say why they have not."""

    async def scenario(net: Network) -> None:
        await together(net, count)
        choose = random.Random(seed)
        for _ in range(choose.randrange(1, 5)):
            match choose.randrange(3):
                case 0 if len(net.nodes) > 1:
                    await net.crash(choose.choice(list(net.nodes.values())))
                case 1:
                    side = {n for n in range(1, count + 1) if choose.random() < 0.5}
                    net.part(side, set(range(1, count + 1)) - side)
                case _:
                    net.heal()
            await asyncio.sleep(choose.random() * 6)
        net.heal()

        def is_settled() -> bool:
            alive = [node for node in net.nodes.values() if not node.declared_dead.is_set()]
            views = {node.view for node in alive}
            agreed = len(views) == 1 and {*views.pop().members} == {node.own for node in alive}
            return agreed or all(node.shortage for node in alive)

        await until(is_settled)

    play(with_verdicts(scenario), seed=seed)
