"""The files a checker looks at: the repository's own, or a small sample that must fail."""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
GENERATED = re.compile(r"_pb2(_grpc)?\.pyi?$")


@dataclass(frozen=True, slots=True)
class Tree:
    """A folder and its files, as paths relative to it."""

    root: Path
    files: tuple[str, ...]

    def read(self, path: str) -> str:
        return (self.root / path).read_text()

    def exists(self, path: str) -> bool:
        return (self.root / path).exists()

    def matching(self, pattern: str) -> list[str]:
        """The written (not generated) files whose whole path matches."""
        return [f for f in self.files if re.fullmatch(pattern, f) and not GENERATED.search(f)]

    @property
    def cpp(self) -> list[str]:
        return self.matching(r"native/.*\.(h|cc)")

    @property
    def python(self) -> list[str]:
        return self.matching(r".*\.py")

    @property
    def package(self) -> list[str]:
        return self.matching(r"hoplite_ray/.*\.py")

    @property
    def shipped(self) -> list[str]:
        return self.matching(r"(hoplite_ray|serve_integration)/.*\.py")


@cache
def repository() -> Tree:
    """Files that git tracks or would track, without deleted ones."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return Tree(ROOT, tuple(f for f in sorted(set(listed.split("\n"))) if (ROOT / f).is_file()))


def sample(root: Path, files: dict[str, str]) -> Tree:
    """Write a small tree below `root`."""
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    return Tree(root, tuple(sorted(files)))


def without_comments(code: str) -> str:
    """C++ with comments and strings blanked; lines and columns stay where they are."""
    token = re.compile(
        r'//[^\n]*|/\*.*?\*/|R"\((?:.*?)\)"|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\'', re.S
    )

    def blank(match: re.Match[str]) -> str:
        text = match.group()
        if text[0] == "'" and code[match.start() - 1 : match.start()].isalnum():
            return text  # a digit separator, as in 1'000'000
        return re.sub(r"[^\n]", " ", text)

    return token.sub(blank, code)
