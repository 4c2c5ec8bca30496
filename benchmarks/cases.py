"""The scenes to play: those of the design goals, or a sweep over sizes.

A limit is a multiple of the bound that a goal gives; it holds for the sizes that it was given for.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from scenes import COLLECTIVES, KIB, MIB, Scene, Variant

_SIZE = re.compile(r"(\d+)\s*([KMG]?)i?B?", re.IGNORECASE)
_UNITS = {"": 1, "K": KIB, "M": MIB, "G": 1 << 30}
_WORDS = {
    ("broadcast", Variant.PLAIN): "broadcast",
    ("broadcast", Variant.WAITS): "  all wait for the put",
    ("broadcast", Variant.SLOW_LINK): "  one link at 1/4: the others",
    ("broadcast", Variant.DEATH): "  a relay killed half-way: survivors",
    ("broadcast", Variant.STAGGERED): "  staggered over S/B: after the last",
    ("reduce", Variant.PLAIN): "reduce",
    ("reduce", Variant.STAGGERED): "  staggered over S/B: after the last",
    ("allreduce", Variant.PLAIN): "allreduce",
    ("allreduce", Variant.STAGGERED): "  staggered over S/B: after the last",
    ("allreduce", Variant.LATE): "  one late by S/B: after it",
    ("gather", Variant.PLAIN): "gather, of each node",
    ("allgather", Variant.PLAIN): "allgather, of each node",
    ("round_trip", Variant.PLAIN): "round trip",
    ("objects", Variant.PLAIN): "1,000 objects, of each node to the next",
}
# By collective and variant: the limit from 32 MiB on, and at 1 MiB.
_LIMITS = {
    ("broadcast", Variant.PLAIN): (1.04, 1.15),
    ("broadcast", Variant.WAITS): (1.04, 1.15),
    ("broadcast", Variant.SLOW_LINK): (1.3, None),
    ("broadcast", Variant.DEATH): (1.25, None),
    ("broadcast", Variant.STAGGERED): (1.1, None),
    ("reduce", Variant.PLAIN): (1.04, 1.2),
    ("reduce", Variant.STAGGERED): (1.1, None),
    ("allreduce", Variant.PLAIN): (1.02, None),
    ("allreduce", Variant.LATE): (1.15, None),
}
_MANY_NODES = 16
_MANY_NODES_LIMIT = 1.25  # of a broadcast of 1 MiB, which is deeper there


@dataclass(frozen=True, slots=True)
class Case:
    """One line of the table."""

    number: int
    scene: Scene

    @property
    def name(self) -> str:
        """The first words of the line."""
        return _WORDS[self.scene.collective, self.scene.variant]

    @property
    def limit(self) -> float | None:
        """The limit of the median, as a multiple of the bound; None without a goal."""
        scene = self.scene
        large, medium = _LIMITS.get((scene.collective, scene.variant), (None, None))
        if scene.size_bytes >= 32 * MIB:
            return large
        if scene.size_bytes != MIB:
            return None
        if scene.collective == "broadcast" and scene.nodes >= _MANY_NODES:
            return _MANY_NODES_LIMIT
        return medium

    def is_wanted(self, only: Sequence[str]) -> bool:
        """True if `only` is empty or has the case's number, collective or variant."""
        names = {str(self.number), self.scene.collective, self.scene.variant.value}
        return not only or not names.isdisjoint(only)


def goals(*, nodes: int, rate_mbit: float, large_bytes: int) -> list[Case]:
    """The lines that goals are about, and what belongs beside them; their numbers stay."""
    plain, waits, staggered = Variant.PLAIN, Variant.WAITS, Variant.STAGGERED
    each = large_bytes // nodes
    scenes = [
        ("broadcast", large_bytes, plain),
        ("broadcast", large_bytes, waits),
        ("broadcast", large_bytes, Variant.SLOW_LINK),
        ("broadcast", large_bytes, Variant.DEATH),
        ("broadcast", large_bytes, staggered),
        ("reduce", large_bytes, plain),
        ("reduce", large_bytes, staggered),
        ("allreduce", large_bytes, plain),
        ("allreduce", large_bytes, Variant.LATE),
        ("gather", each, plain),
        ("allgather", each, plain),
        ("broadcast", MIB, plain),
        ("broadcast", MIB, waits),
        ("reduce", MIB, plain),
        ("allreduce", MIB, plain),
        ("broadcast", KIB, plain),
        ("broadcast", KIB, waits),
        ("reduce", KIB, plain),
        ("allreduce", KIB, plain),
        ("allreduce", large_bytes, staggered),
        ("round_trip", large_bytes, plain),
        ("round_trip", MIB, plain),
        ("round_trip", KIB, plain),
        ("objects", KIB, plain),
    ]
    return _numbered(Scene(*scene, nodes=nodes, rate_mbit=rate_mbit) for scene in scenes)


def sweep(*, nodes: int, rate_mbit: float, sizes_bytes: Sequence[int]) -> list[Case]:
    """Every collective at every size, many objects of 1 KiB, and of the largest every variant."""
    scenes = [
        Scene(collective, size_bytes, Variant.PLAIN, nodes=nodes, rate_mbit=rate_mbit)
        for collective in COLLECTIVES
        for size_bytes in ([KIB] if collective == "objects" else sizes_bytes)
    ]
    largest = max(sizes_bytes)
    scenes += [
        Scene(collective, largest, variant, nodes=nodes, rate_mbit=rate_mbit)
        for collective, variant in _WORDS
        if variant != Variant.PLAIN
    ]
    return _numbered(scenes)


def size_bytes(text: str) -> int:
    """Read a size such as 32MiB, 32M or 32768.

    Raises:  ValueError.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None or int(match[1]) * _UNITS[match[2].upper()] < 4:
        raise ValueError(f"{text!r} is no size: write it as in 1KiB, 32M or 4096")
    return int(match[1]) * _UNITS[match[2].upper()] // 4 * 4


def _numbered(scenes: Iterable[Scene]) -> list[Case]:
    return [Case(number, scene) for number, scene in enumerate(scenes, start=1)]
