"""Repeated runs of a folder: what is counted, and from which rate on it is too much."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import flakes
import pytest
import steps
from schedule import Step

TEST = "tests/process/test_a.py::test_b[1]"


def reporting(name: str, *, fails_in: int = 0, lane: str = "compute") -> Step:
    """A step that writes what pytest would: a test that passes, but for one round."""
    lines = {
        outcome: shlex.quote(
            json.dumps(
                {
                    "$report_type": "TestReport",
                    "nodeid": TEST,
                    "outcome": outcome,
                    "duration": 1.0,
                    "longrepr": "the traceback",
                }
            )
        )
        for outcome in ("passed", "failed")
    }
    command = f"""
        echo >> rounds-{name}
        line={lines["passed"]}
        [ "$(wc -l < rounds-{name})" = {fails_in} ] && line={lines["failed"]}
        echo "$line" >> {steps.report_log(name)}
    """
    return Step(name, command, 10, lane)


@pytest.fixture
def gate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """An empty clone whose folders pass all of their tests."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / steps.LOGS).mkdir(parents=True)
    monkeypatch.setattr(flakes, "steps_commit", lambda: "abc")
    monkeypatch.setattr(steps, "wall_clock", lambda *_, name: reporting(name, lane="alone"))
    return monkeypatch


def runs(**kept: Any) -> list[dict[str, Any]]:
    lines = (flakes.KEPT / "runs.jsonl").read_text().splitlines()
    return [run for run in map(json.loads, lines) if kept.items() <= run.items()]


def test_a_test_that_fails_in_one_round_is_counted_and_its_log_kept(
    gate: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    gate.setattr(steps, "tests", lambda *_, kind: reporting(f"{kind}-process", fails_in=2))
    assert not flakes.run(["process"], 3, burners=0, slow=False)
    assert len(runs(test=TEST)) == 3 + 3, "three rounds of the folder, three of wall-clock tests"
    assert len(runs(failed=True)) == 1
    assert f"1       6  {TEST}: 16.7%" in capsys.readouterr().out
    (log,) = flakes.KEPT.glob("*/1.log")
    assert "the traceback" in log.read_text()


def test_a_later_call_goes_on_at_the_same_commit_alone(gate: pytest.MonkeyPatch) -> None:
    gate.setattr(steps, "tests", lambda *_, kind: reporting(f"{kind}-process", fails_in=1))
    assert not flakes.run(["process"], 1, burners=0, slow=False)
    assert not flakes.run(["process"], 1, burners=0, slow=False), "one of four"
    gate.setattr(flakes, "steps_commit", lambda: "def")
    assert flakes.run(["process"], 1, burners=0, slow=False)
    assert len(runs()) == 6


def test_a_runner_that_dies_is_counted_by_the_name_of_its_step(gate: pytest.MonkeyPatch) -> None:
    gate.setattr(steps, "tests", lambda *_, kind: Step(f"{kind}-ray", "echo gone; exit 7", 10))
    assert not flakes.run(["ray"], 1, burners=0, slow=False)
    assert len(runs(test="flakes-ray", failed=True)) == 1


@pytest.mark.parametrize(
    ("slow", "chosen"), [(False, "not wall_clock and not slow"), (True, "not wall_clock")]
)
def test_what_make_test_leaves_out_is_left_out_unless_it_is_asked_for(
    gate: pytest.MonkeyPatch, slow: bool, chosen: str
) -> None:
    asked = []

    def tests(folder: str, what: str, limit_s: float, *, kind: str) -> Step:
        asked.append((folder, what))
        return reporting(f"{kind}-{folder}")

    gate.setattr(steps, "tests", tests)
    assert flakes.run(["cluster", "serve"], 1, burners=1, slow=slow)
    assert asked == [("cluster", chosen), ("serve", chosen)]
