"""NCCL's communicators of a new world, which its members make before `join` returns."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Mapping
from dataclasses import dataclass

from hoplite_ray._native import WorldEdges, WorldOperation
from hoplite_ray.errors import HopliteError, WorldError
from hoplite_ray.worlds.core.events import Cause
from hoplite_ray.worlds.core.waiting import DONE, PENDING, Waits, run_async
from hoplite_ray.worlds.gpu.ability import Ability
from hoplite_ray.worlds.gpu.nccl import Gpu, load

_ID, _VERDICT = 24, 32  # numbers of messages; ops.transfers has 0, 8 and 16
_KEY = 1 << 62
_ID_BYTES = 128
_TEXT_BYTES_MAX = 4096
_IN_CLEAR = "data_tls is on, and between machines NCCL's own connections are not encrypted"


@dataclass(frozen=True, slots=True)
class NewWorld:
    """A world that is being joined, as NCCL comes up in it: all edges are there.

    `abilities` has what each rank has for arrays on GPUs.
    """

    name: str
    rank: int
    edges: WorldEdges
    abilities: Mapping[int, Ability]
    machine_count: int

    def __str__(self) -> str:
        return f"world {self.name!r}"


async def connect(world: NewWorld, device: int, *, is_secret: bool) -> Gpu:
    """Make the communicators of a world whose edges are there, or say why there are none.

    is_secret:  True if bytes between machines must be encrypted, which NCCL does not do.

    Raises:  WorldError if a member needs them, or if one dies meanwhile.
    """
    abilities = world.abilities
    lacks = _find_lack(abilities)
    if not lacks and is_secret and world.machine_count > 1:
        lacks = _IN_CLEAR
    gpu = Gpu(lacks, device)
    is_needed = any(each.is_needed for each in abilities.values())
    if not lacks:
        everybody = tuple(range(len(abilities)))
        pairs = itertools.combinations(everybody, 2) if len(abilities) > 2 else ()
        # One after the other, in the same order at all members: no two wait for each other.
        for number, among in enumerate((everybody, *pairs)):
            failure = await _open_bond(world, gpu, among, number) if world.rank in among else ""
            if failure and is_needed:  # other members may wait for this one inside NCCL
                world.edges.abort(Cause.LOCAL, failure)
                raise WorldError(_describe_failure(world, f"rank {world.rank}: {failure}"))
            gpu.lacks = await _exchange_failures(world, failure, number)
            if gpu.lacks:
                break
    if gpu.lacks and is_needed:
        raise WorldError(_describe_failure(world, gpu.lacks))
    return gpu


def _describe_failure(world: NewWorld, why: str) -> str:
    return (
        f"{world} was joined with transport='nccl', and has no NCCL: {why}; mend that, or join it "
        "with transport='auto' everywhere"
    )


def _find_lack(abilities: Mapping[int, Ability]) -> str:
    for rank, each in sorted(abilities.items()):
        if each.lacks:
            return f"rank {rank}: {each.lacks}"
        if each.code != abilities[0].code:
            first, other = _format_release(abilities[0].code), _format_release(each.code)
            return f"rank 0 has NCCL {first}, and rank {rank} has {other}"
    return ""


def _format_release(code: int) -> str:
    return f"{code // 10_000}.{code // 100 % 100}.{code % 100}"


async def _open_bond(world: NewWorld, gpu: Gpu, among: tuple[int, ...], number: int) -> str:
    """Make one communicator with its other members; returns what has failed, or ""."""
    nccl, key = load(), _KEY | number
    leader, made, failure = among[0], bytearray(_ID_BYTES), ""
    if world.rank == leader:
        try:
            made[:] = await asyncio.to_thread(nccl.unique_id)
        except HopliteError as error:
            failure = str(error)
        given = bytes(made)
        sent = [world.edges.send(rank, key, _ID, "", (), given) for rank in among[1:]]
        await run_async(_wait_all(world, *sent))
    else:
        await run_async(_wait_all(world, world.edges.receive(leader, key, _ID, "", made)))
    if not any(made):  # there is no id; the first member reports why
        return failure
    bond = nccl.open(
        world.edges,
        bytes(made),
        rank=among.index(world.rank),
        size=len(among),
        device=gpu.device,
    )
    joined = bond.joined()
    if joined.state == PENDING:
        await run_async(_wait_end(joined))
    if joined.state == DONE:
        gpu.bonds[among] = bond
        return ""
    _check(world, joined)
    return bond.error


async def _exchange_failures(world: NewWorld, failure: str, number: int) -> str:
    """Exchange failures: every member returns the first one, by rank, or ""."""
    edges, key = world.edges, _KEY | 1 << 32 | number
    others = range(1, len(world.abilities))

    def pack(text: str) -> bytes:
        return text.encode()[:_TEXT_BYTES_MAX].ljust(_TEXT_BYTES_MAX)

    said = {rank: bytearray(_TEXT_BYTES_MAX) for rank in (others if world.rank == 0 else (0,))}
    if world.rank > 0:
        # Receive before sending: a member that has read a failure may end the world at once.
        heard = edges.receive(0, key, _VERDICT, "", said[0])
        mine = edges.send(0, key, _VERDICT, "", (), pack(failure))
        await run_async(_wait_all(world, mine, heard))
        return said[0].decode(errors="replace").strip()
    await run_async(
        _wait_all(
            world, *(edges.receive(rank, key, _VERDICT, "", each) for rank, each in said.items())
        )
    )
    texts = {0: failure}
    texts |= {rank: each.decode(errors="replace").strip() for rank, each in said.items()}
    verdict = next((f"rank {rank}: {text}" for rank, text in texts.items() if text), "")
    await run_async(
        _wait_all(
            world, *(edges.send(rank, key, _VERDICT, "", (), pack(verdict)) for rank in others)
        )
    )
    return verdict


def _wait_all(world: NewWorld, *operations: WorldOperation | None) -> Waits[None]:
    for operation in operations:
        if operation is not None:
            if operation.state == PENDING:
                yield operation, None
            _check(world, operation)


def _wait_end(operation: WorldOperation) -> Waits[None]:
    yield operation, None


def _check(world: NewWorld, operation: WorldOperation) -> None:
    end = world.edges.end()
    if operation.state != DONE and end is not None:
        raise WorldError(
            f"rank {end[1]} of {world} was lost while NCCL came up: {end[2]}; join it again"
        )
