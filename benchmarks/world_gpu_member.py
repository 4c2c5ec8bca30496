"""A member of worlds of GPUs, for world_gpu.py: in a process of its own, or in the benchmark's.

Memory of the GPU is had from the CUDA driver itself, so that a process is up in a moment; where a
library stands in for the driver it is the host's.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import time
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from ranks import serve
from world_members import JOIN_S

from hoplite_ray import worlds

WHAT = ("idle", "recv", "send", "all_reduce", "receiving")
ELEMENTS = 16 << 20  # of 64 MiB: tens of ms between two processes that share a GPU


@dataclass(frozen=True, slots=True)
class Ended:
    """When a member was told of the other one's end, and when its operation had raised."""

    heard_s: float
    raised_s: float
    cause: str


class OnGpu:
    """float32 zeros on GPU 0."""

    def __init__(self, elements: int) -> None:
        self.elements = elements
        self._host = None if _cuda is not None else np.zeros(elements, np.float32)
        if _cuda is not None:
            address = ctypes.c_uint64()
            _check(_cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(4 * elements)))
            self.address = address.value
            _check(_cuda.cuMemsetD32_v2(address, ctypes.c_uint(0), ctypes.c_size_t(elements)))
        else:
            assert self._host is not None
            self.address = self._host.ctypes.data

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        where = (self.address, False)
        return {"shape": (self.elements,), "typestr": "<f4", "data": where, "version": 3}

    def fill(self, value: float) -> None:
        """Set every element to `value`."""
        if self._host is not None:
            self._host[:] = value
            return
        bits = ctypes.c_uint(int(np.float32(value).view(np.uint32)))
        at, count = ctypes.c_uint64(self.address), ctypes.c_size_t(self.elements)
        _check(_cuda.cuMemsetD32_v2(at, bits, count))
        _check(_cuda.cuCtxSynchronize())

    def read(self) -> Any:
        """A copy on the host."""
        if self._host is not None:
            return self._host.copy()
        into = np.empty(self.elements, np.float32)
        at = ctypes.c_uint64(self.address)
        _check(_cuda.cuMemcpyDtoH_v2(ctypes.c_void_p(into.ctypes.data), at, into.nbytes))
        return into

    def free(self) -> None:
        """Give its memory back."""
        if _cuda is not None:
            _check(_cuda.cuMemFree_v2(ctypes.c_uint64(self.address)))


_cuda: Any = None


def equip(host: str) -> None:
    """Use GPU 0 as a host of that name: NCCL refuses two ranks on one GPU of one host."""
    global _cuda
    os.environ["NCCL_HOSTID"] = host
    os.environ |= {"NCCL_SOCKET_IFNAME": "lo", "NCCL_IB_DISABLE": "1"}
    if "HOPLITE_RAY_CUDA_LIBRARY" in os.environ:
        return
    _cuda = ctypes.CDLL("libcuda.so.1")
    device, context = ctypes.c_int(), ctypes.c_void_p()
    _check(_cuda.cuInit(0))
    _check(_cuda.cuDeviceGet(ctypes.byref(device), 0))
    _check(_cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device))
    _check(_cuda.cuCtxSetCurrent(context))


def free_bytes() -> int:
    """Return the free memory of the GPU; 0 without a GPU."""
    if _cuda is None:
        return 0
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    _check(_cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)))
    return free.value


def _check(code: int) -> None:
    if code != 0:
        raise RuntimeError(f"the CUDA driver answered {code}")


class GpuMember:
    """One end of worlds by NCCL. Every method can be told to another process (ranks.py)."""

    def __init__(self, host: str) -> None:
        self.runner = asyncio.Runner()
        self._host = host
        self._managers: dict[float | None, worlds.WorldManager] = {}
        self._worlds: dict[str, worlds.World] = {}
        self._kept: list[OnGpu] = []

    def begin(self) -> int:
        """Use the GPU; returns the process's id."""
        equip(self._host)
        return os.getpid()

    def hold(self, *, size_bytes: int) -> None:
        """Have so much memory of the GPU."""
        self._kept.append(OnGpu(size_bytes // 4))

    def join(
        self, *, name: str, rank: int, meet_at: str, dead_after_s: float | None = 3.0
    ) -> float:
        """Join a world; returns how long that took."""
        if dead_after_s not in self._managers:
            self._managers[dead_after_s] = worlds.WorldManager(dead_after_s=dead_after_s)
        manager = self._managers[dead_after_s]
        began_s = time.monotonic()
        how: dict[str, Any] = {"rendezvous": meet_at, "transport": "nccl", "timeout_s": JOIN_S}
        self._worlds[name] = self.runner.run(manager.join_async(name, rank=rank, size=2, **how))
        return time.monotonic() - began_s

    def leave(self, *, name: str) -> None:
        """Leave it, together with the other one."""
        self.runner.run(self._worlds.pop(name).leave_async())

    def forget(self, *, name: str) -> None:
        """Drop a world that has broken."""
        self._worlds.pop(name)

    def end(self, *, name: str, what: str) -> dict[str, Any]:
        """Repeat one operation until the world has ended."""
        return asdict(self.runner.run(self.until_ended(name, what)))

    async def until_ended(self, name: str, what: str) -> Ended:
        """The same, in an event loop."""
        world = self._worlds[name]
        heard = asyncio.create_task(_heard(world))
        await asyncio.sleep(0)
        raised_s = 0.0
        if what != "idle":
            array = OnGpu(ELEMENTS)
            try:
                while True:
                    await _do(world, what, array)
            except worlds.WorldBrokenError:
                raised_s = time.monotonic()
            array.free()
        heard_s, cause = await heard
        return Ended(heard_s, raised_s or heard_s, cause)

    def sum_all(self, *, names: list[str], rounds: int) -> None:
        """Sum in all of these worlds at once, and look at every value.

        Raises:  RuntimeError for a wrong one.
        """
        self.runner.run(self._sum_all(names, rounds))

    async def _sum_all(self, names: list[str], rounds: int) -> None:
        await asyncio.gather(*(_sum(self._worlds[name], rounds) for name in names))

    def has(self) -> dict[str, int]:
        """Threads and descriptors of this process, and free memory of the GPU."""
        return {
            "threads": len(os.listdir("/proc/self/task")),
            "descriptors": len(os.listdir("/proc/self/fd")),
            "free_bytes": free_bytes(),
        }


async def _heard(world: worlds.World) -> tuple[float, str]:
    async for event in world.events():
        if event.kind is worlds.EventKind.BROKEN:
            return time.monotonic(), str(event.cause)
    raise RuntimeError("the world's events ended without its end")


async def _do(world: worlds.World, what: str, array: OnGpu) -> None:
    other = 1 - world.rank
    if what == "all_reduce":
        await world.all_reduce_async(array)
    elif what == "send":
        await world.send_async(array, dst=other)
    else:  # "recv" waits for what is never sent, "receiving" is in the middle of something
        await world.recv_async(array, src=other)


async def _sum(world: worlds.World, rounds: int) -> None:
    array = OnGpu(1 << 18)
    for number in range(rounds):
        array.fill(float(number + world.rank))
        await world.all_reduce_async(array)
        if not (array.read() == 2 * number + 1).all():
            raise RuntimeError(f"round {number} in {world} has a wrong value")
    array.free()


def play(host: str) -> None:
    """Be a member in a process of its own."""
    serve(GpuMember(host))
