"""Memberships on a network in memory: real ones, on a clock that jumps to whatever comes next.

Messages take their time, from a seed; each way between two nodes can be cut alone, and a call whose
answer is lost was executed. A node crashes between any two of its steps. What a node's native part
tells of its peers is played by `Network.detect`.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import selectors
from collections.abc import AsyncIterator, Callable, Collection, Coroutine
from contextlib import aclosing, suppress
from typing import Any, TypeVar

from hoplite_ray.control.client import OtherIncarnationError, RefusedError, UnreachableError
from hoplite_ray.control.view import Member, NodeKey, View
from hoplite_ray.control.views.membership import Membership
from hoplite_ray.control.views.view_store import ViewStore
from hoplite_ray.control.voting import Vote, VoteRequest
from hoplite_ray.errors import ControlError

T = TypeVar("T")

_LEG_S = 0.01  # the longest that a message is under way
_DEADLINE_S = 1.0  # of a call
_DETECT_S = 3.0  # the native part's patience with a link that is down
LIMIT_S = 900.0  # of virtual time: far more than anything here takes


class _Jump(selectors.DefaultSelector):  # type: ignore[misc,valid-type]
    """Waits for nothing: where the loop would wait, its clock is set to the end of the wait."""

    now_s = 0.0

    def select(self, timeout: float | None = None) -> Any:
        ready = super().select(0)
        if not ready:
            assert timeout is not None, "nobody waits for anything that will ever come"
            self.now_s += timeout
        return ready


class _VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._jump = _Jump()
        super().__init__(self._jump)

    def time(self) -> float:
        return self._jump.now_s


class SharedViews:
    """A store that all nodes share and always reach, as Ray's."""

    def __init__(self) -> None:
        self.view = View()

    async def read(self, known: View) -> View:
        return self.view

    async def commit(self, base: View, proposal: View) -> View:
        if proposal.epoch > self.view.epoch:
            self.view = proposal
        return self.view


