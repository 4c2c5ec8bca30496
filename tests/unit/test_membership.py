"""Several Memberships that call each other directly: who proposes, who hears, who takes over."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import pytest

from hoplite_ray.control import membership as machine
from hoplite_ray.control.client import RefusedError, UnreachableError
from hoplite_ray.control.membership import Membership
from hoplite_ray.control.view import Member, NodeKey, View
from hoplite_ray.control.view_store import MemoryViewStore, ViewStore
from hoplite_ray.errors import ControlError


class Network:
    """Calls by address, as ControlClient makes them, without a network in between."""

    def __init__(self, store: ViewStore | None = None) -> None:
        self.store = store
        self.nodes: dict[str, Membership] = {}
        self.views: dict[str, list[View]] = {}
        self.secret_is_wrong = False
        self.dies_after_a_join = False
        self._cut: dict[str, asyncio.Event] = {}
        self._running: dict[str, asyncio.Task[None]] = {}
        self._ports = itertools.count(1)

    async def start(self, node_id: int, *ask: str, incarnation: int = 1) -> Membership:
        address = f"node{node_id}:{next(self._ports)}"
        views = self.views[address] = []
        node = Membership(
            Member(node_id, incarnation, address, (f"rail{node_id}:1",)),
            calls=self,  # type: ignore[arg-type]  # the part of ControlClient that is called
            on_view=views.append,
            store=self.store,
        )
        self._cut[address] = asyncio.Event()
        await node.enter(ask)
        self.nodes[address] = node
        self._running[address] = asyncio.create_task(node.run())
        return node

    def cut(self, node: Membership) -> None:
        """Nobody reaches `node` any more, and it stops."""
        del self.nodes[node.own.control]
        self._cut[node.own.control].set()
        self._running.pop(node.own.control).cancel()

    async def stop(self) -> None:
        for node in list(self.nodes.values()):
            self.cut(node)

    def at(self, address: str) -> Membership:
        if self.secret_is_wrong:
            raise RefusedError("the caller does not know this cluster's secret")
        if address not in self.nodes:
            raise UnreachableError(f"nobody at {address}")
        return self.nodes[address]

    async def join(self, address: str, member: Member, *, passed_on: bool = False) -> View:
        node = self.at(address)
        view = await node.admit(member, passed_on=passed_on)
        if self.dies_after_a_join:
            self.dies_after_a_join = False
            self.cut(node)
        return view

    async def leave(self, address: str, key: NodeKey) -> View:
        return await self.at(address).dismiss(key)

    async def report_death(
        self, address: str, key: NodeKey, *, reporter: int, known_epoch: int
    ) -> View:
        node = self.at(address)
        return await node.hear_of_death(key, reporter=reporter, known_epoch=known_epoch)

    async def watch(self, address: str, known_epoch: int) -> AsyncIterator[View]:
        views = self.at(address).views(known_epoch)
        cut = asyncio.create_task(self._cut[address].wait())
        try:
            while True:
                view = asyncio.ensure_future(anext(views))
                await asyncio.wait({view, cut}, return_when=asyncio.FIRST_COMPLETED)
                if cut.done():
                    view.cancel()
                    raise UnreachableError(f"{address} hung up")
                yield await view
        finally:
            cut.cancel()

    async def agree(self, *nodes: Membership) -> View:
        """Wait until all of `nodes` have one view, with exactly them in it; return it."""
        wanted = {each.own for each in nodes}
        for node in nodes:
            async for view in node.views(0):
                if {*view.members} == wanted:
                    break
        assert len({node.view for node in nodes}) == 1
        return nodes[0].view


Scenario = Callable[[Network], Coroutine[Any, Any, None]]


def play(scenario: Scenario, *, store: ViewStore | None = None) -> None:
    async def run() -> None:
        network = Network(store)
        try:
            await asyncio.wait_for(scenario(network), 10)
        finally:
            await network.stop()

    asyncio.run(run())


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_RETRY_S", 0.001)
    monkeypatch.setattr(machine, "_UNREACHABLE_S", 0.02)
    monkeypatch.setattr(machine, "_ENTER_S", 0.2)


STORES: list[Callable[[], ViewStore | None]] = [lambda: None, MemoryViewStore]
every_store = pytest.mark.parametrize("store", STORES, ids=["own memory", "common store"])


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
        net.cut(b)
        c.mark_dead(b.own.key)
        assert (await net.agree(a, c)).epoch == 4

    play(scenario, store=store())


@every_store
def test_the_next_oldest_takes_over_from_a_dead_proposer(store: Callable[[], ViewStore]) -> None:
    async def scenario(net: Network) -> None:
        a = await net.start(1)
        b = await net.start(2, a.own.control)
        c = await net.start(3, a.own.control)
        await net.agree(a, b, c)
        net.cut(a)
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
        net.cut(a)
        net.cut(nodes[0])
        nodes[2].mark_dead(nodes[0].own.key)
        nodes[2].mark_dead(a.own.key)
        await net.agree(*nodes[1:])

    play(scenario, store=store())


def test_a_joiner_whom_only_the_dead_proposer_knew_is_told() -> None:
    async def scenario(net: Network) -> None:
        a = await net.start(1)
        b = await net.start(2, a.own.control)
        await net.agree(a, b)
        net.dies_after_a_join = True
        lost = await net.start(3, a.own.control)
        assert (lost.view.epoch, b.view.epoch) == (3, 2)
        lost.mark_dead(a.own.key)
        b.mark_dead(a.own.key)
        await lost.told_dead.wait()
        net.cut(lost)
        again = await net.start(3, b.own.control, incarnation=2)
        await net.agree(b, again)

    play(scenario)


def test_a_member_whom_nobody_reaches_is_given_up() -> None:
    async def scenario(net: Network) -> None:
        a = await net.start(1)
        b = await net.start(2, a.own.control)
        await net.agree(a, b)
        net.cut(a)  # no data link tells
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
        assert not a.told_dead.is_set()
        await c.leave()  # nobody is left to tell
        assert c.view.has(c.own.key)

    play(scenario, store=store())


def test_a_node_that_is_held_for_dead_is_told_and_comes_back() -> None:
    async def scenario(net: Network) -> None:
        a = await net.start(1)
        b = await net.start(2, a.own.control)
        await net.agree(a, b)
        a.mark_dead(b.own.key)  # wrongly
        await b.told_dead.wait()
        assert net.views[b.own.control][-1].has(b.own.key)  # its native node keeps its last view
        await b.leave()
        net.cut(b)
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
        with pytest.raises(ControlError, match=r"could not join within .* nobody at nowhere:1"):
            await net.start(1, "nowhere:1")

    play(scenario)


def test_a_view_of_dead_members_only_is_started_over() -> None:
    async def scenario(net: Network) -> None:
        a = await net.start(1)
        b = await net.start(2)
        await net.agree(a, b)
        net.cut(a)
        net.cut(b)
        c = await net.start(1, incarnation=2)
        assert (await net.agree(c)).epoch == 3

    play(scenario, store=MemoryViewStore())


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
            await b.hear_of_death(b.own.key, reporter=1, known_epoch=3)
        unknown = await c.hear_of_death((77, 1), reporter=1, known_epoch=3)
        assert unknown == c.view  # nobody's death changes nothing

    play(scenario)


def test_a_store_that_is_always_a_step_ahead_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    class Ahead(MemoryViewStore):
        def compare_and_set(self, epoch: int, value: bytes) -> bool:
            return False

    async def scenario(net: Network) -> None:
        with pytest.raises(ControlError, match="changed faster than it could be read"):
            await net.start(1)

    play(scenario, store=Ahead())
