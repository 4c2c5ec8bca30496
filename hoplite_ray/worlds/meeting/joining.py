"""How a process joins a world: it tries one incarnation after another, until one begins.

1. Rank 0 draws an incarnation's id and token, publishes them as a record, and waits.
2. Every other member reads the record and dials rank 0. That connection becomes their edge.
3. Once all have come, rank 0 sends each the table of members. Each dials the ranks below its own.
4. Rank 0 lets all begin when every member has all its edges.

A member that dies before step 4 ends the incarnation for all, and they try another one.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from hoplite_ray.errors import StaleEpochError, WorldError
from hoplite_ray.worlds.gpu.ability import Ability
from hoplite_ray.worlds.handshake.errors import RefusedError
from hoplite_ray.worlds.handshake.frames import TABLE_BYTES_MAX, field, hear, say
from hoplite_ray.worlds.meeting.incarnation import Gathering, Incarnation
from hoplite_ray.worlds.meeting.members import Member, Record
from hoplite_ray.worlds.meeting.place import Place
from hoplite_ray.worlds.meeting.rendezvous import Rendezvous

T = TypeVar("T")

# The pause between attempts: short at first, because members are often started at once.
_PAUSE_MIN_S, _PAUSE_MAX_S = 0.001, 0.1
_NAMED_MAX = 20  # of the missing ranks, in an error
_LOOK_S = 0.5  # between looks for a newer rank 0 at the rendezvous
_TAKEN_S = 2.0  # a dead process may hold its rank so long, while its memory is given back
_FINAL = {"size", "transport", "nonsense", "failed", "tls"}  # reasons that no other attempt changes


@dataclass(slots=True)
class Plan:
    """The world to join. `obstacle` says in words why that has not succeeded yet."""

    name: str
    rank: int
    size: int
    transport: str
    ability: Ability
    device: int
    epoch_seen: int
    obstacle: str = "nothing was tried"


async def join(place: Place, plan: Plan, rendezvous: Rendezvous) -> Incarnation:
    """Return an incarnation that has begun, however many attempts that takes.

    Raises:  WorldError if another attempt would fail, too; the errors of the rendezvous.
    """
    pause_s = _PAUSE_MIN_S
    taken_since_s: float | None = None
    while True:
        try:
            if plan.rank == 0:
                return await _lead(place, plan, rendezvous)
            incarnation = await _follow(place, plan, rendezvous)
            if incarnation is not None:
                return incarnation
        except RefusedError as error:
            if error.reason == "taken":
                taken_since_s = taken_since_s or time.monotonic()
            has_patience = taken_since_s is None or time.monotonic() < taken_since_s + _TAKEN_S
            if error.reason in _FINAL or (error.reason == "taken" and not has_patience):
                remedy = "; give all members the same name and size, and each its own rank"
                raise WorldError(
                    f"world {plan.name!r} was not joined as rank {plan.rank} of {plan.size}: "
                    f"{error}{'' if error.reason == 'tls' else remedy}"
                ) from error
            plan.obstacle = f"it was refused: {error}"
        except OSError as error:  # also the TimeoutError of a handshake
            plan.obstacle = f"it was given up ({error or type(error).__name__})"
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, _PAUSE_MAX_S)


async def _lead(place: Place, plan: Plan, rendezvous: Rendezvous) -> Incarnation:
    found = await rendezvous.get(plan.name)
    epoch = max(Record.parse(found).epoch if found else 0, plan.epoch_seen) + 1
    leader = place.own(0, plan.ability)
    record = Record(plan.name, epoch, secrets.token_hex(16), secrets.token_bytes(32), leader)
    incarnation = Incarnation(record, 0, plan.transport)
    incarnation.gathering = gathering = Gathering(record.leader, plan.size)
    place.incarnations[incarnation.id] = incarnation
    try:
        await rendezvous.set(plan.name, record.encode())
        while gathering.missing():  # again if a member goes while the last one comes
            await _wait_first(
                gathering.wait_until_full(),
                _watch_for_successor(place, plan, rendezvous, record, gathering),
            )
        epoch = max(record.epoch, *(seen + 1 for seen in gathering.epochs_seen.values()), 1)
        place.open(incarnation, epoch, gathering.members)
        gathering.tell(epoch)
        await gathering.wait_until_met()
        gathering.begin()
        await incarnation.wait_until_complete()
        return incarnation
    except BaseException:
        gathering.end()
        incarnation.close()
        raise
    finally:
        del place.incarnations[incarnation.id]


async def _watch_for_successor(
    place: Place, plan: Plan, rendezvous: Rendezvous, record: Record, gathering: Gathering
) -> None:
    """Raise StaleEpochError when another rank 0 has published a later incarnation."""
    while True:
        missing = ", ".join(map(str, gathering.missing()[:_NAMED_MAX]))
        trouble = getattr(rendezvous, "trouble", "") or place.trouble
        plan.obstacle = f"rank {missing} has not come{trouble}" if missing else "members were lost"
        await asyncio.sleep(_LOOK_S)
        found = await rendezvous.get(plan.name)
        if not found:  # the rendezvous has lost it, for example after a restart
            await rendezvous.set(plan.name, record.encode())
            continue
        now = Record.parse(found)
        if now.incarnation != record.incarnation:
            raise StaleEpochError(
                f"another rank 0 has begun epoch {now.epoch} of world {plan.name!r} after this "
                f"one's {record.epoch}; let only one of them join"
            )


async def _follow(place: Place, plan: Plan, rendezvous: Rendezvous) -> Incarnation | None:
    found = await rendezvous.get(plan.name)
    if not found:
        trouble = getattr(rendezvous, "trouble", "")
        plan.obstacle = f"rank 0 has not come to the rendezvous{trouble}"
        return None
    record = Record.parse(found)
    attempt = asyncio.ensure_future(_attempt(place, plan, record))
    try:
        return await _wait_first(attempt, _watch_for_new_leader(rendezvous, record))
    except BaseException:
        if not attempt.cancelled() and attempt.exception() is None:
            attempt.result().close()  # it began at the moment when it was given up
        raise


async def _watch_for_new_leader(rendezvous: Rendezvous, record: Record) -> Incarnation:
    """Raise ConnectionAbortedError when another rank 0 has come, for example after a frozen one."""
    while True:
        await asyncio.sleep(_LOOK_S)
        found = await rendezvous.get(record.name)
        if found and Record.parse(found).incarnation != record.incarnation:
            raise ConnectionAbortedError("rank 0 has come anew")


async def _attempt(place: Place, plan: Plan, record: Record) -> Incarnation:
    incarnation = Incarnation(record, plan.rank, plan.transport)
    place.incarnations[incarnation.id] = incarnation
    try:
        own = place.own(plan.rank, plan.ability).fields()
        hello = {"size": plan.size, "who": own, "epoch": plan.epoch_seen}
        async with place.dial_edge(incarnation, record.leader, "join", **hello) as wire:
            plan.obstacle = f"members other than rank 0 and {plan.rank} have not come"
            table = await hear(wire.sock, TABLE_BYTES_MAX)
            members = [Member.parse(each) for each in field(table, "members", list)]
            epoch = field(table, "epoch", int)
            place.open(incarnation, epoch, {member.rank: member for member in members})

            async def meet() -> None:
                await _wait_all(
                    *(_wire(place, incarnation, member) for member in incarnation.members_to_dial())
                )
                await incarnation.wait_until_complete()
                await say(wire.sock, met=True)

            if len(members) > 2:  # in a world of two this is the only edge
                await _wait_all(meet(), hear(wire.sock))
            incarnation.add_edge(0, wire)
        _check_unbroken(incarnation)
        return incarnation
    except BaseException:
        incarnation.close()
        raise
    finally:
        place.incarnations.pop(incarnation.id, None)


async def _wire(place: Place, incarnation: Incarnation, member: Member) -> None:
    async with place.dial_edge(incarnation, member, "edge") as wire:
        incarnation.add_edge(member.rank, wire)


def _check_unbroken(incarnation: Incarnation) -> None:
    end = incarnation.edges.end()
    if end is not None:
        raise ConnectionAbortedError(f"a member was lost while all met: {end[2]}")


async def _wait_all(*work: Coroutine[Any, Any, Any]) -> None:
    """Do all of the work at once. The first failure ends the rest, and is raised."""
    tasks = [asyncio.ensure_future(each) for each in work]
    try:
        await asyncio.gather(*tasks)
    finally:
        await _cancel(tasks)


async def _wait_first(*work: Coroutine[Any, Any, T] | asyncio.Future[T]) -> T:
    """Do all of the work at once. The first to end cancels the rest; returns its result."""
    tasks = [asyncio.ensure_future(each) for each in work]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        return next(iter(done)).result()
    finally:
        await _cancel(tasks)


async def _cancel(tasks: Sequence[asyncio.Future[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
