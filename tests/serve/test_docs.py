"""The programs of the README and of the pages about Serve run as they stand there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from ray import serve

from tests.serve.conftest import Node

ROOT = Path(__file__).resolve().parents[2]
_BLOCK = re.compile(r"^```python\n(.*?)^```", re.S | re.M)
_PRINTS = re.compile(r"^ *print\(.*\) +# (.*)$", re.M)

README = [each for each in _BLOCK.findall((ROOT / "README.md").read_text()) if "serve.run" in each]
PAGES = {
    page: "".join(_BLOCK.findall((ROOT / "docs" / page).read_text()))
    for page in (
        "get-started/first-pipeline.md",
        "how-to/keep-queries-through-failures.md",
        "how-to/serve-an-ensemble.md",
        "how-to/serve-large-values.md",
    )
}


# The pages' stages, ensembles and updates are those of the other files of this folder.
@pytest.mark.parametrize(
    "program",
    [*README, *(pytest.param(each, marks=pytest.mark.slow) for each in PAGES.values())],
    ids=["README"] * len(README) + [*PAGES],
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
