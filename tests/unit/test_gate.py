"""The gate: lanes, second tries, history, and what makes it red."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import history
import pytest
import reports
import schedule
import steps
import verdict
from again import Failure, failures
from schedule import TIMED_OUT, Lanes, Outcome, Step

TEST = "tests/process/test_a.py::test_b[1]"


def outcome(folder: Path, status: int = 0, text: str = "", **how: Any) -> Outcome:
    """A step that has ended, and its log."""
    log = folder / "a.log"
    log.write_text(text)
    return Outcome(Step("a", "", 1, **how), status, 1.0, 0.5, log)


def report(test: str, result: str, when: str = "call", duration: float = 1.0) -> dict[str, Any]:
    kind = {"$report_type": "TestReport", "nodeid": test, "outcome": result, "when": when}
    return {**kind, "duration": duration, "longrepr": "the traceback", "sections": [["out", "x"]]}


def write_reports(path: Path, *lines: dict[str, Any]) -> None:
    path.write_text("\n".join(json.dumps(line) for line in lines) + "\n" + '{"cut sho')


def judge(
    outcomes: list[Outcome],
    failed: int = 0,
    tried: list[Outcome] | None = None,
    earlier: list[dict[str, Any]] | None = None,
) -> verdict.Verdict:
    named = [Failure(f"test {number}", "", "") for number in range(failed)]
    return verdict.judge(outcomes, named, tried or [], earlier or [])


def test_lanes_run_at_once_and_the_steps_of_one_in_order(tmp_path: Path) -> None:
    pipe, ended = tmp_path / "pipe", []
    steps_run = [
        Step("reads", f"mkfifo {pipe} && cat {pipe}", 10, "a"),
        Step("reads next", "echo second", 10, "a"),
        Step("writes", f"until [ -p {pipe} ]; do :; done; echo first >{pipe}", 10, "b"),
    ]
    outcomes = Lanes(tmp_path, lambda each: ended.append(each.step.name)).run(steps_run)
    assert {each.status for each in outcomes} == {0}
    assert ended.index("reads") < ended.index("reads next")
    assert (tmp_path / "reads.log").read_text() == "first\n"


def test_a_step_ends_at_its_limit_with_all_that_it_has_started(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    command = f"mkfifo {pipe}; (exec 3>{pipe}; sleep 1000) & cat {pipe}; wait"
    [ended] = Lanes(tmp_path, lambda each: None).run([Step("a", command, 0.3)])
    assert ended.status == TIMED_OUT
    assert reports.closing_line(ended.log, ended.status) == "FAILED at its time limit"


def test_a_stop_ends_what_runs_and_begins_nothing(tmp_path: Path) -> None:
    ended: list[str] = []
    lanes = Lanes(tmp_path, lambda each: ended.append(each.step.name))
    lanes.stop()
    assert lanes.run([Step("a", "sleep 1000", 1000)]) == []
    assert ended == []


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.parametrize(
    "command",
    [
        "echo $BASHPID; exec sleep 1000",
        "trap '' TERM; echo $BASHPID; exec sleep 1000",
        "(trap '' TERM; echo $BASHPID; exec sleep 1000) & wait",
    ],
    ids=["by SIGTERM", "by SIGKILL", "with what it has started"],
)
def test_a_signal_ends_what_runs(tmp_path: Path, command: str) -> None:
    program = f"""if True:
        import sys
        from pathlib import Path
        sys.path.insert(0, {str(Path(schedule.__file__).parent)!r})
        import schedule
        schedule.GRACE_S = 0.2
        schedule.obey_signals()
        schedule.Lanes(Path({str(tmp_path)!r}), print).run(
            [schedule.Step("a", {command!r}, 1000)]
        )
    """
    gate = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    log = tmp_path / "a.log"
    while not (log.exists() and log.read_text().endswith("\n")):
        assert gate.poll() is None
        time.sleep(0.01)
    for _ in range(2):  # as make does where its whole group is signalled
        gate.terminate()
    told, why = gate.communicate()
    assert b"KeyboardInterrupt" in why
    assert told == b"", "what was ended has not failed"
    while is_running(int(log.read_text())):
        time.sleep(0.01)


def test_only_the_first_signal_interrupts() -> None:
    program = f"""if True:
        import sys
        from signal import SIGINT, SIGTERM, raise_signal
        sys.path.insert(0, {str(Path(schedule.__file__).parent)!r})
        import schedule
        schedule.obey_signals()
        try:
            raise_signal(SIGTERM)
        except KeyboardInterrupt:
            raise_signal(SIGTERM)
            raise_signal(SIGINT)
            print("once")
    """
    assert subprocess.check_output([sys.executable, "-c", program]) == b"once\n"


def test_a_failed_test_is_tried_again_and_an_exact_one_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steps, "LOGS", str(tmp_path))
    write_reports(tmp_path / "a.jsonl", report(TEST, "failed"), report("other", "passed"))
    [failure] = failures([outcome(tmp_path, 1, second_try="tests")])
    assert failure.name == TEST
    assert f"'{TEST}'" in failure.command  # quoted for the shell
    assert "the traceback" in failure.text
    assert failures([outcome(tmp_path, 1)]) == []
    assert failures([outcome(tmp_path, 20, second_try="tests")]) == []  # something left behind
    [step] = failures([outcome(tmp_path, 3, "its log", second_try="step")])
    assert (step.name, step.text) == ("a", "its log")


@pytest.mark.parametrize("status", [2, 5, 20, TIMED_OUT])
def test_a_runner_that_fails_itself_is_red(tmp_path: Path, status: int) -> None:
    assert not judge([outcome(tmp_path, status, second_try="tests")]).green


def test_an_exact_step_that_fails_is_red(tmp_path: Path) -> None:
    assert judge([outcome(tmp_path)]).green
    assert not judge([outcome(tmp_path, 1)]).green


def test_objects_left_at_an_end_are_red_though_the_status_is_good(tmp_path: Path) -> None:
    left = outcome(tmp_path, 0, "3 passed\nnanobind: leaked 2 instances!\n")
    assert "objects left" in judge([left]).wrong[0]


def test_second_tries_make_it_green_and_are_told(tmp_path: Path) -> None:
    good = judge([], failed=1, tried=[outcome(tmp_path)])
    assert good.green
    assert good.notes[0].startswith("1 passed at the second try: test 0, log ")
    assert good.second_tries == ["test 0"]
    assert not judge([], failed=1, tried=[outcome(tmp_path, 1)]).green


def test_more_than_two_second_tries_are_red(tmp_path: Path) -> None:
    assert judge([], failed=2, tried=[outcome(tmp_path)] * 2).green
    assert "at most 2" in judge([], failed=3).wrong[-1]


@pytest.mark.parametrize(("since", "green"), [(9, False), (10, True)])
def test_the_same_test_in_two_of_the_last_ten_gates_is_red(
    tmp_path: Path, since: int, green: bool
) -> None:
    earlier = [{"second_tries": ["test 0"]}] + [{"second_tries": []}] * (since - 1)
    told = judge([], failed=1, tried=[outcome(tmp_path)], earlier=earlier)
    assert told.green is green


def test_records_outlive_the_clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert history.read() == []
    history.append({"second_tries": [TEST]})
    assert history.flaky([TEST, "other"], history.read()) == [TEST]


def test_reports_count_each_test_once_with_all_of_its_time(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    write_reports(
        path,
        report(TEST, "passed", "setup", 2.0),
        report(TEST, "passed"),
        report(TEST, "failed", "teardown"),
        report("skipped", "skipped", "setup"),
        report("passed", "passed"),
    )
    tests = reports.Tests.read(path)
    assert tests.seconds[TEST] == 4.0
    assert list(tests.failed) == [TEST]
    assert (tests.passed, tests.skipped) == (1, {"skipped"})
    assert reports.Tests.read(tmp_path / "none").passed == 0


def test_every_step_of_a_gate_has_its_own_name_and_limit() -> None:
    for chosen in (steps.test(), steps.verify(), steps.fast(), steps.fuzz_gate(2)):
        names = [step.name for step in chosen]
        assert len({*names}) == len(names)
        assert all(step.limit_s > 0 for step in chosen)


def test_what_is_slow_is_left_to_verify() -> None:
    tested = {step.name for step in steps.test()}
    verified = {step.name for step in steps.verify()}
    assert tested < verified


def test_the_busy_share_is_one_beside_enough_loops(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = iter([(100, 200), (150, 250)])
    monkeypatch.setattr("schedule._ticks", lambda: next(ticks))
    monkeypatch.setattr(time, "monotonic", lambda: 7.0)
    from schedule import Clock

    clock = Clock()
    assert (clock.seconds, clock.busy) == (0.0, 1.0)
