"""The package of Serve applications has one name, and its public names stay where they are."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from hoplite_ray import serve

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("name", ["serve_integration", "serve_integration.errors"])
def test_the_folder_can_not_be_imported_under_its_own_name(name: str) -> None:
    """From the root of the repository, where Python would find it."""
    command = [sys.executable, "-c", f"import {name}"]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert ran.returncode == 1
    assert "ImportError: import it as hoplite_ray.serve" in ran.stderr


def test_public_names_are_those_of_one_package() -> None:
    modules = {str(getattr(serve, name).__module__) for name in serve.__all__}
    assert all(module.startswith("hoplite_ray.serve.") for module in modules), modules
    assert not any(module.startswith("serve_integration") for module in sys.modules)
