"""The processes of worlds.py: rank 0 receives messages from as many of the others as play.

Each kind of process has its ways of carrying a message. `worlds`: an edge of its own from each
sender, over a transport that is forced or chosen. `gloo`: torch.distributed. `raw`: what is hard to
beat, a blocking socket, or blocks of shared memory that are copied into and out of.

A play begins with messages that don't count. Then the receiver says go, and its clock starts.
"""

from __future__ import annotations

import asyncio
import mmap
import os
import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from ranks import check, serve, values
from world_joins import Plan, join, receive, stream

from hoplite_ray import worlds

Array = npt.NDArray[np.float32]
TRANSPORTS = ("tcp", "shared_memory", "auto")
WARM_UP = 5  # messages, of each sender
JOIN_S = 60.0  # for processes that all start at once on few cores
BLOCK_BYTES, BLOCKS = 256 << 10, 16  # of shared memory; larger blocks are copied more slowly
# Offset of the first block. Large numpy arrays begin 16 bytes into a page; glibc's memcpy from the
# beginning of a page to such an address is very slow on AMD EPYC (docs/internals/gotchas.md).
BEGIN_BYTES = 2048
MEMORY_BYTES = BEGIN_BYTES + BLOCK_BYTES * BLOCKS


class Player(ABC):
    """One process. Each command of the benchmark is a method (ranks.py)."""

    def __init__(self, rank: int, senders: int) -> None:
        self.rank = rank
        self.senders = senders  # that there are; in a play the first of them take part

    @abstractmethod
    def ready(self, *, meet_at: str) -> Any:
        """Connect to the others."""

    @abstractmethod
    def receive(self, way: str, into: Sequence[Array], count: int) -> Cost:
        """Take `count` messages of each sender, one after the other into its buffer."""

    @abstractmethod
    def send(self, way: str, array: Array, count: int) -> Cost:
        """Give them."""

    def play(self, *, way: str, size_bytes: int, count: int, senders: int) -> tuple[float, float]:
        """Take part; returns seconds and CPU seconds. The last message of each is then checked."""
        if self.rank > 0:
            cost = self.send(way, values(size_bytes, self.rank), count)
            return cost.wall_s, cost.cpu_s
        into = [np.zeros(size_bytes // 4, np.float32) for _ in range(senders)]
        cost = self.receive(way, into, count)
        for index, array in enumerate(into):
            check(array, count=1, addend=index + 1)
        return cost.wall_s, cost.cpu_s


@dataclass(frozen=True, slots=True)
class Cost:
    """A moment; or, by `since`, what has passed after one."""

    wall_s: float
    cpu_s: float  # of all threads of this process

    @classmethod
    def now(cls) -> Cost:
        return cls(time.perf_counter(), time.process_time())

    @property
    def since(self) -> Cost:
        now = Cost.now()
        return Cost(now.wall_s - self.wall_s, now.cpu_s - self.cpu_s)


class WorldsPlayer(Player):
    """hoplite_ray's worlds, awaited: a task for each edge."""

    def __init__(self, rank: int, senders: int) -> None:
        super().__init__(rank, senders)
        self._runner = asyncio.Runner()
        self._manager = worlds.WorldManager()
        self._edges: dict[tuple[str, int], worlds.World] = {}

    def ready(self, *, meet_at: str) -> list[str]:
        """Join an edge of each transport with all others; return their transports, in order."""
        self._meet_at = meet_at
        peers = range(1, self.senders + 1) if self.rank == 0 else [self.rank]
        wanted = [(transport, peer) for peer in peers for transport in TRANSPORTS]
        self._edges = dict(zip(wanted, self._runner.run(self._join_all(wanted)), strict=True))
        self._edges |= {("alloc", peer): self._edges["shared_memory", peer] for peer in peers}
        other = min(self.rank, 1) ^ 1
        carried_by = [self._edges[way, peers[0]].transports[other] for way in TRANSPORTS]
        return [*carried_by, "without a copy"]

    async def _join_all(self, wanted: Sequence[tuple[str, int]]) -> list[worlds.World]:
        joins = [
            self._manager.join_async(
                f"{transport}-{peer}",
                rank=min(self.rank, 1),
                size=2,
                rendezvous=self._meet_at,
                transport=transport,
                timeout_s=JOIN_S,
            )
            for transport, peer in wanted
        ]
        return await asyncio.gather(*joins)

    def receive(self, way: str, into: Sequence[Array], count: int) -> Cost:
        edges = [self._edges[way, peer] for peer in range(1, len(into) + 1)]
        take = _look if way == "alloc" else _take
        return self._runner.run(_receive(edges, into, count, take))

    def send(self, way: str, array: Array, count: int) -> Cost:
        give = _give_away if way == "alloc" else _give
        return self._runner.run(_send(self._edges[way, self.rank], array, count, give))

    def wait(self, *, way: str, wait_s: float) -> float:
        """Return the cost of waiting `wait_s` for a message, as a share of a core."""
        if self.rank == 1:
            time.sleep(wait_s)
            self._edges["auto", 1].send(np.zeros(1, np.float32), dst=0)
            return 0.0
        edge, begun = self._edges["auto", 1], Cost.now()
        if way == "blocking":
            edge.recv(src=1)
        else:
            self._runner.run(edge.recv_async(src=1))
        return begun.since.cpu_s / begun.since.wall_s

    def join(self, **plan: Any) -> Any:
        """Take part in a stream with joins beside it (world_joins.py)."""
        told = Plan(meet_at=self._meet_at, **plan)
        if self.rank == 2:
            return self._runner.run(join(self._manager, told))
        edge = self._edges["auto", 1]
        if self.rank == 1:
            return self._runner.run(stream(edge, told))
        return asdict(self._runner.run(receive(self._manager, edge, told)))


Move = Callable[[worlds.World, Array, int], Awaitable[None]]


async def _receive(
    edges: Sequence[worlds.World], into: Sequence[Array], count: int, take: Move
) -> Cost:
    await asyncio.gather(*map(take, edges, into, [WARM_UP] * len(edges)))
    for edge in edges:
        await edge.send_async(_GO, dst=1)
    begun = Cost.now()
    if len(edges) == 1:
        await take(edges[0], into[0], count)
    else:
        await asyncio.gather(*map(take, edges, into, [count] * len(edges)))
    cost = begun.since
    for edge in edges:
        await edge.send_async(_GO, dst=1)
    return cost


async def _take(edge: worlds.World, into: Array, count: int) -> None:
    for _ in range(count):
        await edge.recv_async(into, src=1)


async def _look(edge: worlds.World, into: Array, count: int) -> None:
    """Read each where it lies, at either end; the last is copied, to be checked."""
    for _ in range(count):
        array = await edge.recv_async(src=1)
        into[0], into[-1] = array[0], array[-1]
    into[:] = array


async def _give(edge: worlds.World, array: Array, count: int) -> None:
    for _ in range(count):
        await edge.send_async(array, dst=0)


async def _give_away(edge: worlds.World, array: Array, count: int) -> None:
    """Write each where it is then read: the one copy that there is."""
    for _ in range(count):
        given = edge.alloc(array.shape, array.dtype)
        np.copyto(given, array)
        await edge.send_async(given, dst=0)


async def _send(edge: worlds.World, array: Array, count: int, give: Move) -> Cost:
    go = np.empty_like(_GO)
    await give(edge, array, WARM_UP)
    await edge.recv_async(go, src=0)
    begun = Cost.now()
    await give(edge, array, count)
    await edge.recv_async(go, src=0)  # so that what others of our threads still do is counted too
    return begun.since


_GO = np.zeros(1, np.float32)


class GlooPlayer(Player):
    """torch.distributed: recv from one sender, irecv from several."""

    def ready(self, *, meet_at: str) -> None:
        import torch.distributed as dist

        dist.init_process_group(
            "gloo", init_method=f"file://{meet_at}", rank=self.rank, world_size=self.senders + 1
        )

    def receive(self, way: str, into: Sequence[Array], count: int) -> Cost:
        import torch
        import torch.distributed as dist

        tensors = [torch.from_numpy(array) for array in into]

        def take(count: int) -> None:
            if len(tensors) == 1:
                for _ in range(count):
                    dist.recv(tensors[0], 1)
                return
            for _ in range(count):
                pending = [dist.irecv(tensor, rank) for rank, tensor in enumerate(tensors, 1)]
                for each in pending:
                    each.wait()

        def go() -> None:
            for rank in range(1, len(tensors) + 1):
                dist.send(torch.zeros(1), rank)

        take(WARM_UP)
        go()
        begun = Cost.now()
        take(count)
        cost = begun.since
        go()
        return cost

    def send(self, way: str, array: Array, count: int) -> Cost:
        import torch
        import torch.distributed as dist

        tensor, go = torch.from_numpy(array.copy()), torch.zeros(1)
        for _ in range(WARM_UP):
            dist.send(tensor, 0)
        dist.recv(go, 0)
        begun = Cost.now()
        for _ in range(count):
            dist.send(tensor, 0)
        dist.recv(go, 0)
        return begun.since

    def wait(self, *, way: str, wait_s: float) -> float:
        import torch
        import torch.distributed as dist

        if self.rank == 1:
            time.sleep(wait_s)
            dist.send(torch.zeros(1), 0)
            return 0.0
        begun = Cost.now()
        dist.recv(torch.zeros(1), 1)
        return begun.since.cpu_s / begun.since.wall_s


class RawPlayer(Player):
    """The bounds. A receiver takes a message of each sender in turn."""

    def __init__(self, rank: int, senders: int) -> None:
        super().__init__(rank, senders)
        self._sockets: dict[int, socket.socket] = {}  # by the rank at the other end
        self._memories: dict[int, _Memory] = {}

    def ready(self, *, meet_at: str) -> None:
        if self.rank > 0:
            self._connect(meet_at)
            return
        local = socket.socket(socket.AF_UNIX)
        with local, socket.create_server(("127.0.0.1", 0)) as listener:
            local.bind(f"{meet_at}-bound")
            local.listen()
            os.rename(f"{meet_at}-bound", meet_at)  # there only once it is listened at
            for _ in range(self.senders):
                passed, _ = local.accept()
                with passed:
                    memory = _Memory.made()
                    socket.send_fds(passed, [b"%d" % listener.getsockname()[1]], memory.fds)
                    plain, _ = listener.accept()
                plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                rank = plain.recv(1)[0]
                self._sockets[rank], self._memories[rank] = plain, memory

    def _connect(self, meet_at: str) -> None:
        with socket.socket(socket.AF_UNIX) as local:
            while local.connect_ex(meet_at) != 0:
                time.sleep(0.01)
            port, fds, _, _ = socket.recv_fds(local, 16, 3)
            plain = socket.create_connection(("127.0.0.1", int(port)))
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        plain.sendall(bytes([self.rank]))
        self._sockets[0], self._memories[0] = plain, _Memory(fds)

    def receive(self, way: str, into: Sequence[Array], count: int) -> Cost:
        bytes_of = {rank: array.view(np.uint8) for rank, array in enumerate(into, 1)}

        def take(count: int) -> None:
            for _ in range(count):
                for rank, array in bytes_of.items():
                    if way == "raw tcp":
                        self._sockets[rank].recv_into(array, 0, socket.MSG_WAITALL)
                    else:
                        self._memories[rank].take(array)

        def go() -> None:
            for rank in bytes_of:
                self._sockets[rank].sendall(b"g")

        take(WARM_UP)
        go()
        begun = Cost.now()
        take(count)
        cost = begun.since
        go()
        return cost

    def send(self, way: str, array: Array, count: int) -> Cost:
        plain, memory, own = self._sockets[0], self._memories[0], array.view(np.uint8)

        def give(count: int) -> None:
            for _ in range(count):
                if way == "raw tcp":
                    plain.sendall(own)
                else:
                    memory.give(own)

        give(WARM_UP)
        plain.recv(1)
        begun = Cost.now()
        give(count)
        plain.recv(1)
        return begun.since


class _Memory:
    """Blocks that one process fills and another empties; an eventfd counts those of each kind."""

    def __init__(self, fds: Sequence[int]) -> None:
        self.fds = list(fds)
        self._bytes = np.frombuffer(mmap.mmap(fds[0], MEMORY_BYTES), np.uint8)
        self._filled, self._empty = fds[1:]
        self._ready = 0  # known to be so
        self._next = 0

    @classmethod
    def made(cls) -> _Memory:
        memory = os.memfd_create("bound")
        os.ftruncate(memory, MEMORY_BYTES)
        return cls([memory, os.eventfd(0), os.eventfd(BLOCKS)])

    def give(self, array: npt.NDArray[np.uint8]) -> None:
        for begin in range(0, array.size, BLOCK_BYTES):
            part = array[begin : begin + BLOCK_BYTES]
            np.copyto(self._block(self._empty, part.size), part)
            os.eventfd_write(self._filled, 1)

    def take(self, into: npt.NDArray[np.uint8]) -> None:
        for begin in range(0, into.size, BLOCK_BYTES):
            part = into[begin : begin + BLOCK_BYTES]
            np.copyto(part, self._block(self._filled, part.size))
            os.eventfd_write(self._empty, 1)

    def _block(self, counter: int, size: int) -> npt.NDArray[np.uint8]:
        if self._ready == 0:
            self._ready = os.eventfd_read(counter)
        self._ready -= 1
        begin = BEGIN_BYTES + self._next * BLOCK_BYTES
        self._next = (self._next + 1) % BLOCKS
        return self._bytes[begin : begin + size]


def play_worlds(rank: str, senders: str) -> None:
    """Be a process of worlds."""
    serve(WorldsPlayer(int(rank), int(senders)))


def play_gloo(rank: str, senders: str) -> None:
    """Be a process of Gloo."""
    serve(GlooPlayer(int(rank), int(senders)))


def play_raw(rank: str, senders: str) -> None:
    """Be a process of the bounds."""
    serve(RawPlayer(int(rank), int(senders)))
