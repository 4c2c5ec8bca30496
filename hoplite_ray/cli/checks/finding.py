"""The result of one check of the doctor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Level = Literal["ok", "warn", "fail"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One line: what was checked, how it is and why, and what to do next unless it is ok."""

    level: Level
    about: str
    cause: str
    next_step: str = ""

    def __str__(self) -> str:
        line = f"{self.level:<4}  {self.about}: {self.cause}"
        return f"{line}; next: {self.next_step}" if self.next_step else line