class Network:
    """Nodes by their control address; one per id at a time."""

    def __init__(self, store: ViewStore | None = None, *, seed: int = 0) -> None:
        self.store = store
        self.prng = random.Random(seed)
        self.nodes: dict[str, Membership] = {}
        self.views: dict[str, list[View]] = {}
        self.links: dict[int, set[str]] = {}  # by node id, whom it has links to at most
        self.committed: dict[int, View] = {}  # as any node has ever taken it for committed
        self.secret_is_wrong = False
        self.after: Callable[[str, Membership], Coroutine[Any, Any, None]] | None = None
        self._open: set[str] = set()
        self._cut: set[tuple[int, int]] = set()  # from one id to another
        self._running: dict[str, list[asyncio.Task[Any]]] = {}
        self._ports = itertools.count(1)

    # ---- nodes

    async def start(
        self, node_id: int, *ask: str, incarnation: int = 1, address: str | None = None
    ) -> Membership:
        """Start one life of a node; returns when it is a member."""
        address = address or f"node{node_id}:{next(self._ports)}"
        views = self.views[address] = []
        own = Member(node_id, incarnation, address, (f"rail{node_id}:1",))
        node = _Recorded(
            own,
            calls=Calls(self, node_id),  # type: ignore[arg-type]  # what is called of ControlClient
            on_view=views.append,
            store=self.store,
        )
        node.committed = self.committed
        self.nodes[address] = node
        self._running[address] = []
        try:
            await self._own(address, node.join(ask))
        except ControlError:
            await self.crash(node)
            raise
        self._open.add(address)
        self._spawn(address, node.run())
        return node

    def keep(self, node_id: int, node: Membership | None = None) -> asyncio.Task[None]:
        """Have a node, if it runs already, live one life after the other as hoplite_ray.node does.

        Whom it asks are those that happen to be members, so that it finds them in the end.
        """

        async def live(node: Membership | None) -> None:
            while True:
                if node is not None:
                    await node.declared_dead.wait()
                    await self.crash(node)
                incarnation = node.own.incarnation if node else 0
                node = None
                while node is None:
                    incarnation += 1
                    with suppress(ControlError):
                        node = await self.start(node_id, *self._open, incarnation=incarnation)

        return asyncio.create_task(live(node))

    async def crash(self, node: Membership) -> None:
        """End the process: nothing of it goes on, and its machine says that nobody listens."""
        address = node.own.control
        if self.nodes.get(address) is node:
            del self.nodes[address]
            self._open.discard(address)
        ended = self._running.pop(address, [])
        for task in ended:
            task.cancel()
        if ended:
            await asyncio.wait(ended)

    async def stop(self) -> None:
        for node in list(self.nodes.values()):
            await self.crash(node)

    # ---- the network

    def part(self, *sides: set[int]) -> None:
        """Cut every way between nodes of different sides; the other ways are whole."""
        self._cut = {
            (a, b) for one, other in itertools.permutations(sides, 2) for a in one for b in other
        }

    def silence(self, source: int, target: int) -> None:
        """What `source` says does not reach `target` any more; the other way is as it was."""
        self._cut.add((source, target))

    def heal(self) -> None:
        self._cut.clear()

    async def detect(self) -> None:
        """Tell the nodes who is dead as their native parts do, until cancelled."""
        cut_since: dict[tuple[int, int], float] = {}
        while True:
            await asyncio.sleep(0.3)
            now_s = asyncio.get_running_loop().time()
            ways = {(min(way), max(way)) for way in self._cut}
            cut_since = {pair: cut_since.get(pair, now_s) for pair in ways}
            alive = {node.own.key for node in self.nodes.values()}
            for node in list(self.nodes.values()):
                for member in node.view.members:
                    pair = (
                        min(node.own.node_id, member.node_id),
                        max(node.own.node_id, member.node_id),
                    )
                    is_cut = pair in cut_since
                    has_waited = is_cut and now_s - cut_since[pair] > _DETECT_S
                    if has_waited or (not is_cut and member.key not in alive):
                        node.mark_dead(member.key)

    async def leg(self, source: int, address: str, *, back: bool = False) -> None:
        target = int(address.removeprefix("node").partition(":")[0])
        way = (target, source) if back else (source, target)
        await asyncio.sleep(self.prng.random() * _LEG_S)
        if way in self._cut:
            await asyncio.sleep(_DEADLINE_S)
            raise UnreachableError(f"{address} did not answer")

    def at(self, address: str) -> Membership:
        if self.secret_is_wrong:
            raise RefusedError("the caller does not know this cluster's secret")
        if address not in self.nodes:
            raise UnreachableError(f"nobody at {address}")
        return self.nodes[address]

    async def call(
        self,
        source: int,
        address: str,
        name: str,
        act: Callable[[Membership], Coroutine[Any, Any, T]],
    ) -> T:
        """Execute a call in its target, and bring its answer back if both ways are whole."""
        await self.leg(source, address)
        node = self.at(address)
        if name != "vote" and address not in self._open:
            raise ControlError("this node has not joined yet; ask again")
        failure: ControlError | None = None
        try:
            async with asyncio.timeout(5 * _DEADLINE_S):
                answer = await self._own(address, act(node))
            if self.after is not None:
                await self.after(name, node)
        except TimeoutError:
            raise UnreachableError(f"{address} took too long") from None
        except ControlError as error:
            failure = error
        await self.leg(source, address, back=True)
        if failure is not None:
            raise failure
        return answer

    async def _own(self, address: str, act: Coroutine[Any, Any, T]) -> T:
        """Do `act` in the node at `address`: it ends when the node does."""
        task = self._spawn(address, act)
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError:  # nobody waits for the answer; it is executed all the same
            task.add_done_callback(lambda task: task.cancelled() or task.exception())
            raise
        if task.cancelled():
            raise UnreachableError(f"{address} hung up")
        return task.result()

    def _spawn(self, address: str, act: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.create_task(act)
        running = self._running.setdefault(address, [])
        running[:] = [each for each in running if not each.done()]
        running.append(task)
        return task

    async def agree(self, *nodes: Membership) -> View:
        """Wait until all of `nodes` have one view, with exactly them in it; return it."""
        wanted = {each.own for each in nodes}
        for node in nodes:
            async with aclosing(node.views(0)) as views:
                async for view in views:
                    if {*view.members} == wanted:
                        break
        assert len({node.view for node in nodes}) == 1
        return nodes[0].view


class _Recorded(Membership):
    """Checks, of every view that a node takes for committed, that nobody has another one."""

    committed: dict[int, View]

    def _adopt(self, view: View) -> None:
        if view.members:
            assert self.committed.setdefault(view.epoch, view) == view
        super()._adopt(view)


class Calls:
    """The part of ControlClient that memberships use, from one node of the network."""

    def __init__(self, network: Network, source: int) -> None:
        self._network = network
        self._source = source

    def keep_only(self, addresses: Collection[str]) -> None:
        self._network.links[self._source] = {*addresses}

    async def _call(
        self, address: str, name: str, act: Callable[[Membership], Coroutine[Any, Any, T]]
    ) -> T:
        return await self._network.call(self._source, address, name, act)

    async def join(self, address: str, member: Member, *, passed_on: bool = False) -> View:
        return await self._call(
            address, "join", lambda node: node.admit(member, passed_on=passed_on)
        )

    async def leave(self, address: str, key: NodeKey) -> View:
        return await self._call(address, "leave", lambda node: node.dismiss(key))

    async def report_death(self, address: str, key: NodeKey, *, reporter: int) -> View:
        return await self._call(
            address, "report_death", lambda node: node.handle_death_report(key, reporter=reporter)
        )

    async def confirm_death(self, reporter: Member, key: NodeKey) -> bool:
        async def is_over(node: Membership) -> bool:
            return node.own == reporter and node.is_over(key)

        return await self._call(reporter.control, "confirm_death", is_over)

    async def vote(self, voter: Member, request: VoteRequest) -> Vote:
        async def vote(node: Membership) -> Vote:
            if node.own.key != voter.key:
                raise OtherIncarnationError(f"{node.own} is here")
            return await node.vote(request)

        return await self._call(voter.control, "vote", vote)

    async def has_ended(self, member: Member) -> bool:
        try:
            for back in (False, True):
                await self._network.leg(self._source, member.control, back=back)
        except UnreachableError:
            return False
        return member.control not in self._network.nodes

    async def view(self, address: str) -> View:
        async def view(node: Membership) -> View:
            return node.view

        return await self._call(address, "view", view)

    async def watch(
        self, address: str, known_epoch: int, *, connect_s: float
    ) -> AsyncIterator[View]:
        while True:
            view = await self.view(address)
            if view.epoch > known_epoch:
                known_epoch = view.epoch
                yield view
            await asyncio.sleep(0.1)


Scenario = Callable[[Network], Coroutine[Any, Any, None]]


def play(scenario: Scenario, *, store: ViewStore | None = None, seed: int = 0) -> Network:
    """Run a scenario in virtual time; returns the network for what is to be asked afterwards."""
    network = Network(store, seed=seed)
    random.seed(seed)

    async def run() -> None:
        try:
            async with asyncio.timeout(LIMIT_S):
                await scenario(network)
        finally:
            await network.stop()

    in_virtual_time(run())
    return network


def in_virtual_time(work: Coroutine[Any, Any, T]) -> T:
    """Run `work` on a clock that jumps."""
    with asyncio.Runner(loop_factory=_VirtualLoop) as runner:
        return runner.run(work)
