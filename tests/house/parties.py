"""docs/internals/attacks.md and the tests that it names belong together."""

from __future__ import annotations

import re

from tests.house.faults import names_of_tests
from tests.house.tree import Tree

PAGE = "docs/internals/attacks.md"
HEADING = "## What each party sends, and what it gets"
HEAD = "| sends | gets | shown by |"
PARTIES = 5


def table(tree: Tree) -> list[str]:
    """Parties without a table, rows without a test, and names that no test has."""
    _, _, section = tree.read(PAGE).partition(HEADING)
    lines = section.partition("\n## ")[0].splitlines()
    tests = names_of_tests(tree)
    found = []
    if (tables := lines.count(HEAD)) != PARTIES:
        found.append(f"{PAGE}: {tables} tables of {PARTIES} parties")
    for line in lines:
        if not line.startswith("|") or line == HEAD or line.startswith("|---"):
            continue
        sends, *_, shown = (cell.strip() for cell in line.strip("|").split(" | "))
        names = re.findall(r"`([\w.]+)`", shown)
        found += [f"{PAGE}: {sends}: no test {name}" for name in names if name not in tests]
        if not names:
            found.append(f"{PAGE}: {sends}: a test is missing")
    return found
