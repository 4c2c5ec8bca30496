"""One node's part in keeping the same view on all of them (design decision 10).

The oldest live member proposes every change and commits it by compare-and-set in the view store;
any member takes over when the older ones are dead. Every member watches the oldest of the others,
so that each view reaches all, and a node that was wrongly taken for dead hears of it. A death is
final for that life of the node: whoever hears of his own joins again with the next incarnation.

Until views are voted on, two halves of a network that is cut may each keep a view of their own when
no common store is used.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence

from hoplite_ray.control.client import ControlClient, RefusedError, UnreachableError
from hoplite_ray.control.view import Member, NodeKey, View
from hoplite_ray.control.view_store import MemoryViewStore, ViewStore
from hoplite_ray.errors import ControlError

_logger = logging.getLogger(__name__)

_RETRY_S = 0.2  # between two attempts at a peer: well below what a person notices, kind to the CPU
_ENTER_S = 15.0  # a cluster whose proposer has just died answers after _UNREACHABLE_S
# A member whose control service refuses for so long is dead, even if no data link to it ever was
# up whose end could tell. Longer than a restart of the service, shorter than a user's patience.
_UNREACHABLE_S = 3.0
_CHANGE_ATTEMPTS_MAX = 100  # each lost race means that another proposer made progress


class Membership:
    """Joins, follows the view, proposes when it is this node's turn. One event loop owns it."""

    def __init__(
        self,
        own: Member,
        *,
        calls: ControlClient,
        on_view: Callable[[View], None],
        store: ViewStore | None = None,
    ) -> None:
        self.own = own
        self.view = View()
        self.told_dead = asyncio.Event()
        self._calls = calls
        self._on_view = on_view
        self._memory = MemoryViewStore()
        self._store: ViewStore = self._memory if store is None else store
        self._dead: set[NodeKey] = set()
        # The highest epoch that the dead proposer is known to have reached without us. Ours must
        # pass it, or whoever has that view would take ours for an older one.
        self._epoch_missed = 0
        self._leaving = False
        self._one_change = asyncio.Lock()
        self._changed = asyncio.Event()  # set once, then replaced, at each change of view or dead

    # ---- what this node itself wants

    async def enter(self, ask: Sequence[str] = ()) -> View:
        """Become a member, through `ask` or through those whom the view store names.

        Returns: the view that has this node; a first node makes it itself.
        Raises:  ControlError if nobody lets it in for 15 s; RefusedError at once.
        """
        refusals: dict[str, ControlError] = {}
        rounds = 0
        deadline_s = asyncio.get_running_loop().time() + _ENTER_S
        while asyncio.get_running_loop().time() < deadline_s:
            stored = await self._read()
            others = [m.control for m in stored.members if m.node_id != self.own.node_id]
            addresses = others or ask
            if not addresses:
                return await self._change(lambda view: view.with_member(self.own))
            refusals = {}
            for address in addresses:
                try:
                    view = await self._calls.join(address, self.own)
                except RefusedError:
                    raise
                except ControlError as error:
                    refusals[address] = error
                else:
                    self._adopt(view)
                    return view
            rounds += 1
            if others and rounds > 1 and _all_unreachable(refusals):
                _logger.warning("no member answers: %s; starting over alone", refusals)
                return await self._change(lambda view: View(view.epoch, (self.own,)))
            await asyncio.sleep(_RETRY_S)
        reasons = "; ".join(str(error) for error in refusals.values())
        raise ControlError(f"{self.own} could not join within {_ENTER_S:.0f} s: {reasons}")

    async def leave(self) -> None:
        """Stop being a member; the others hear of it from the next view."""
        self._leaving = True
        others = [m for m in self.view.members if m != self.own and m.key not in self._dead]
        if not others or self.told_dead.is_set():
            return
        if self._proposer() == self.own:
            await self._change(lambda view: view.without(self.own.key))
        else:
            await self._calls.leave(self._proposer().control, self.own.key)

    def mark_dead(self, key: NodeKey) -> None:
        """Take the end of that life of a node as certain; `run` tells the others."""
        if key != self.own.key and key not in self._dead:
            self._dead.add(key)
            self._notify()

    async def run(self) -> None:
        """Follow the view and have the dead removed, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._follow())
            tasks.create_task(self._bury())

    # ---- what other nodes ask

    async def admit(self, joiner: Member, *, passed_on: bool) -> View:
        """Let `joiner` in, or have the proposer do it."""
        proposer = self._proposer()
        if proposer == self.own:
            return await self._change(lambda view: view.with_member(joiner))
        if passed_on:
            raise ControlError(f"{self.own} takes {proposer} for the oldest; ask again")
        return await self._calls.join(proposer.control, joiner, passed_on=True)

    async def dismiss(self, key: NodeKey) -> View:
        """Let that member go."""
        proposer = self._proposer()
        if proposer.key not in (self.own.key, key):
            raise ControlError(f"{self.own} is not the oldest; ask {proposer}")
        return await self._change(lambda view: view.without(key))

    async def hear_of_death(self, key: NodeKey, *, reporter: int, known_epoch: int) -> View:
        """Remove a member that `reporter`, whose view is of `known_epoch`, has seen die."""
        if key == self.own.key:
            raise ControlError(f"{self.own} is alive")
        _logger.warning("node %x/%d is dead, says node %x", *key, reporter)
        is_stranger = all(member.node_id != reporter for member in self.view.members)
        if is_stranger or known_epoch > self.view.epoch:
            self._epoch_missed = max(self._epoch_missed, known_epoch)
        self.mark_dead(key)
        if self._proposer() == self.own:
            return await self._change(lambda view: view.without(key))
        return self.view

    async def views(self, known_epoch: int) -> AsyncIterator[View]:
        """Yield the view each time it is newer than the last one known."""
        while True:
            changed = self._changed
            if self.view.epoch > known_epoch:
                known_epoch = self.view.epoch
                yield self.view
            else:
                await changed.wait()

    # ---- how

    def _proposer(self) -> Member:
        return next((m for m in self.view.members if m.key not in self._dead), self.own)

    def _watched(self) -> Member | None:
        others = (m for m in self.view.members if m.key not in self._dead and m != self.own)
        return next(others, None)

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def _read(self) -> View:
        epoch, encoded = await asyncio.to_thread(self._store.read)
        return View.from_bytes(encoded) if epoch else View()

    async def _change(self, edit: Callable[[View], View]) -> View:
        """Commit `edit` of the newest view, unless that changes nothing."""
        async with self._one_change:
            for _ in range(_CHANGE_ATTEMPTS_MAX):
                current = await self._read()
                members = edit(current).members
                if members == current.members and current.epoch > self._epoch_missed:
                    self._adopt(current)
                    return current
                proposal = View(max(current.epoch, self._epoch_missed) + 1, members)
                encoded = proposal.to_bytes()
                if await asyncio.to_thread(self._store.compare_and_set, proposal.epoch, encoded):
                    self._adopt(proposal)
                    return proposal
        raise ControlError("the view changed faster than it could be read; ask again")

    async def _report(self, proposer: Member, key: NodeKey) -> View:
        return await self._calls.report_death(
            proposer.control, key, reporter=self.own.node_id, known_epoch=self.view.epoch
        )

    async def _remove(self, dead: Sequence[NodeKey]) -> None:
        await self._change(lambda view: view.without(*dead))

    def _adopt(self, view: View) -> None:
        """Make `view` this node's, if it is newer."""
        if view.epoch <= self.view.epoch:
            return
        was_member = self.view.has(self.own.key)
        self._memory.compare_and_set(view.epoch, view.to_bytes())
        self.view = view
        self._dead &= {member.key for member in view.members}
        _logger.info("view %d: %s", view.epoch, ", ".join(map(str, view.members)))
        if view.has(self.own.key):
            self._on_view(view)
        elif was_member and not self._leaving:
            self.told_dead.set()
        self._notify()

    async def _follow(self) -> None:
        """Watch the oldest other member, whoever that is at the time."""
        while True:
            changed = self._changed
            target = self._watched()
            if target is None:
                await changed.wait()
                continue
            watch = asyncio.create_task(self._watch(target))
            try:
                while self._watched() == target and not watch.done():
                    wake = asyncio.create_task(self._changed.wait())
                    try:
                        await asyncio.wait({watch, wake}, return_when=asyncio.FIRST_COMPLETED)
                    finally:
                        wake.cancel()
            finally:
                watch.cancel()
                await asyncio.wait({watch})
            if not watch.cancelled():
                watch.result()  # a fault of ours is not to be lost

    async def _watch(self, target: Member) -> None:
        """Adopt what `target` says; give it up when nobody answers there for long."""
        loop = asyncio.get_running_loop()
        silent_since_s: float | None = None
        while True:
            try:
                async for view in self._calls.watch(target.control, self.view.epoch):
                    silent_since_s = None
                    self._adopt(view)
                silent_since_s = None
            except UnreachableError as error:
                silent_since_s = silent_since_s or loop.time()
                if loop.time() - silent_since_s > _UNREACHABLE_S:
                    _logger.warning("%s is given up: %s", target, error)
                    self.mark_dead(target.key)
                    return
            except ControlError as error:
                _logger.warning("can't watch %s: %s", target, error)
            await asyncio.sleep(_RETRY_S)

    async def _bury(self) -> None:
        """Have every dead member removed from the view, by the proposer or as the proposer."""
        while True:
            changed = self._changed
            dead = [m.key for m in self.view.members if m.key in self._dead]
            if not dead:
                await changed.wait()
                continue
            proposer = self._proposer()
            try:
                if proposer == self.own:
                    await self._remove(dead)
                else:
                    for key in dead:
                        self._adopt(await self._report(proposer, key))
            except ControlError as error:
                _logger.warning("the death of %s is not in the view yet: %s", dead, error)
            if any(self.view.has(key) for key in dead):
                await asyncio.sleep(_RETRY_S)


def _all_unreachable(refusals: dict[str, ControlError]) -> bool:
    return all(isinstance(error, UnreachableError) for error in refusals.values())
