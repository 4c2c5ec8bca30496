"""docs/internals/growth.md names every container of native/, with its bound or its reason."""

from __future__ import annotations

import re

from tests.house.faults import names_of_tests
from tests.house.tree import Tree, without_comments

PAGE = "docs/internals/growth.md"
BOUNDED = "| container | grows by | bound | shown by |"
_HEADERS = r"native/(plan|io|node|world)/(?!.*_test\.h)[\w/]+\.h"
_KINDS = r"std::(?:multimap|map|multiset|set|vector|deque|list)"
_MEMBER = re.compile(
    rf"^\s+(?:mutable |const )?(?:std::optional<)?{_KINDS}<[^;()]*>\s+(\w+)\s*(?:[={{][^;]*)?;",
    re.M,
)
_ALIAS = re.compile(r"^\s*using (\w+) = std::(?:multimap|map|set|deque|list)<", re.M)


def members(tree: Tree) -> set[tuple[str, str]]:
    """The containers of each header, by their names; a type of a container has its own name."""
    found = set()
    for path in tree.matching(_HEADERS):
        code = without_comments(tree.read(path))
        header = path.removeprefix("native/")
        found |= {(header, name) for name in _MEMBER.findall(code) + _ALIAS.findall(code)}
    return found


def table(tree: Tree) -> list[str]:
    """Containers that no row names, rows that name none, and bounds that no test shows."""
    there, tests = members(tree), names_of_tests(tree)
    named: set[tuple[str, str]] = set()
    found = []
    is_bounded = False
    for line in tree.read(PAGE).splitlines():
        if not line.startswith("|"):
            is_bounded = False
            continue
        is_bounded = is_bounded or line == BOUNDED
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        rows = _named(cells[0], there)
        found += [f"{PAGE}: {header} has no container {name}" for header, name in rows - there]
        named |= rows
        shown = re.findall(r"`(\w+\.\w+)`", cells[-1]) if is_bounded and rows else ["-"]
        found += [f"{PAGE}: {name}: no such test" for name in shown if name not in {*tests, "-"}]
        if not shown:
            found.append(
                f"{PAGE}: {cells[0]}: no test reaches the bound; name one in the last cell"
            )
    missing = sorted(there - named)
    return found + [
        f"native/{header}: {name} is in no row of {PAGE}: write there what makes it grow, its "
        "bound and the test that reaches it; or in the last table why nothing from outside does"
        for header, name in missing
    ]


def _named(cell: str, there: set[tuple[str, str]]) -> set[tuple[str, str]]:
    rows: set[tuple[str, str]] = set()
    for part in cell.split(";"):
        header, *names = re.findall(r"`([\w:/.]+)`", part) or [""]
        if part.rstrip().endswith(" all"):
            rows |= {(file, name) for file, name in there if file == header}
        rows |= {(header, name.rpartition("::")[2]) for name in names}
    return rows
