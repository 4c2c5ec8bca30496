"""The limits of tests/conftest.py, each shown on a small test run of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import COMPLAINED
from tests.house.tree import ROOT

SLEEPER = """
import subprocess, sys
def test_leaves_a_process():
    subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
    leaked.append(1)
leaked = []
"""


def run(folder: Path, test: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Run one test file under our conftest, with no grace for leaked processes."""
    conftest = (ROOT / "tests/conftest.py").read_text()
    (folder / "conftest.py").write_text(conftest + "\nLEAK_GRACE_S = 0.0\n")
    (folder / "test_sample.py").write_text(test)
    environment = os.environ | {"HOPLITE_TEST_SEED": "7"}
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", str(folder), *options]
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


def test_passing_run_prints_its_seed(tmp_path: Path) -> None:
    done = run(tmp_path, "def test_a(seed): assert seed == 7\n")
    assert done.returncode == pytest.ExitCode.OK
    assert "seed: 7" in done.stdout


def test_silent_skip_fails_the_run(tmp_path: Path) -> None:
    done = run(tmp_path, "import pytest\ndef test_a(): pytest.skip('not today')\n")
    assert done.returncode == COMPLAINED
    assert "not on the list: test_sample.py::test_a: Skipped: not today" in done.stdout


def test_skipped_module_fails_the_run(tmp_path: Path) -> None:
    done = run(tmp_path, "import pytest\npytest.importorskip('no_such_module')\n")
    assert done.returncode == COMPLAINED


def test_listed_skip_passes(tmp_path: Path) -> None:
    done = run(tmp_path, "import pytest\ndef test_a(): pytest.skip('no GPU')\ndef test_b(): pass\n")
    assert done.returncode == pytest.ExitCode.OK


def test_process_left_behind_fails_the_run(tmp_path: Path) -> None:
    done = run(tmp_path, SLEEPER)
    assert done.returncode == COMPLAINED
    assert "process left behind" in done.stdout


def test_a_failed_test_says_more_than_what_it_left(tmp_path: Path) -> None:
    done = run(tmp_path, f"{SLEEPER}def test_fails(): assert not leaked\n")
    assert done.returncode == pytest.ExitCode.TESTS_FAILED
    assert "process left behind" in done.stdout


def test_workers_tell_the_controller_what_they_complain_of(tmp_path: Path) -> None:
    skips = "import pytest\ndef test_skips(): pytest.skip('not today')\n"
    done = run(tmp_path, f"{SLEEPER}{skips}", "--numprocesses=2")
    assert done.returncode == COMPLAINED
    assert done.stdout.count("FAILED process left behind") == 1
    assert done.stdout.count("FAILED skipped for a reason that is not on the list") == 1


def test_what_a_worker_that_died_has_left_is_found(tmp_path: Path) -> None:
    dies = (
        "import os, subprocess\ndef test_dies(): subprocess.Popen(['sleep', '20']); os._exit(1)\n"
    )
    done = run(tmp_path, dies, "--numprocesses=1", "--max-worker-restart=0")
    assert done.returncode == pytest.ExitCode.TESTS_FAILED
    assert "FAILED process left behind" in done.stdout


def test_empty_folder_fails_the_run(tmp_path: Path) -> None:
    assert run(tmp_path, "").returncode == pytest.ExitCode.NO_TESTS_COLLECTED
