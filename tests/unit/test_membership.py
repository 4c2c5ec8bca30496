"""Several Memberships that call each other: who proposes, who hears, who takes over."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

import pytest

from hoplite_ray.control.client import RefusedError
from hoplite_ray.control.view import Member, View
from hoplite_ray.control.views.membership import Membership
from hoplite_ray.control.views.view_store import ViewStore
from hoplite_ray.errors import ControlError
from tests.unit.memberships import Network, SharedViews, play

STORES: list[Callable[[], ViewStore | None]] = [lambda: None, SharedViews]
every_store = pytest.mark.parametrize("store", STORES, ids=["by votes", "common store"])


@every_store
def test_joiners_of_any_member_end_with_the_same_view(store: Callable[[], ViewStore]) -> None:
    async def scenario(net: Network) -> None:
        a = await net.start(1)
        b = await net.start(2, a.own.control)
        c = await net.start(3, b.own.control)
        view = await net.agree(a, b, c)
        assert [m.node_id for m in view.members] == [1, 2, 3]
        assert net.views[a.own.control][-1] == view

    play(scenario, store=store())


@every_store
def test_many_join_at_once(store: Callable[[], ViewStore]) -> None:
    async def scenario(net: Network) -> None:
        first = await net.start(1)
        others = await asyncio.gather(*(net.start(n, first.own.control) for n in range(2, 9)))
        view = await net.agree(first, *others)
        assert view.epoch == 8

    play(scenario, store=store())


@every_store
def test_a_dead_member_is_removed_by_the_oldest(store: Callable[[], ViewStore]) -> None:
    async def scenario(net: Network) -> None:
        a = await net.start(1)
        b = await net.start(2, a.own.control)
        c = await net.start(3, a.own.control)
        await net.agree(a, b, c)
        await net.crash(b)
        c.mark_dead(b.own.key)
        assert (await net.agree(a, c)).epoch == 4
        assert net.links[1] == net.links[3] == {a.own.control, c.own.control}

    play(scenario, store=store())


@every_store
def test_the_next_oldest_takes_over_from_a_dead_proposer(store: Callable[[], ViewStore]) -> None:
    async def scenario(net: Network) -> None:
        a = await net.start(1)
        b = await net.start(2, a.own.control)
        c = await net.start(3, a.own.control)
        await net.agree(a, b, c)
        await net.crash(a)
        c.mark_dead(a.own.key)  # b does not know yet; the report tells it
        await net.agree(b, c)
        d = await net.start(4, c.own.control)
        await net.agree(b, c, d)

    play(scenario, store=store())


@every_store
def test_two_oldest_die_together(store: Callable[[], ViewStore]) -> None:
    async def scenario(net: Network) -> None:
        a = await net.start(1)
        nodes = [await net.start(n, a.own.control) for n in range(2, 5)]
        await net.agree(a, *nodes)
        await net.crash(a)
        await net.crash(nodes[0])
        nodes[2].mark_dead(nodes[0].own.key)
        nodes[2].mark_dead(a.own.key)
        await net.agree(*nodes[1:])

    play(scenario, store=store())


def test_what_a_proposer_decided_before_it_died_stays_decided() -> None:
    async def scenario(net: Network) -> None:
        a = await net.start(1)
        b = await net.start(2, a.own.control)
        await net.agree(a, b)

        async def die(name: str, node: Membership) -> None:
            if name == "join":
                net.after = None
                await net.crash(node)

        net.after = die
        joined = await net.start(3, a.own.control)
        assert (joined.view.epoch, b.view.epoch) == (3, 2)  # b has only accepted it
        b.mark_dead(a.own.key)
        joined.mark_dead(a.own.key)
        assert (await net.agree(b, joined)).epoch == 4

    play(scenario)


def test_a_member_whom_nobody_reaches_is_given_up() -> None:
    async def scenario(net: Network) -> None:
        a = await net.start(1)
        b = await net.start(2, a.own.control)
        await net.agree(a, b)
        await net.crash(a)  # no data link tells
        await net.agree(b)

    play(scenario)


@every_store
def test_whoever_leaves_is_gone_from_every_view(store: Callable[[], ViewStore]) -> None:
    async def scenario(net: Network) -> None:
        a = await net.start(1)
        b = await net.start(2, a.own.control)
        c = await net.start(3, a.own.control)
        await net.agree(a, b, c)
        await b.leave()
        await net.agree(a, c)
        await a.leave()  # the proposer itself
        await net.agree(c)
        assert not a.declared_dead.is_set()
        await c.leave()  # nobody is left to tell, but who comes later
        if net.store is None:
            assert c.view.has(c.own.key)
        else:
            assert (await net.store.read(View())).members == ()
            await net.crash(c)
            assert (await net.start(3, incarnation=2)).view.epoch == c.view.epoch + 1

    play(scenario, store=store())


def test_all_leave_at_once_and_the_store_names_next_to_nobody() -> None:
    async def scenario(net: Network) -> None:
        nodes = [await net.start(1)]
        nodes += [await net.start(each, nodes[0].own.control) for each in range(2, 21)]
        await net.agree(*nodes)

        async def end(node: Membership) -> None:
            await asyncio.sleep(0.1 * net.prng.random())
            with suppress(ControlError, TimeoutError):
                await asyncio.wait_for(node.leave(), 2.0)
            await net.crash(node)

        await asyncio.gather(*map(end, nodes))
        left.append(len((await store.read(View())).members))

    left: list[int] = []
    for seed in range(5):
        store = SharedViews()
        play(scenario, store=store, seed=seed)
    assert max(left) < 5, left


def test_a_node_that_is_held_for_dead_is_told_and_comes_back() -> None:
    async def scenario(net: Network) -> None:
        a = await net.start(1)
        b = await net.start(2, a.own.control)
        await net.agree(a, b)
        a.mark_dead(b.own.key)  # wrongly
        await b.declared_dead.wait()
        assert net.views[b.own.control][-1].has(b.own.key)  # its native node keeps its last view
        await b.leave()
        await net.crash(b)
        again = await net.start(2, a.own.control, incarnation=2)
        await net.agree(a, again)

    play(scenario)


def test_a_dead_life_cannot_join_again() -> None:
    async def scenario(net: Network) -> None:
        a = await net.start(1)
        b = await net.start(2, a.own.control, incarnation=5)
        await net.agree(a, b)
        with pytest.raises(ControlError, match=r"could not join within .* start it with incarna"):
            await net.start(2, a.own.control, incarnation=4)

    play(scenario)


def test_a_wrong_secret_is_refused_at_once() -> None:
    async def scenario(net: Network) -> None:
        a = await net.start(1)
        net.secret_is_wrong = True
        with pytest.raises(RefusedError):
            await net.start(2, a.own.control)
        net.secret_is_wrong = False

    play(scenario)


def test_nobody_at_the_address_to_join() -> None:
    async def scenario(net: Network) -> None:
        with pytest.raises(ControlError, match=r"could not join within .* nobody at node9:1"):
            await net.start(1, "node9:1")

    play(scenario)


def test_a_view_of_dead_members_only_is_started_over() -> None:
    async def scenario(net: Network) -> None:
        a = await net.start(1)
        b = await net.start(2)
        await net.agree(a, b)
        await net.crash(a)
        await net.crash(b)
        c = await net.start(1, incarnation=2)
        assert (await net.agree(c)).epoch == 3

    play(scenario, store=SharedViews())


@pytest.mark.parametrize("is_cut", [False, True], ids=["they refuse", "they say nothing"])
def test_who_come_at_once_to_a_view_of_dead_members_end_in_one_view(is_cut: bool) -> None:
    async def scenario(net: Network) -> None:
        if is_cut:
            for gone in store.view.members:
                for comer in (1, 2, 3):
                    net.silence(comer, gone.node_id)
        nodes = await asyncio.gather(*(net.start(each) for each in (1, 2, 3)))
        await net.agree(*nodes)
        assert not any(each.declared_dead.is_set() for each in nodes)

    for seed in range(10):
        store = SharedViews()
        store.view = View(7, tuple(Member(100 + i, 1, f"node{100 + i}:1", ()) for i in range(3)))
        play(scenario, store=store, seed=seed)


def test_a_view_of_forty_that_say_nothing_is_started_over_in_time() -> None:
    async def scenario(net: Network) -> None:
        for gone in store.view.members:
            net.silence(1, gone.node_id)
        node = await net.start(1)
        assert node.view.members == (node.own,)
        assert asyncio.get_running_loop().time() < 12

    store = SharedViews()
    store.view = View(7, tuple(Member(100 + i, 1, f"node{100 + i}:1", ()) for i in range(40)))
    play(scenario, store=store)


def test_a_store_that_holds_what_is_no_view_ends_nobody() -> None:
    class Scrawled(SharedViews):
        is_scrawled = False

        async def read(self, known: View) -> View:
            return View.from_bytes(b"scrawl") if self.is_scrawled else await super().read(known)

    async def scenario(net: Network) -> None:
        a = await net.start(1)
        store.is_scrawled = True
        await asyncio.sleep(5)
        assert "another program writes to it" in a.shortage
        store.is_scrawled = False
        await asyncio.sleep(5)
        assert not a.shortage

    store = Scrawled()
    play(scenario, store=store)


def test_who_encrypts_data_and_who_does_not_are_refused_by_each_other() -> None:
    async def scenario(net: Network) -> None:
        a = await net.start(1)
        b = await net.start(2, a.own.control)
        await net.agree(a, b)
        joiner = Member(9, 1, "node9:1", ("rail9:1",), data_tls=True)
        for member in (a, b):
            with pytest.raises(RefusedError, match=r"has data_tls on, and .* has it off; give all"):
                await member.admit(joiner, passed_on=False)
        assert not a.view.has(joiner.key)

    play(scenario)


def test_only_the_oldest_decides() -> None:
    async def scenario(net: Network) -> None:
        a = await net.start(1)
        b = await net.start(2, a.own.control)
        c = await net.start(3, a.own.control)
        await net.agree(a, b, c)
        with pytest.raises(ControlError, match="ask again"):
            await b.admit(Member(9, 1, "node9:1", ()), passed_on=True)
        with pytest.raises(ControlError, match="is not the oldest"):
            await b.dismiss(c.own.key)
        with pytest.raises(ControlError, match="is alive"):
            await b.handle_death_report(b.own.key, reporter=1)
        unknown = await c.handle_death_report((77, 1), reporter=1)
        assert unknown == c.view  # nobody's death changes nothing

    play(scenario)


def test_a_store_that_is_always_a_step_ahead_is_an_error() -> None:
    class Ahead(SharedViews):
        async def commit(self, base: View, proposal: View) -> View:
            return base

    async def scenario(net: Network) -> None:
        with pytest.raises(ControlError, match="changed faster than it could be read"):
            await net.start(1)

    play(scenario, store=Ahead())
