"""What a process has for arrays on GPUs, as the members of a new world tell each other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hoplite_ray.worlds.handshake.frames import field


@dataclass(frozen=True, slots=True)
class Ability:
    """What a member has for arrays on GPUs: the code of NCCL's release, or why it has none."""

    code: int
    lacks: str
    is_needed: bool

    @classmethod
    def parsed(cls, fields: dict[str, Any]) -> Ability:
        """Raises RefusedError for what is none."""
        return cls(
            field(fields, "code", int),
            field(fields, "lacks", str),
            field(fields, "is_needed", bool),
        )
