"""The programs of docs/reference/serving.md and of the README for Serve run as they stand there."""

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
PAGE = "".join(_BLOCK.findall((ROOT / "docs/reference/serving.md").read_text()))


# The page's stages, ensembles and updates are those of the other files of this folder.
@pytest.mark.parametrize(
    "program",
    [*README, pytest.param(PAGE, marks=pytest.mark.slow)],
    ids=["README", "serving.md"],
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
