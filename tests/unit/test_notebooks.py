"""Notebooks are kept as they are written, unless what they print is the same on every machine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks/notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
IN_VIRTUAL_TIME = {"contract"}  # their outputs are kept


def cells_of(notebook: Path) -> list[dict[str, Any]]:
    cells = [cell for cell in json.loads(notebook.read_text())["cells"] if "outputs" in cell]
    assert cells, "nothing runs in it"
    return cells


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_has_outputs_only_in_virtual_time(notebook: Path) -> None:
    cells = cells_of(notebook)
    if notebook.stem in IN_VIRTUAL_TIME:
        assert [cell["execution_count"] for cell in cells] == [*range(1, len(cells) + 1)]
        assert any("image/png" in output.get("data", {}) for c in cells for output in c["outputs"])
    else:
        assert not any(cell["outputs"] or cell["execution_count"] for cell in cells)


# Some 150 simulations; tests/unit/test_serve_plan.py holds that a plan repeats exactly.
@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.filterwarnings("ignore:FigureCanvasAgg is non-interactive:UserWarning")
@pytest.mark.parametrize("stem", sorted(IN_VIRTUAL_TIME))
def test_a_notebook_in_virtual_time_prints_what_it_keeps(
    stem: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import matplotlib

    matplotlib.use("agg")
    monkeypatch.chdir(FOLDER)
    names: dict[str, Any] = {"__name__": "hoplite_notebook"}
    for cell in cells_of(FOLDER / f"{stem}.ipynb"):
        exec(compile("".join(cell["source"]), stem, "exec"), names)
        kept = "".join("".join(each.get("text", "")) for each in cell["outputs"])
        assert capsys.readouterr().out == kept
