"""The programs of the pages about Serve run as they stand there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from ray import serve

from tests.serve.conftest import Node

ROOT = Path(__file__).resolve().parents[2]
_BLOCK = re.compile(r"^```python\n(.*?)^```", re.S | re.M)
_PRINTS = re.compile(r"^ *print\(.*\) +# (.*)$", re.M)

PAGES = {
    page: "".join(_BLOCK.findall((ROOT / "docs" / page).read_text()))
    for page in (
        "get-started/first-pipeline.md",
        "how-to/keep-a-latency.md",
        "how-to/keep-queries-through-failures.md",
        "how-to/serve-an-ensemble.md",
        "how-to/serve-large-values.md",
        "how-to/share-weights-between-replicas.md",
    )
}


# The how-tos' stages, ensembles and updates are those of the other files of this folder.
@pytest.mark.parametrize(
    "program",
    [
        pytest.param(program, marks=pytest.mark.slow if page.startswith("how-to/") else ())
        for page, program in PAGES.items()
    ],
    ids=[*PAGES],
)
def test_a_program_prints_what_it_says(
    program: str, node: Node, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    before = set(serve.status().applications)
    program = program.replace("http://localhost:8000", node.http)
    exec(compile(program, "program.py", "exec"), {"__name__": "__main__"})
    printed = capsys.readouterr().out.splitlines()
    for name in set(serve.status().applications) - before:
        serve.delete(name)
    assert [line for line in printed if line in _PRINTS.findall(program)] == _PRINTS.findall(
        program
    )
