"""Runs the steps of a gate and says what they cost, what failed, and whether the gate is green."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import history
import steps
from again import TRIES_MAX, Failure, failures, may_be_tried, try_again
from reports import Tests, closing_line, has_leak
from schedule import Clock, Lanes, Outcome, Step

TAIL_LINES = 60  # of the log of a step that failed
SLOWEST = 10
SEED = "HOPLITE_TEST_SEED"  # a second try has that of the first


@dataclass(slots=True)
class Verdict:
    """What is wrong, a line each; nothing if the gate is green."""

    wrong: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    second_tries: list[str] = field(default_factory=list)

    @property
    def green(self) -> bool:
        return not self.wrong


def run(gate: str, chosen: list[Step]) -> bool:
    """Run a gate; print what it says; return whether it is green."""
    seed = os.environ.setdefault(SEED, str(random.SystemRandom().randrange(2**32)))
    print(f"seed of all tests: {seed} (repeat with {SEED}={seed})", flush=True)
    logs = Path(steps.LOGS)
    shutil.rmtree(logs, ignore_errors=True)
    lanes, clock = Lanes(logs, _print_end), Clock()
    outcomes = lanes.run(step for step in chosen if step.lane != "alone")
    outcomes += lanes.run(step for step in chosen if step.lane == "alone")
    failed = failures(outcomes)
    tried = try_again(failed, lanes) if len(failed) <= TRIES_MAX else []
    verdict = judge(outcomes, failed, tried, history.read())
    order = {step.name: place for place, step in enumerate(chosen)}
    outcomes.sort(key=lambda outcome: order[outcome.step.name])
    _print_closing(outcomes, verdict, clock)
    _record(gate, outcomes, verdict, clock)
    return verdict.green


def judge(
    outcomes: list[Outcome],
    failed: list[Failure],
    tried: list[Outcome],
    earlier: list[dict[str, object]],
) -> Verdict:
    """Decide: green, or what is wrong. `tried` is empty if too many have failed to try again."""
    verdict = Verdict(second_tries=[failure.name for failure in failed])
    for outcome in outcomes:
        name = outcome.step.name
        if outcome.status and not may_be_tried(outcome):
            verdict.wrong.append(f"{name}: see {outcome.log}")
        if has_leak(outcome.log):
            verdict.wrong.append(f"{name}: a process ended with objects left: see {outcome.log}")
    if len(failed) > TRIES_MAX:
        verdict.wrong += [f"{failure.name}: failed" for failure in failed]
        verdict.wrong.append(f"{len(failed)} tests failed; at most {TRIES_MAX} get a second try")
        return verdict
    for failure, outcome in zip(failed, tried, strict=True):
        if outcome.status or has_leak(outcome.log):
            verdict.wrong.append(f"{failure.name}: failed twice: see {outcome.log}")
        else:
            first = outcome.log.with_suffix(".first.log")
            verdict.notes.append(f"1 passed at the second try: {failure.name}, log {first}")
    for test in history.flaky(verdict.second_tries, earlier):
        verdict.wrong.append(f"{test}: needed a second try in two of the last {history.RUNS} gates")
    return verdict


def _print_end(outcome: Outcome) -> None:
    print(_line(outcome), flush=True)
    if outcome.status:
        lines = outcome.log.read_text(errors="replace").splitlines()
        print(f"--- the end of {outcome.log}", *lines[-TAIL_LINES:], "---", sep="\n", flush=True)


def _line(outcome: Outcome) -> str:
    closing = closing_line(outcome.log, outcome.status)
    return f"{outcome.seconds:5.0f} s {outcome.busy:5.0%}  {outcome.step.name:18} {closing}"


def _print_closing(outcomes: list[Outcome], verdict: Verdict, clock: Clock) -> None:
    print("\n=== closing lines: seconds, busy share of all cores, step, the runner's own last line")
    for outcome in outcomes:
        print(_line(outcome))
    tests = [Tests.read(Path(steps.report_log(outcome.step.name))) for outcome in outcomes]
    seconds: Counter[str] = sum((each.seconds for each in tests), Counter())
    print(f"\n=== the {SLOWEST} slowest tests")
    for test, took in seconds.most_common(SLOWEST):
        print(f"{took:5.1f} s  {test}")
    if verdict.notes:
        print("\n=== second tries", *verdict.notes, sep="\n")
    if verdict.wrong:
        print("\nFAILED:", *verdict.wrong, sep="\n  ")
    colour = "green" if verdict.green else "red"
    print(f"\n{colour} in {clock.seconds:.0f} s, {clock.busy:.0%} busy")
    passed = sum(each.passed for each in tests) + len(verdict.notes)
    skipped = sum(len(each.skipped) for each in tests)
    wrong = 0 if verdict.green else max(1, sum(len(each.failed) for each in tests))
    print(f"{passed} passed, {wrong} failed, {skipped} skipped", flush=True)


def _record(gate: str, outcomes: list[Outcome], verdict: Verdict, clock: Clock) -> None:
    """Keep what the gate cost: in build/ for `record`, and for the gates that come."""
    record = {
        "date": time.strftime("%Y-%m-%d %H:%M:%S"),
        "commit": _commit(),
        "gate": gate,
        "green": verdict.green,
        "seconds": round(clock.seconds),
        "busy": round(clock.busy, 2),
        "steps": {
            outcome.step.name: {"seconds": round(outcome.seconds), "busy": round(outcome.busy, 2)}
            for outcome in outcomes
        },
        "second_tries": verdict.second_tries,
    }
    Path("build/gate.json").write_text(json.dumps(record, indent=2) + "\n")
    if gate in ("test", "verify"):
        history.append(record)


def _commit() -> str:
    command = ["git", "describe", "--always", "--dirty", "--abbrev=7"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
