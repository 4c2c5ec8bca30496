"""Reads docs/internals/mistakes.md: each row has what is typed and what must be answered."""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PAGE = Path(__file__).resolve().parents[1] / "docs" / "internals" / "mistakes.md"
_CELL = r"`((?:[^`\\]|\\.)+)`"
_ROW = re.compile(rf"^\| {_CELL} \| {_CELL} \|$", re.M)
_GIVEN = re.compile(r"^```python\n(.*?)^```", re.M | re.S)


@dataclass(frozen=True, slots=True)
class Mistake:
    """One row. An ellipsis in the answer stands for anything."""

    typed: str
    answered: str

    def __str__(self) -> str:
        return self.typed

    def accepts(self, answer: str) -> bool:
        parts = map(re.escape, self.answered.split("…"))
        return re.fullmatch(".*".join(parts), answer, re.S) is not None


@dataclass(frozen=True, slots=True)
class Section:
    """A heading of the page: the program that its rows begin with, and the rows."""

    given: str
    mistakes: tuple[Mistake, ...]


def section(heading: str) -> Section:
    text = PAGE.read_text().split(f"\n## {heading}\n", 1)[1].split("\n## ", 1)[0]
    given = "".join(_GIVEN.findall(text))
    rows = tuple(Mistake(*map(_plain, row)) for row in _ROW.findall(text))
    assert rows, f"docs/internals/mistakes.md: no rows under {heading!r}"
    return Section(given, rows)


def _plain(cell: str) -> str:
    return cell.replace("\\|", "|")


def answer_of(mistake: Mistake, names: dict[str, Any]) -> str:
    """What Python answers to it: the class and the text of what is raised, on one line."""
    try:
        exec(compile(mistake.typed, "mistake", "exec"), names)
    except Exception as error:
        return " ".join(f"{type(error).__name__}: {error}".split())
    return "nothing was raised"


def answer_of_command(mistake: Mistake, **options: Any) -> str:
    """The last line that a command prints, and its exit status."""
    done = subprocess.run(
        mistake.typed, shell=True, capture_output=True, text=True, check=False, **options
    )
    lines = (done.stdout + done.stderr).strip().splitlines() or ["nothing"]
    return f"{lines[-1]} (status {done.returncode})"
