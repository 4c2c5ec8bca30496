"""How a member comes to be in a world: attempts at one life after another, until one begins.

Rank 0 draws a life's id and its token, publishes them and waits; the others read, come, and are
told who all members are. Each dials those before it; the connection by which it has come is its
edge to rank 0. Rank 0 lets all begin when all have all their edges, so that a member that dies
before ends this attempt, for all of them, and they make another.
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
from hoplite_ray.worlds.meeting.life import Gathering, Life
from hoplite_ray.worlds.meeting.members import Member, Record
from hoplite_ray.worlds.meeting.place import Place
from hoplite_ray.worlds.meeting.rendezvous import Rendezvous

T = TypeVar("T")

# From one attempt to the next: short at first, because all members are often started at once.
_PAUSE_MIN_S, _PAUSE_MAX_S = 0.001, 0.1
_NAMED_MAX = 20  # of the ranks that are missing
_LOOK_S = 0.5  # how often a waiting rank 0 looks whether another one has come after it
_TAKEN_S = 2.0  # a rank's dead process may hold it so long, while its memory is given back
_FINAL = {"size", "transport", "nonsense", "failed", "tls"}  # refused once, refused for ever


@dataclass(slots=True)
class Plan:
    """What is to be joined, and what has stood in the way so far, in words."""

    name: str
    rank: int
    size: int
    transport: str
    ability: Ability
    device: int
    epoch_seen: int
    obstacle: str = "nothing was tried"


async def join(place: Place, plan: Plan, rendezvous: Rendezvous) -> Life:
    """Return a life that has begun, however many attempts that takes.

    Raises:  WorldError if there is no sense in another attempt; what the rendezvous raises.
    """
    pause_s = _PAUSE_MIN_S
    taken_since_s: float | None = None
    while True:
        try:
            if plan.rank == 0:
                return await _lead(place, plan, rendezvous)
            life = await _follow(place, plan, rendezvous)
            if life is not None:
                return life
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
        except OSError as error:  # also a TimeoutError, of a handshake
            plan.obstacle = f"it was given up ({error or type(error).__name__})"
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, _PAUSE_MAX_S)


async def _lead(place: Place, plan: Plan, rendezvous: Rendezvous) -> Life:
    found = await rendezvous.get(plan.name)
    epoch = max(Record.parsed(found).epoch if found else 0, plan.epoch_seen) + 1
    leader = place.own(0, plan.ability)
    record = Record(plan.name, epoch, secrets.token_hex(16), secrets.token_bytes(32), leader)
    life = Life(record, 0, plan.transport)
    life.gathering = gathering = Gathering(record.leader, plan.size)
    place.lives[life.id] = life
    try:
        await rendezvous.set(plan.name, record.encode())
        while gathering.missing():  # again if one goes while the last one comes
            await _first(gathering.full(), _superseded(place, plan, rendezvous, record, gathering))
        epoch = max(record.epoch, *(seen + 1 for seen in gathering.epochs_seen.values()), 1)
        place.open(life, epoch, gathering.members)
        gathering.tell(epoch)
        await gathering.met()
        gathering.begin()
        await life.complete()
        return life
    except BaseException:
        gathering.end()
        life.close()
        raise
    finally:
        del place.lives[life.id]


async def _superseded(
    place: Place, plan: Plan, rendezvous: Rendezvous, record: Record, gathering: Gathering
) -> None:
    """Raise StaleEpochError when another rank 0 has published a life after ours."""
    while True:
        missing = ", ".join(map(str, gathering.missing()[:_NAMED_MAX]))
        trouble = getattr(rendezvous, "trouble", "") or place.trouble
        plan.obstacle = f"rank {missing} has not come{trouble}" if missing else "members were lost"
        await asyncio.sleep(_LOOK_S)
        found = await rendezvous.get(plan.name)
        if not found:  # it has forgotten, as an actor that was restarted
            await rendezvous.set(plan.name, record.encode())
            continue
        now = Record.parsed(found)
        if now.life != record.life:
            raise StaleEpochError(
                f"another rank 0 has begun epoch {now.epoch} of world {plan.name!r} after this "
                f"one's {record.epoch}; let only one of them join"
            )


async def _follow(place: Place, plan: Plan, rendezvous: Rendezvous) -> Life | None:
    found = await rendezvous.get(plan.name)
    if not found:
        trouble = getattr(rendezvous, "trouble", "")
        plan.obstacle = f"rank 0 has not come to the rendezvous{trouble}"
        return None
    record = Record.parsed(found)
    attempt = asyncio.ensure_future(_attempt(place, plan, record))
    try:
        return await _first(attempt, _replaced(rendezvous, record))
    except BaseException:
        if not attempt.cancelled() and attempt.exception() is None:
            attempt.result().close()  # it began at the moment when it was given up
        raise


async def _replaced(rendezvous: Rendezvous, record: Record) -> Life:
    """Raise ConnectionAbortedError when another rank 0 has come, as after one that is frozen."""
    while True:
        await asyncio.sleep(_LOOK_S)
        found = await rendezvous.get(record.name)
        if found and Record.parsed(found).life != record.life:
            raise ConnectionAbortedError("rank 0 has come anew")


async def _attempt(place: Place, plan: Plan, record: Record) -> Life:
    life = Life(record, plan.rank, plan.transport)
    place.lives[life.id] = life
    try:
        own = place.own(plan.rank, plan.ability).fields()
        hello = {"size": plan.size, "who": own, "epoch": plan.epoch_seen}
        async with place.wired(life, record.leader, "join", **hello) as wire:
            plan.obstacle = f"members other than rank 0 and {plan.rank} have not come"
            table = await hear(wire.sock, TABLE_BYTES_MAX)
            members = [Member.parsed(each) for each in field(table, "members", list)]
            epoch = field(table, "epoch", int)
            place.open(life, epoch, {member.rank: member for member in members})

            async def meet() -> None:
                await _all(*(_wire(place, life, member) for member in life.before()))
                await life.complete()
                await say(wire.sock, met=True)

            if len(members) > 2:  # else this is the only edge
                await _all(meet(), hear(wire.sock))
            life.add_edge(0, wire)
        _check_unbroken(life)
        return life
    except BaseException:
        life.close()
        raise
    finally:
        place.lives.pop(life.id, None)


async def _wire(place: Place, life: Life, member: Member) -> None:
    async with place.wired(life, member, "edge") as wire:
        life.add_edge(member.rank, wire)


def _check_unbroken(life: Life) -> None:
    end = life.edges.end()
    if end is not None:
        raise ConnectionAbortedError(f"a member was lost while all met: {end[2]}")


async def _all(*work: Coroutine[Any, Any, Any]) -> None:
    """Do all of it at once; what fails first ends the rest, and is raised."""
    tasks = [asyncio.ensure_future(each) for each in work]
    try:
        await asyncio.gather(*tasks)
    finally:
        await _end(tasks)


async def _first(*work: Coroutine[Any, Any, T] | asyncio.Future[T]) -> T:
    """Do all of it at once until one has ended, which ends the rest; return what it returns."""
    tasks = [asyncio.ensure_future(each) for each in work]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        return next(iter(done)).result()
    finally:
        await _end(tasks)


async def _end(tasks: Sequence[asyncio.Future[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
