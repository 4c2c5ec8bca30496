"""No file has unfinished work, or paths that exist on one machine only."""

from __future__ import annotations

import re

from tests.house.tree import Tree

UNFINISHED = re.compile(
    r"\b(?:TO[D]O|FIX[M]E|XX[X]|HA[C]K)\b"
)  # bracketed, so that this line is not a hit
MACHINE = re.compile(
    r"(?<![\w.])/(?:work|root|farm)/|/home/[a-z]|(?<![\w.])/tmp/[a-z]+/|/opt/[a-z]|pyenv/version[s]"
)
BANNER = re.compile(r"^\s*(?://|#|\*)\s*(?:[-=*#/]{10,}\s*$|@?author\b|copyright\b)", re.I)


def _written(tree: Tree) -> list[str]:
    return [path for path in tree.files if path != "LICENSE" and _is_text(tree, path)]


def _is_text(tree: Tree, path: str) -> bool:
    return b"\0" not in (tree.root / path).read_bytes()[:4096]


def _lines_with(tree: Tree, pattern: re.Pattern[str], why: str) -> list[str]:
    return [
        f"{path}:{number}: {why}: {line.strip()}"
        for path in _written(tree)
        for number, line in enumerate(tree.read(path).split("\n"), 1)
        if pattern.search(line)
    ]


def unfinished(tree: Tree) -> list[str]:
    return _lines_with(tree, UNFINISHED, "unfinished work")


def machine_paths(tree: Tree) -> list[str]:
    return _lines_with(tree, MACHINE, "a path of one machine")


def banners(tree: Tree) -> list[str]:
    sources = Tree(tree.root, tuple(tree.cpp + tree.python))
    return _lines_with(sources, BANNER, "no banner, no author, no copyright line")


def licences(tree: Tree) -> list[str]:
    """Each native source names its licence in its first line."""
    first = "// SPDX-License-Identifier: Apache-2.0"
    return [
        f"{path}: the first line must be {first}"
        for path in tree.cpp
        if not tree.read(path).startswith(first + "\n")
    ]
