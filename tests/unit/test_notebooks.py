"""The notebooks are kept as they are written: what they print is of the machine they run on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

NOTEBOOKS = sorted((Path(__file__).parents[2] / "benchmarks/notebooks").glob("*.ipynb"))


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_has_no_output(notebook: Path) -> None:
    cells = [cell for cell in json.loads(notebook.read_text())["cells"] if "outputs" in cell]
    assert cells, "nothing runs in it"
    assert not any(cell["outputs"] or cell["execution_count"] for cell in cells)
