"""Devices that replicas run on, as tables: GPUs, whole or cut by MIG, and slots of a CPU.

A device is cut by one of the layouts of its kind. A layout is a list of slices, and a slice is held
by one replica, or by one bundle of replicas.

    A30, A100_40GB, A100_80GB, H100_80GB    GPUs that MIG can cut; the first layout is the whole GPU
    whole_gpu("l4", memory_bytes=...)       a GPU that is never cut
    cpu_slots(8, cores=2)                   a machine's cores, in slots of the same size

The names of slices are `KIND-PROFILE`, as in "a30-1g.6gb", where NVIDIA's name of the profile is
1g.6gb. A whole GPU's slice has the name of its kind. Source: NVIDIA's MIG user guide for the
profiles; `nvidia-smi mig -lgip` and `-lgipp` for memory, multiprocessors and places. Vortex 5.4.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from hoplite_ray.errors import InvalidArgumentError

_GIB = 1 << 30


class Processor(Enum):
    """The resource of Ray that a slice is part of."""

    GPU = "gpu"
    CPU = "cpu"


@dataclass(frozen=True, slots=True)
class Slice:
    """A part of a device.

    name:          one name for one size: slices of the same name are alike.
    memory_bytes:  the memory that programs can use; less than the number in NVIDIA's name.
    compute:       streaming multiprocessors of a GPU; cores of a CPU.
    """

    name: str
    memory_bytes: int
    compute: float
    processor: Processor = Processor.GPU


Layout = tuple[Slice, ...]


@dataclass(frozen=True, slots=True)
class DeviceKind:
    """Devices that are alike, and the layouts that one of them can have."""

    name: str
    layouts: tuple[Layout, ...]

    @property
    def slices(self) -> tuple[Slice, ...]:
        """Each size of slice once, from the largest memory to the smallest."""
        sizes = {each for layout in self.layouts for each in layout}
        return tuple(sorted(sizes, key=lambda each: (-each.memory_bytes, each.name)))


@dataclass(frozen=True, slots=True)
class Device:
    """One device of a cluster.

    name:  its own name in the cluster, for example "node3/gpu0".
    node:  the machine that it is in. Stages on one node exchange values without the network.
    """

    name: str
    kind: DeviceKind
    node: str


def whole_gpu(name: str, *, memory_bytes: int, compute: float = 1.0) -> DeviceKind:
    """Return the kind of a GPU that is never cut.

    name:          of the kind and of its only slice, for example "l4".
    memory_bytes:  the memory that programs can use.
    compute:       streaming multiprocessors. Only texts show it.
    """
    return DeviceKind(name, ((Slice(name, memory_bytes, compute),),))


def cpu_slots(count: int, *, cores: float = 1.0, memory_bytes: int = 1 << 62) -> DeviceKind:
    """Return the kind of a machine whose CPU has `count` slots of `cores` cores each.

    A slot's slice is called "cpu-CORES", for example "cpu-2". A replica on a GPU holds one core of
    Ray as well, so leave cores for those.

    memory_bytes:  of one slot; no limit if it is left out.

    Raises:  InvalidArgumentError for a number below 1 of slots, no cores, or 1.5 cores: Ray divides
             single cores only.
    """
    if count < 1 or not cores > 0 or (cores > 1 and cores % 1):
        raise InvalidArgumentError(
            f"cpu_slots({count}, cores={cores}): give at least one slot, and a part of a core or "
            "whole cores"
        )
    slot = Slice(f"cpu-{cores:g}", memory_bytes, cores, Processor.CPU)
    return DeviceKind(f"{count} x {slot.name}", ((slot,) * count,))


class _Profile(NamedTuple):
    """A profile of MIG: a row of `-lgip`, and its row of `-lgipp`."""

    name: str
    memory_gib: float
    multiprocessors: int
    parts: int  # of the memory
    starts: Sequence[int]  # the parts of the memory that it may begin at


def _cut_by_mig(kind: str, multiprocessors: int, *profiles: _Profile) -> DeviceKind:
    """Return the kind of a GPU with these profiles; the first has all of its memory."""
    slices = {
        each.name: Slice(f"{kind}-{each.name}", int(each.memory_gib * _GIB), each.multiprocessors)
        for each in profiles
    }
    whole = Slice(kind, slices[profiles[0].name].memory_bytes, multiprocessors)
    cut = [tuple(slices[name] for name in names) for names in _find_layouts(profiles)]
    return DeviceKind(kind, ((whole,), *cut))


def _find_layouts(profiles: Sequence[_Profile]) -> list[tuple[str, ...]]:
    """Return the sets of instances that fit on one GPU and leave no room for one more."""
    parts = profiles[0].parts

    def fill(at: int) -> Iterator[tuple[int, ...]]:
        if at == parts:
            yield ()
            return
        for number, each in enumerate(profiles):
            if at in each.starts:
                yield from ((number, *rest) for rest in fill(at + each.parts))
        yield from fill(at + 1)

    found = sorted({tuple(sorted(numbers)) for numbers in fill(0)})
    counted = [Counter(numbers) for numbers in found]
    whole = [
        numbers
        for numbers, counts in zip(found, counted, strict=True)
        if not any(counts < other for other in counted)
    ]
    return [tuple(profiles[number].name for number in numbers) for numbers in whole]


A30 = _cut_by_mig(
    "a30",
    56,
    _Profile("4g.24gb", 23.44, 56, 4, (0,)),
    _Profile("2g.12gb", 11.69, 28, 2, (0, 2)),
    _Profile("1g.6gb", 5.81, 14, 1, (0, 1, 2, 3)),
)
A100_40GB = _cut_by_mig(
    "a100-40gb",
    108,
    _Profile("7g.40gb", 39.38, 98, 8, (0,)),
    _Profile("4g.20gb", 19.62, 56, 4, (0,)),
    _Profile("3g.20gb", 19.62, 42, 4, (0, 4)),
    _Profile("2g.10gb", 9.75, 28, 2, (0, 2, 4)),
    _Profile("1g.10gb", 9.75, 14, 2, (0, 2, 4, 6)),
    _Profile("1g.5gb", 4.75, 14, 1, range(7)),
)
A100_80GB = _cut_by_mig(
    "a100-80gb",
    108,
    _Profile("7g.80gb", 79.0, 98, 8, (0,)),
    _Profile("4g.40gb", 39.25, 56, 4, (0,)),
    _Profile("3g.40gb", 39.25, 42, 4, (0, 4)),
    _Profile("2g.20gb", 19.5, 28, 2, (0, 2, 4)),
    _Profile("1g.20gb", 19.5, 14, 2, (0, 2, 4, 6)),
    _Profile("1g.10gb", 9.5, 14, 1, range(7)),
)
H100_80GB = _cut_by_mig(  # multiprocessors of the SXM card
    "h100-80gb",
    132,
    _Profile("7g.80gb", 79.25, 132, 8, (0,)),
    _Profile("4g.40gb", 39.5, 64, 4, (0,)),
    _Profile("3g.40gb", 39.5, 60, 4, (0, 4)),
    _Profile("2g.20gb", 19.62, 32, 2, (0, 2, 4)),
    _Profile("1g.20gb", 19.62, 26, 2, (0, 2, 4, 6)),
    _Profile("1g.10gb", 9.75, 16, 1, range(7)),
)
