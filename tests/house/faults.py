"""docs/internals/faults.md and the tests that it names belong together."""

from __future__ import annotations

import re

from tests.house.tree import Tree

PAGE = "docs/internals/faults.md"
SCENARIOS = r"native/sim/scenarios/(.*_)?fault_scenarios_test\.cc"
GTEST = re.compile(r"^TEST(?:_[FP])?\((\w+), (\w+)\)", re.M)
PYTEST = re.compile(r"^(?:async )?def (test_\w+)\(", re.M)
NATIVE = r"native/.*_test\.cc"
STAR = "★"


def rows(tree: Tree) -> list[list[str]]:
    """The cells of every fault, without the tables' heads; other tables have other heads."""
    found: list[list[str]] = []
    is_of_faults = False
    for line in tree.read(PAGE).splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        is_of_faults = line.startswith("|") and (is_of_faults or cells[0] == "fault")
        if is_of_faults and cells[0] != "fault" and not cells[0].startswith("---"):
            found.append(cells)
    return found


def table(tree: Tree) -> list[str]:
    """Names that no test has, scenarios that no line has, and starred lines without a process."""
    native, python = _gtests(tree, NATIVE), _pytests(tree)
    found, named = [], set()
    for fault, *tests in rows(tree):
        for simulated, cell in zip((True, False), tests, strict=True):
            names = re.findall(r"`([\w.]+)`", cell)
            named.update(names)
            known = native if simulated else python
            found += [f"{PAGE}: {fault}: no test {name}" for name in names if name not in known]
            if not names and (simulated or STAR in fault):
                found.append(f"{PAGE}: {fault}: a test is missing")
    missing = sorted(_gtests(tree, SCENARIOS) - named)
    return found + [f"{PAGE}: no line names {name}" for name in missing]


def names_of_tests(tree: Tree) -> set[str]:
    """All tests of both languages, as pages name them."""
    return _gtests(tree, NATIVE) | _pytests(tree)


def _pytests(tree: Tree) -> set[str]:
    return {name for path in tree.python for name in PYTEST.findall(tree.read(path))}


def _gtests(tree: Tree, pattern: str) -> set[str]:
    return {
        f"{suite}.{name}"
        for path in tree.matching(pattern)
        for suite, name in GTEST.findall(tree.read(path))
    }
