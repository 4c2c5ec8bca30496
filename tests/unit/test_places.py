"""How the command finds a Ray cluster, by a Python that is a script of the test's."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from hoplite_ray.cli import main
from hoplite_ray.cli.cluster import places
from hoplite_ray.cli.cluster.places import NoClusterError
from hoplite_ray.errors import ControlError

SAYS_BOTH = "printf '%s\\n' imported '{\"address\": \"here:1\"}'"


@pytest.fixture
def python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """`python(body)`: what Python does in place of asking Ray."""

    def write(body: str) -> None:
        script = tmp_path / "python"
        script.write_text(f"#!/bin/sh\n{body}\n")
        script.chmod(0o700)
        monkeypatch.setattr(sys, "executable", str(script))

    return write


def test_importing_ray_is_not_of_the_limit(python: Callable[[str], None]) -> None:
    python(f"sleep 1.5; {SAYS_BOTH}")
    assert places._ask_ray(None, timeout_s=1.0) == {"address": "here:1"}


def test_an_import_that_never_ends_is_said(
    python: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    python("exec sleep 600")
    monkeypatch.setattr(places, "_IMPORT_S", 0.1)
    with pytest.raises(ControlError, match=r"Python did not import Ray within 0\.1 s"):
        places._ask_ray(None, timeout_s=60.0)


def test_a_ray_that_does_not_answer_is_said(python: Callable[[str], None]) -> None:
    python("echo imported; exec sleep 600")
    with pytest.raises(ControlError, match=r"Ray at here:1 did not answer within 0\.1 s"):
        places._ask_ray("here:1", timeout_s=0.1)


@pytest.mark.parametrize("first", ["", "echo imported; "], ids=["before", "after the import"])
def test_the_last_words_of_who_fails_are_said(python: Callable[[str], None], first: str) -> None:
    python(f"{first}echo 'no module named ray' >&2; exit 1")
    with pytest.raises(NoClusterError, match=r"at there:1 \(no module named ray\)"):
        places._ask_ray("there:1", timeout_s=60.0)


def test_what_was_told_may_be_long(python: Callable[[str], None], tmp_path: Path) -> None:
    told = {"view": "ff" * (1 << 20)}
    (tmp_path / "told").write_text(json.dumps(told))
    python(f"echo imported; cat {tmp_path}/told; echo")
    assert places._ask_ray(None, timeout_s=60.0) == told


@pytest.mark.parametrize(
    "arguments",
    [
        ["drain", ""],
        ["drain", " "],
        ["status", "--address", ""],
        ["status", "--control", "", "--secret-file", "secret"],
        ["doctor", "--directory", ""],
    ],
    ids=" ".join,
)
def test_an_empty_word_names_nothing(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """As of a shell's variable that is not set: `hoplite-ray drain "$NODE"`."""
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert "it is empty, and names nothing: is a variable not set?" in capsys.readouterr().err
