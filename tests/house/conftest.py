"""Files that are longer than they should be are named at the end; only those far longer fail."""

from __future__ import annotations

import pytest

from tests.house.sizes import FILE_LINES_GOOD, long_files
from tests.house.tree import repository


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    tree = repository()
    for line in long_files(tree, tree.cpp + tree.python, FILE_LINES_GOOD):
        terminalreporter.write_line(f"long: {line}")
