"""The ability of a process to carry arrays on GPUs, as the members of a new world exchange it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hoplite_ray.worlds.handshake.frames import field


@dataclass(frozen=True, slots=True)
class Ability:
    """The ability of a member to carry arrays on GPUs.

    code:       the code of its NCCL release.
    lacks:      why it has no NCCL; empty if it has it.
    is_needed:  True if it joins with transport="nccl", so that a world without NCCL is an error.
    """

    code: int
    lacks: str
    is_needed: bool

    @classmethod
    def parse(cls, fields: dict[str, Any]) -> Ability:
        """Read an ability of a frame. Raises RefusedError for a value that is none."""
        return cls(
            field(fields, "code", int),
            field(fields, "lacks", str),
            field(fields, "is_needed", bool),
        )
