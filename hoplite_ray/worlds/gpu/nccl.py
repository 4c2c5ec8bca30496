"""NCCL in this process: the library, loaded once, and the communicators of a world.

A world has one communicator of all members, and with more than two members one for each pair. The
first member of a communicator gives each transfer its turn, so that no two transfers wait for each
other. The calls of NCCL, its failures and its end are in native/world/nccl.
"""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from hoplite_ray._native import Nccl, NcclBond, WorldOperation
from hoplite_ray.config import nccl_libraries
from hoplite_ray.errors import HopliteError, InvalidArgumentError, WorldError, WrongTypeError
from hoplite_ray.worlds.core.waiting import PENDING
from hoplite_ray.worlds.gpu.ability import Ability
from hoplite_ray.worlds.gpu.arrays import (
    OnGpu,
    is_on_gpu,
    is_torch,
    lend_interface,
    lend_torch,
    stream_of,
)

_BYTES = 1  # ncclUint8, for transfers that fold nothing
_DTYPES = {
    "int8": 0,
    "uint8": 1,
    "int32": 2,
    "uint32": 3,
    "int64": 4,
    "uint64": 5,
    "float16": 6,
    "float32": 7,
    "float64": 8,
    "bfloat16": 9,
}
_OPS = {"sum": 0, "prod": 1, "max": 2, "min": 3, "mean": 4}
_KINDS = ("send", "receive", "broadcast", "reduce", "all_reduce", "all_gather", "gather", "scatter")


class Gpu:
    """The communicators of a world, by their members' ranks, or why there are none.

    Any thread may use it. `lacks` is empty if the world carries arrays on GPUs.
    """

    def __init__(self, lacks: str = "", device: int = 0) -> None:
        self.lacks = lacks
        self.device = device
        self.bonds: dict[tuple[int, ...], NcclBond] = {}
        self._offers: Counter[int] = Counter()  # the number of the last offer to each rank
        self._lock = threading.Lock()

    def lend(self, value: Any, *, is_filled: bool) -> OnGpu:
        """Lend an array on this world's GPU to an operation, which fills it if `is_filled`.

        Raises:  WrongTypeError or InvalidArgumentError for an array that this world can't carry.
        """
        if not is_on_gpu(value):
            raise WrongTypeError(
                f"{type(value).__name__} is not on a GPU, and others of this call are; put it there"
            )
        if self.lacks:
            raise WrongTypeError(
                f"{type(value).__name__} is on a GPU, and this world carries memory of the CPU "
                f"only: {self.lacks}; send its .get() or .cpu(), or join with transport='nccl'"
            )
        lent = lend_torch(value) if is_torch(value) else lend_interface(value, is_filled)
        if lent.size_bytes == 0:
            return lent
        device = load().device_of(lent.address)
        if device != self.device:
            raise InvalidArgumentError(
                f"the array is on GPU {device}, and this world was joined for GPU {self.device}; "
                "copy it there, or join a world while that GPU is the current one"
            )
        return lent

    def next_offer(self, to: int) -> int:
        """Return the number of the next offer to a rank."""
        with self._lock:
            self._offers[to] += 1
            return self._offers[to]

    def issue(
        self,
        among: tuple[int, ...],
        kind: str,
        sources: Sequence[OnGpu],
        targets: Sequence[OnGpu],
        *,
        peer: int = 0,
        op: str | None = None,
        turn: int | None = None,
    ) -> tuple[WorldOperation, int]:
        """Begin a transfer that all members of `among` have agreed on; returns it and its turn."""
        bond = self.bonds[among]
        arrays = [*sources, *targets]
        part = arrays[0]
        issued = bond.issue(
            kind=_KINDS.index(kind),
            peer=among.index(peer),
            dtype=_BYTES if op is None else _DTYPES[part.dtype],
            op=0 if op is None else _OPS[op],
            count=part.size_bytes if op is None else part.count,
            part_bytes=part.size_bytes,
            sources=[each.address for each in sources],
            targets=[each.address for each in targets],
            after=stream_of(arrays),
            turn=turn,
        )
        _lent.append((issued[0], bond, arrays))
        return issued


# Keeps each array until its operation has ended, because a kernel may still touch its memory; for
# ever if the communicator could not be ended.
_lent: list[tuple[WorldOperation, NcclBond, list[OnGpu]]] = []


def give_back() -> None:
    """Release the arrays whose operations have ended."""
    for each in list(_lent):  # a copy, because other threads remove from it
        if each[0].state != PENDING and not each[1].is_leaked:
            with suppress(ValueError):  # another thread has removed it
                _lent.remove(each)


def check_fold(op: str, array: OnGpu) -> None:
    """Raise InvalidArgumentError if NCCL can't fold elements of this dtype by this op."""
    if op not in _OPS:
        raise InvalidArgumentError(f"op={op!r} is unknown; use one of {', '.join(_OPS)}")
    if array.dtype not in _DTYPES:
        raise InvalidArgumentError(
            f"NCCL can't fold {array.dtype}; it takes {', '.join(_DTYPES)}: gather the arrays"
        )
    if op == "mean" and "float" not in array.dtype:
        raise InvalidArgumentError(
            f"op='mean' can't fold {array.dtype}; use 'sum' and divide, or convert it to float32"
        )


# ---- the libraries

_loading = threading.Lock()
_nccl: Nccl | None = None


def _after_fork() -> None:
    global _loading, _nccl
    _loading, _nccl = threading.Lock(), None


os.register_at_fork(after_in_child=_after_fork)


def load(*, begin: bool = False) -> Nccl:
    """Return NCCL and the CUDA driver, loaded once.

    Raises:  InvalidArgumentError saying what is missing.
    """
    global _nccl
    with _loading:
        if _nccl is None:
            named, cuda = nccl_libraries()
            _nccl = Nccl([named] if named else find_libraries(), cuda, begin=begin)
        return _nccl


@cache
def find_libraries() -> list[str]:
    """Return where NCCL may be: in the wheel that torch and cupy use, or on the loader's path."""
    names = ["libnccl.so.2"]
    with suppress(ImportError, ValueError):
        found = find_spec("nvidia.nccl")
        for folder in (found.submodule_search_locations or ()) if found else ():
            wheel = Path(folder) / "lib" / "libnccl.so.2"
            if wheel.exists():
                names.insert(0, str(wheel))
    return names


def find_ability(transport: str) -> tuple[Ability, int]:
    """Return what this process has for a world that it joins by `transport`, and its GPU.

    Raises:  WorldError if the transport is "nccl", and this process has no NCCL.
    """
    if transport not in ("auto", "nccl"):
        return Ability(0, f"it was joined with transport={transport!r}", is_needed=False), 0
    is_needed = transport == "nccl"
    try:
        nccl = load(begin=is_needed)
        device = nccl.device(begin=is_needed)
    except HopliteError as error:
        if is_needed:
            raise WorldError(
                f"transport='nccl' can't be had: {error}; or join with transport='auto'"
            ) from error
        return Ability(0, str(error), is_needed=False), 0
    return Ability(nccl.code, "", is_needed=is_needed), device


def settle() -> None:
    """Wait, for a bounded time, until ended worlds have given back what they had on GPUs."""
    if _nccl is not None:
        _nccl.settle()
        give_back()
