"""A second try, alone, for a test with real processes that has failed beside others."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import steps
from reports import Tests
from schedule import Lanes, Outcome, Step

TRIES_MAX = 2  # so many tests of one gate may need a second try
TESTS_FAILED = 1  # pytest's status when tests have failed, and nothing else is wrong
LIMIT_S = 600.0


@dataclass(frozen=True, slots=True)
class Failure:
    """A test or a step that has failed, and may be tried again."""

    name: str  # the test's node id, or the step's name
    command: str
    text: str  # all that is known of the first failure


def failures(outcomes: Iterable[Outcome]) -> list[Failure]:
    """What may be tried again of the steps that failed."""
    found: list[Failure] = []
    for outcome in outcomes:
        if outcome.status == 0:
            continue
        step = outcome.step
        if step.second_try == "step":
            found.append(Failure(step.name, step.command, outcome.log.read_text(errors="replace")))
        elif step.second_try == "tests" and outcome.status == TESTS_FAILED:
            failed = Tests.read(Path(steps.report_log(step.name))).failed
            found += [Failure(test, _pytest(test), text) for test, text in failed.items()]
    return found


def _pytest(test: str) -> str:
    return f"python -m pytest {shlex.quote(test)} -rA --tb=long"


def may_be_tried(outcome: Outcome) -> bool:
    """Whether second tries can make a failed step good: else the runner itself has failed."""
    step = outcome.step
    if step.second_try != "tests":
        return step.second_try == "step"
    failed = Tests.read(Path(steps.report_log(step.name))).failed
    return outcome.status == TESTS_FAILED and bool(failed)


def try_again(failed: list[Failure], lanes: Lanes) -> list[Outcome]:
    """Run each failure again, one after the other; both logs stay in build/log/again."""
    tries = []
    for failure in failed:
        name = "again/" + re.sub(r"[^\w.-]+", "_", failure.name)
        first = Path(steps.LOGS) / f"{name}.first.log"
        first.parent.mkdir(parents=True, exist_ok=True)
        first.write_text(failure.text)
        tries.append(Step(name, failure.command, LIMIT_S, "alone"))
    return lanes.run(tries)
