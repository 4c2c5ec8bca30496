"""A library in the place of NCCL and of the CUDA driver, which the native build makes for tests.

It works on the host's memory and over sockets; FAKE_NCCL names its faults. Its kernels wait for a
peer that is gone until they are aborted, as NCCL's do.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np

from tests.process.world_crew import Crew, Here, free_address

LIBRARY = Path(__file__).parents[2] / "build/editable/libfake_nccl.so"

Numpy = np.ndarray[Any, Any]


class OnFake:
    """Memory of the host that says that it is a GPU's, as cupy's arrays do."""

    def __init__(self, array: Numpy, stream: int | None = None) -> None:
        self.array = array
        self.stream = stream

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "shape": self.array.shape,
            "typestr": self.array.dtype.str,
            "data": (self.array.ctypes.data, not self.array.flags.writeable),
            "strides": None if self.array.flags.c_contiguous else self.array.strides,
            "version": 3,
            "stream": self.stream,
        }


class _Cupy(types.ModuleType):
    """The part of cupy that arrays in a value need, on memory of the host."""

    class ndarray(OnFake):
        __module__ = "cupy"

        def __init__(self, array: Numpy) -> None:
            super().__init__(array)
            self.dtype, self.shape, self.nbytes = array.dtype, array.shape, array.nbytes
            self.device = types.SimpleNamespace(id=0)

        def reshape(self, shape: Any) -> Any:
            return _Cupy.ndarray(self.array.reshape(shape))

    cuda = types.SimpleNamespace(Device=lambda device: contextlib.nullcontext(device))

    @staticmethod
    def empty(shape: Any, dtype: Any) -> Any:
        return _Cupy.ndarray(np.full(shape, 77, dtype))

    @staticmethod
    def ascontiguousarray(value: Any) -> Any:  # which makes an axis where there is none
        return _Cupy.ndarray(np.ascontiguousarray(value.array))


def stand_in_for_cupy() -> Any:
    """Have a module of that name in this process."""
    return sys.modules.setdefault("cupy", _Cupy("cupy"))


def numbers(rank: int, count: int, dtype: Any = np.float32) -> Numpy:
    return ((np.arange(count) + rank) % 7 + 1).astype(dtype)


def zeros(count: int, dtype: Any = np.float32) -> OnFake:
    return OnFake(np.zeros(count, dtype))


def fake() -> ctypes.CDLL:
    return ctypes.CDLL(str(LIBRARY))


async def equip(here: Here, faults: str = "") -> None:
    """A play: the fake is what this process finds."""
    os.environ["HOPLITE_RAY_NCCL_LIBRARY"] = str(LIBRARY)
    os.environ["HOPLITE_RAY_CUDA_LIBRARY"] = str(LIBRARY)
    os.environ["FAKE_NCCL"] = faults
    fake().fake_forget()


async def join(
    here: Here, rank: int, size: int, name: str, address: str, how: dict[str, Any]
) -> int | None:
    """A play: join a world; returns its GPU."""
    how = {"transport": "nccl", **how}
    return (await here.join_async(name, rank=rank, size=size, rendezvous=address, **how)).device


def ready(gpus: Crew, size: int, *names: str, faults: str = "", **how: Any) -> None:
    """Members that are in these worlds."""
    for member in gpus.muster(size):
        member.ask(equip, faults)
    address = free_address()
    for name in names:
        assert gpus.together(join, name, address, how) == [0] * size
