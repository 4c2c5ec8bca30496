"""The page of mistakes, without Ray and on the command line: each row is answered as it says."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.mistakes import Mistake, answer_of, answer_of_command, section
from tests.process.command import FOR_RAY

STORE, COMMANDS = section("Without Ray"), section("On the command line")


@pytest.fixture(scope="module")
def names() -> Iterator[dict[str, Any]]:
    given: dict[str, Any] = {}
    exec(STORE.given, given)
    yield given
    given["other"].close()
    given["store"].close()


@pytest.mark.parametrize("mistake", STORE.mistakes, ids=str)
def test_the_store_answers(mistake: Mistake, names: dict[str, Any]) -> None:
    answer = answer_of(mistake, names)
    assert mistake.accepts(answer), answer


@pytest.mark.parametrize("mistake", COMMANDS.mistakes, ids=str)
def test_the_command_line_answers(mistake: Mistake, tmp_path: Path) -> None:
    beside = os.path.dirname(sys.executable)
    environment = os.environ | {"PATH": f"{beside}:{os.environ['PATH']}", "RAY_ADDRESS": ""}
    unhurried = mistake
    if "--address" in mistake.typed:  # to import Ray takes long where cores are busy
        unhurried = replace(mistake, typed=" ".join([mistake.typed, *FOR_RAY]))
    answer = answer_of_command(unhurried, cwd=tmp_path, env=environment)
    assert mistake.accepts(answer), answer
