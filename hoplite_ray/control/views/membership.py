"""One node's part in keeping the same view on all of them (design decision 8).

The proposer is the oldest live member: it proposes every change, and commits it in the view store.
The next oldest member takes over when the proposer is dead. Every member watches the oldest other
member, and looks into the store now and then. So each view reaches all members, and a node that was
wrongly taken for dead hears of it. A death is final for that incarnation of the node: a node that
hears of its own death joins again with the next incarnation. A node that can't have a view
committed, because too few members answer, says so in `shortage`.

A member believes in a death that it has seen, or that two others report. One member's report that
stays without a second one means a bad path between two nodes: the younger of them joins again.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
from collections.abc import AsyncIterator, Callable, Sequence

from hoplite_ray.control.client import (
    ControlClient,
    NoQuorumError,
    RefusedError,
    UnlikeError,
    UnreachableError,
)
from hoplite_ray.control.view import Member, NodeKey, View
from hoplite_ray.control.views.view_store import ViewStore, VotedViews
from hoplite_ray.control.voting import Vote, Voter, VoteRequest
from hoplite_ray.errors import ControlError

_logger = logging.getLogger("hoplite_ray.control.membership")

_RETRY_S = 0.2  # between two tries at a peer: a person does not notice it, and it costs no CPU
_NEXT_S = 0.1  # between two addresses without an answer: a machine that is gone never answers
_ROUNDS_MIN = 2  # rounds without an answer before the members of a stored view count as dead
_ENTER_S = 15.0  # a cluster that has just lost its proposer answers after _UNREACHABLE_S
# A member whose control service refuses for so long is dead, even if this node never had a data
# link to it. The time is longer than a service's restart, and shorter than a user's patience.
_UNREACHABLE_S = 3.0
# A report without a second one: all members need less time to see a death by themselves.
_UNCONFIRMED_S = 10.0
_POLL_S = 2.0  # between looks into the store: two small calls to Ray's GCS, or one to a member
_CHANGE_ATTEMPTS_MAX = 100  # tries; each lost race means that another proposer made progress


class Membership:
    """One member: it joins, follows the view, and proposes in its turn. One event loop owns it."""

    def __init__(
        self,
        own: Member,
        *,
        calls: ControlClient,
        on_view: Callable[[View], None],
        store: ViewStore | None = None,
        on_shortage: Callable[[str], None] | None = None,
    ) -> None:
        self.own = own
        self.view = View()
        self.declared_dead = asyncio.Event()
        self.shortage = ""  # why no view can be committed as seen from here; empty if one can
        self._calls = calls
        self._on_view = on_view
        self._on_shortage = on_shortage
        self._voter = Voter()
        self._is_stored = store is not None  # True if views outlast all members, as with Ray
        self._store = store or VotedViews(own, calls=calls, vote=self.vote)
        self._dead: set[NodeKey] = set()
        self._reports: dict[NodeKey, dict[int, float]] = {}  # by reporter, the time of its report
        self._is_leaving = False
        self._change_lock = asyncio.Lock()
        self._changed = asyncio.Event()  # set once, then replaced, at each change of view or dead

    # ---- for this node itself

    async def join(self, ask: Sequence[str] = ()) -> View:
        """Become a member, through the addresses in `ask` or the members in the view store.

        Returns: the view that has this node; a first node makes it itself.
        Raises:  ControlError if no member lets it in for 15 s; RefusedError at once.
        """
        refusals: dict[str, ControlError] = {}
        rounds = 0
        deadline_s = asyncio.get_running_loop().time() + _ENTER_S
        while rounds < _ROUNDS_MIN or asyncio.get_running_loop().time() < deadline_s:
            stored = await self._store.read(self.view)
            if stored.has(self.own.key):  # the answer to a join was lost
                self._adopt(stored)
                return self.view
            others = [m for m in stored.members if m.node_id != self.own.node_id]
            addresses = [each.control for each in others] or list(ask)
            if not addresses:
                return await self._change(lambda view: view.with_member(self.own))
            refusals = {}
            view = await self._ask_to_join(addresses, refusals)
            if view is not None:
                self._adopt(view)
                return view
            rounds += 1
            if others and rounds >= _ROUNDS_MIN and _all_unreachable(refusals):
                _logger.warning("no member answers: %s; starting over without them", refusals)
                return await self._start_over(others)
            await asyncio.sleep(_RETRY_S)
        reasons = "; ".join(str(error) for error in refusals.values())
        raise ControlError(f"{self.own} could not join within {_ENTER_S:.0f} s: {reasons}")

    async def _start_over(self, gone: list[Member]) -> View:
        """Become a member without the nodes in `gone`; one that has started over as well stays."""
        keys = [each.key for each in gone]
        return await self._change(lambda view: view.without(*keys).with_member(self.own))

    async def _ask_to_join(
        self, addresses: list[str], refusals: dict[str, ControlError]
    ) -> View | None:
        """Ask at each address to be let in, at the next one before the last one has answered.

        Returns: the first view that has this node; None without one, and `refusals` says why.
        Raises:  RefusedError at once.
        """
        asked: dict[asyncio.Task[View], str] = {}
        try:
            while addresses or asked:
                if addresses:
                    address = addresses.pop(0)
                    asked[asyncio.create_task(self._calls.join(address, self.own))] = address
                done, _ = await asyncio.wait(
                    asked,
                    timeout=_NEXT_S if addresses else None,
                    return_when=asyncio.FIRST_COMPLETED,
                )
                for task in done:
                    address = asked.pop(task)
                    try:
                        return task.result()
                    except RefusedError:
                        raise
                    except ControlError as error:
                        refusals[address] = error
            return None
        finally:
            for task in asked:
                task.cancel()
            await asyncio.gather(*asked, return_exceptions=True)

    async def leave(self) -> None:
        """Leave; the other members hear of it from the next view."""
        self._is_leaving = True
        if self.declared_dead.is_set() or not (self._is_stored or self._oldest_other()):
            return  # the view has no place for it, or no member is left to tell
        proposer = self._proposer()
        if proposer != self.own:
            try:
                await self._calls.leave(proposer.control, self.own.key)
            except ControlError:
                if not self._is_stored:
                    raise
                proposer = self.own  # perhaps the proposer leaves as well
        if proposer == self.own:
            await self._change(lambda view: view.without(self.own.key))

    def mark_dead(self, key: NodeKey) -> None:
        """Take the end of an incarnation as certain; `run` tells the other members."""
        if key != self.own.key and key not in self._dead:
            self._dead.add(key)
            self._notify()

    async def run(self) -> None:
        """Follow the view and have the dead removed, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._follow())
            tasks.create_task(self._remove_dead())
            tasks.create_task(self._poll_store())

    # ---- for other nodes

    async def admit(self, joiner: Member, *, passed_on: bool) -> View:
        """Let `joiner` in, or have the proposer do it.

        Raises:  UnlikeError if no data connection to it could ever be.
        """
        if joiner.data_tls != self.own.data_tls:
            theirs, ours = ("on" if each.data_tls else "off" for each in (joiner, self.own))
            why = (
                f"{joiner} can't join: it has data_tls {theirs}, and {self.own} has it {ours}; "
                "give all nodes the same data_tls"
            )
            _logger.warning(why)
            raise UnlikeError(why)
        proposer = self._proposer()
        if proposer == self.own:
            return await self._change(lambda view: view.with_member(joiner))
        if passed_on:
            raise ControlError(f"{self.own} takes {proposer} for the oldest; ask again")
        return await self._calls.join(proposer.control, joiner, passed_on=True)

    async def dismiss(self, key: NodeKey) -> View:
        """Remove a member that leaves.

        Raises:  ControlError if the member itself does not say that it leaves.
        """
        proposer = self._proposer()
        if proposer.key not in (self.own.key, key):
            raise ControlError(f"{self.own} is not the oldest; ask {proposer}")
        if self.view.has(key) and not await self._is_confirmed_by(key, key[0]):
            raise ControlError(
                f"node {key[0]:x}/{key[1]} does not say that it leaves; "
                "a node leaves by its own word"
            )
        return await self._change(lambda view: view.without(key))

    async def handle_death_report(self, key: NodeKey, *, reporter: int) -> View:
        """Record that the member `reporter` has seen that incarnation of a node end.

        Raises:  ControlError if the reporter itself does not say so.
        """
        if key == self.own.key:
            raise ControlError(f"{self.own} is alive")
        if self._may_report(key, reporter) and not await self._is_confirmed_by(key, reporter):
            raise ControlError(
                f"node {reporter:x} does not say that node {key[0]:x}/{key[1]} is dead; "
                "a member reports only what it has seen itself"
            )
        self._record_report(key, reporter)
        if self._proposer() == self.own:
            await self._weigh_report(key, reporter)
            return await self._change(lambda view: view.without(*self._dead))
        return self.view

    def is_over(self, key: NodeKey) -> bool:
        """Return whether this node says that an incarnation is over."""
        return self._is_leaving if key == self.own.key else key in self._dead

    async def vote(self, request: VoteRequest) -> Vote:
        """Answer whether the candidate's view may follow `request.base`.

        A candidate gets a promise if it is no younger than the oldest live member that this node
        knows. A candidate that this node takes for dead gets one too, because it asks.

        Raises:  ControlError if this node has no vote there.
        """
        base = request.base
        if base.epoch < self.view.epoch:
            return Vote(newer=self.view)
        candidate = next((m for m in base.members if m.node_id == request.ballot.node_id), None)
        if candidate is None or not base.has(self.own.key):
            raise ControlError(
                f"{self.own} has no vote on what node {request.ballot.node_id:x} asks"
            )
        self._adopt(base)
        if base != self.view:
            raise ControlError(
                f"{self.own} has another view {base.epoch} than {candidate}: these are two clusters"
            )
        if request.proposal is None and candidate != self.own:
            older = base.members[: base.members.index(candidate)]
            for member in older:
                if await self._is_confirmed_by(member.key, candidate.node_id):
                    self._record_report(member.key, candidate.node_id)
            if base != self.view:  # it has changed meanwhile
                return Vote(newer=self.view)
            if self._proposer() in older:
                if self._is_unconfirmed(self.own.key, candidate.node_id):
                    self.mark_dead(candidate.key)  # it will never follow us again
                return Vote(why=f"for it {self._proposer()} is alive, and the oldest")
        return self._voter.vote(request)

    async def views(self, known_epoch: int) -> AsyncIterator[View]:
        """Yield the view each time it is newer than the last one known."""
        while True:
            changed = self._changed
            if self.view.epoch > known_epoch:
                known_epoch = self.view.epoch
                yield self.view
            else:
                await changed.wait()

    # ---- helpers

    def _proposer(self) -> Member:
        return next((m for m in self.view.members if m.key not in self._dead), self.own)

    def _oldest_other(self) -> Member | None:
        others = (m for m in self.view.members if m.key not in self._dead and m != self.own)
        return next(others, None)

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def _may_report(self, key: NodeKey, reporter: int) -> bool:
        """Return whether both are members; otherwise the report is about another view than ours."""
        ids = [member.node_id for member in self.view.members]
        return self.view.has(key) and reporter in ids and reporter not in (key[0], self.own.node_id)

    async def _is_confirmed_by(self, key: NodeKey, reporter: int) -> bool:
        """Ask the member `reporter` itself whether an incarnation is over.

        The cluster's secret proves that a caller is a member, and not which member it is: any
        member could name another one as the reporter. A known report is not asked for again.
        """
        if reporter in self._reports.get(key, {}):
            return True
        member = next((each for each in self.view.members if each.node_id == reporter), None)
        if member is None:
            return False
        try:
            return await self._calls.confirm_death(member, key)
        except ControlError as error:
            _logger.info("%s does not confirm that node %x/%d is over: %s", member, *key, error)
            return False

    def _record_report(self, key: NodeKey, reporter: int) -> None:
        """Record a member's report of a death. A repeated report keeps the time of its first."""
        if not self._may_report(key, reporter):
            return
        now_s = asyncio.get_running_loop().time()
        reporters = self._reports.setdefault(key, {})
        if reporter not in reporters:
            reporters[reporter] = now_s
            _logger.warning("node %x/%d is dead, says node %x", *key, reporter)
        if len(reporters) > 1:
            self.mark_dead(key)

    async def _weigh_report(self, key: NodeKey, reporter: int) -> None:
        """Decide about a death that only `reporter` has seen."""
        members = {member.node_id: member for member in self.view.members}
        if reporter not in self._reports.get(key, {}) or key in self._dead:
            return
        accused, accuser = members[key[0]], members[reporter]
        if await self._calls.has_ended(accused):
            self.mark_dead(key)
        elif self._is_unconfirmed(key, reporter):
            _logger.warning("%s and %s have no way to each other", accused, accuser)
            ages = list(members)
            is_mutual = key[0] in self._reports.get(accuser.key, {})
            is_younger = ages.index(key[0]) > ages.index(reporter)
            self.mark_dead(key if is_mutual and is_younger else accuser.key)

    def _is_unconfirmed(self, key: NodeKey, reporter: int) -> bool:
        """Return True if `reporter` is still the only reporter after `_UNCONFIRMED_S`."""
        since_s = self._reports.get(key, {}).get(reporter, math.inf)
        return asyncio.get_running_loop().time() - since_s > _UNCONFIRMED_S

    async def _change(self, edit: Callable[[View], View]) -> View:
        """Commit `edit` of the newest view, unless that changes nothing."""
        async with self._change_lock:
            for _ in range(_CHANGE_ATTEMPTS_MAX):
                if self.declared_dead.is_set():
                    raise ControlError(f"{self.own} is no member any more; ask another")
                base = self.view
                members = edit(base).members
                if members == base.members:
                    return base
                try:
                    decided = await self._store.commit(base, View(base.epoch + 1, members))
                except NoQuorumError as error:
                    self._set_shortage(str(error))
                    raise
                self._adopt(decided)
                if decided.members == members:
                    return decided
        raise ControlError("the view changed faster than it could be read; ask again")

    def _set_shortage(self, why: str) -> None:
        if bool(why) != bool(self.shortage):
            if why:
                _logger.error("the view can't change: %s", why)
            else:
                _logger.info("the view can change again")
            if self._on_shortage is not None:
                self._on_shortage(why)
        self.shortage = why

    def _adopt(self, view: View) -> None:
        """Make `view` this node's, if it is newer."""
        if view.epoch <= self.view.epoch:
            return
        was_member = self.view.has(self.own.key)
        self.view = view
        self._dead &= {member.key for member in view.members}
        self._reports.clear()  # a member that still sees a death reports it again
        self._calls.keep_only({member.control for member in view.members})
        _logger.info("view %d: %s", view.epoch, ", ".join(map(str, view.members)))
        if view.has(self.own.key):
            self._set_shortage("")
            self._on_view(view)
        elif was_member and not self._is_leaving:
            self.declared_dead.set()
        self._notify()

    async def _follow(self) -> None:
        """Watch the oldest other member, and change to the next when that changes."""
        while True:
            changed = self._changed
            target = self._oldest_other()
            if target is None:
                await changed.wait()
                continue
            watch = asyncio.create_task(self._watch(target))
            try:
                while self._oldest_other() == target and not watch.done():
                    wake = asyncio.create_task(self._changed.wait())
                    try:
                        await asyncio.wait({watch, wake}, return_when=asyncio.FIRST_COMPLETED)
                    finally:
                        wake.cancel()
            finally:
                watch.cancel()
                await asyncio.wait({watch})
            if not watch.cancelled():
                watch.result()  # raises a defect of this package

    async def _watch(self, target: Member) -> None:
        """Adopt the views of `target`; mark it dead when it has not answered for long."""
        loop = asyncio.get_running_loop()
        silent_since_s: float | None = None
        while True:
            try:
                async for view in self._calls.watch(
                    target.control, self.view.epoch, connect_s=_UNREACHABLE_S
                ):
                    silent_since_s = None
                    self._adopt(view)
                silent_since_s = None
            except UnreachableError as error:
                silent_since_s = silent_since_s or loop.time() - error.silent_s
                if loop.time() - silent_since_s > _UNREACHABLE_S:
                    _logger.warning("%s is given up: %s", target, error)
                    self.mark_dead(target.key)
                    return
            except ControlError as error:
                _logger.warning("can't watch %s: %s", target, error)
            await asyncio.sleep(_RETRY_S)

    async def _remove_dead(self) -> None:
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
                    await self._change(lambda view: view.without(*self._dead))
                else:
                    for key in dead:
                        self._adopt(
                            await self._calls.report_death(
                                proposer.control, key, reporter=self.own.node_id
                            )
                        )
            except NoQuorumError as error:
                self._set_shortage(str(error))
            except ControlError as error:
                _logger.info("the death of %s is not in the view yet: %s", dead, error)
            if any(self.view.has(key) for key in dead):
                await asyncio.sleep(_RETRY_S * (1 + random.random()))

    async def _poll_store(self) -> None:
        """Read the view store every `_POLL_S` or so, until cancelled."""
        while True:
            await asyncio.sleep(_POLL_S * (0.5 + random.random()))
            try:
                self._adopt(await self._store.read(self.view))
            except ControlError as error:  # no answer, or a stored value that is no view
                self._set_shortage(str(error))
            else:
                if not any(member.key in self._dead for member in self.view.members):
                    self._set_shortage("")


def _all_unreachable(refusals: dict[str, ControlError]) -> bool:
    return all(isinstance(error, UnreachableError) for error in refusals.values())
