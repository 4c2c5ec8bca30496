"""Examples, benchmarks and notebooks are loaded and read without being run: none rots."""

from __future__ import annotations

import ast
import json
import re
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.unit.programs import refused_calls

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted(
    path for folder in ("examples", "benchmarks") for path in (ROOT / folder).rglob("*.py")
)
PROGRAM = re.compile(r"^if __name__ ==", re.M)
OPTIONS = re.compile(r"(ArgumentParser|parse_options)\(")  # a program without runs as it is
PROGRAMS = [
    path for path in FILES if PROGRAM.search(path.read_text()) and OPTIONS.search(path.read_text())
]
OURS = frozenset({"hoplite_ray", "support", "peers", *(path.stem for path in FILES)})
NOTEBOOKS = sorted((ROOT / "benchmarks/notebooks").glob("*.ipynb"))
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of what they import


def of(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.fixture(autouse=True)
def own_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs import their neighbours by name."""
    for folder in ("benchmarks", "examples"):
        monkeypatch.syspath_prepend(ROOT / folder)


@pytest.mark.parametrize("path", FILES, ids=of)
def test_it_loads_and_calls_what_is_there(path: Path) -> None:
    names = runpy.run_path(str(path), run_name=path.stem)
    assert not list(refused_calls(ast.parse(path.read_text()), names, OURS))


@pytest.mark.parametrize("path", PROGRAMS, ids=of)
def test_it_has_help_and_a_toy(
    path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [str(path), "--help"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(path), run_name="__main__")
    assert not ended.value.code
    assert "--toy" in capsys.readouterr().out


@pytest.mark.parametrize("path", NOTEBOOKS, ids=of)
def test_a_notebook_calls_what_is_there(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(path.parent)
    cells = json.loads(path.read_text())["cells"]
    code = "\n".join("".join(each["source"]) for each in cells if each["cell_type"] == "code")
    tree = ast.parse(re.sub(r"^%.*$", "", code, flags=re.M))
    imports = [each for each in tree.body if isinstance(each, ast.Import | ast.ImportFrom)]
    names: dict[str, Any] = {}
    exec(compile(ast.Module(imports, []), of(path), "exec"), names)
    assert not list(refused_calls(tree, names, OURS))


PLANTED = """
import hoplite_ray as hop
from hoplite_ray import Store

def play(store):
    hop.put_all(1)
    hop.reduce([], op="sum", how_many=3)
    Store.attach("socket", nothing=1)
    hop.get(1, *store, no_such=2)
    hop = store
    hop.whatever()
"""


def test_a_call_that_can_not_be_is_found() -> None:
    right = PLANTED.replace("    hop = store\n    hop.whatever()\n", "")
    names: dict[str, Any] = {}
    exec("import hoplite_ray as hop\nfrom hoplite_ray import Store", names)
    found = list(refused_calls(ast.parse(right), names, OURS))
    assert [line.partition(":")[0] for line in found] == [f"line {n}" for n in (6, 7, 8, 9)], found


def test_what_a_function_binds_itself_is_not_judged() -> None:
    names: dict[str, Any] = {}
    exec("import hoplite_ray as hop\nfrom hoplite_ray import Store", names)
    found = list(refused_calls(ast.parse(PLANTED), names, OURS))
    assert [line.partition(":")[0] for line in found] == ["line 8"], found
