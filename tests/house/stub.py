"""The committed stub of the extension module is the one that the built module yields."""

from __future__ import annotations

import difflib
import subprocess
import sys
from pathlib import Path

from tests.house.tree import ROOT

COMMITTED = ROOT / "hoplite_ray/_native.pyi"


def generated(folder: Path) -> str:
    """The stub of the module as it is built now."""
    output = folder / "_native.pyi"
    command = [sys.executable, "-m", "nanobind.stubgen", "-q", "-m", "hoplite_ray._native"]
    subprocess.run([*command, "-o", str(output)], check=True, cwd=ROOT)
    return output.read_text()


def difference(committed: str, built: str) -> list[str]:
    lines = difflib.unified_diff(
        committed.splitlines(), built.splitlines(), "committed", "built", lineterm="", n=1
    )
    return list(lines)


if __name__ == "__main__":  # by `make fix`
    COMMITTED.write_text(generated(Path(sys.argv[1])))
