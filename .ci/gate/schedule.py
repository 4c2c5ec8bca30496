"""Runs steps in lanes: the steps of one lane one after the other, all lanes at once."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

TIMED_OUT = 124  # as timeout(1) says it
STOPPED = 130  # as a shell says of a program that Ctrl-C ended
IN_A_GATE = "HOPLITE_GATE"  # set for every step: a step may run a gate of its own
LOOK_S = 0.5  # a signal that comes between Python's last look and a wait does not end the wait
GRACE_S = 5.0 if IN_A_GATE in os.environ else 10.0  # from SIGTERM to SIGKILL


@dataclass(frozen=True, slots=True)
class Step:
    """One command of a gate."""

    name: str
    command: str  # for bash, from the root of the repository
    limit_s: float
    lane: str = "compute"
    second_try: str = ""  # "tests": of each failed test; "step": of the whole command


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a step."""

    step: Step
    status: int
    seconds: float
    busy: float  # share of all cores that were busy while the step ran, also by other lanes
    log: Path


class Clock:
    """Seconds, and the busy share of all cores by /proc/stat, from its making on."""

    def __init__(self) -> None:
        self._started = time.monotonic()
        self._ticks = _ticks()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._started

    @property
    def busy(self) -> float:
        busy, total = (now - then for now, then in zip(_ticks(), self._ticks, strict=True))
        return busy / max(1, total)


def _ticks() -> tuple[int, int]:
    """Ticks of all cores since boot: busy ones, and all."""
    user, nice, system, idle, iowait, *others = map(
        int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]
    )
    busy = user + nice + system + sum(others)
    return busy, busy + idle + iowait


def obey_signals() -> None:
    """Have the first SIGTERM or SIGINT end the steps that run, also in a shell that ignores SIGINT.

    The handler itself ignores all that follow: make sends a second one at once, and a second
    KeyboardInterrupt would end `Lanes.run` before it has ended its steps.
    """

    def interrupt(number: int, frame: FrameType | None) -> None:
        _handle_signals(lambda number, frame: None)  # SIG_IGN would pass on to children
        raise KeyboardInterrupt

    _handle_signals(interrupt)


def _handle_signals(handler: Callable[[int, FrameType | None], None]) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, handler)


class Lanes:
    """Runs steps; `stop` ends what is running."""

    def __init__(self, logs: Path, ended: Callable[[Outcome], None]) -> None:
        self._logs, self._ended = logs, ended
        self._lock = threading.Lock()  # guards _running, _stopped and calls of _ended
        self._running: set[int] = set()
        self._stopped = False

    def run(self, steps: Iterable[Step]) -> list[Outcome]:
        """Run the steps, each lane in a thread of its own; return when all have ended."""
        lanes: dict[str, list[Step]] = {}
        for step in steps:
            lanes.setdefault(step.lane, []).append(step)
        outcomes: list[Outcome] = []
        with ThreadPoolExecutor(max(len(lanes), 1)) as pool:
            try:
                running = [pool.submit(self._run_lane, lane, outcomes) for lane in lanes.values()]
                while wait(running, LOOK_S).not_done:
                    pass
            except KeyboardInterrupt:
                self._end_all()
                raise
        for lane in running:
            lane.result()
        return outcomes

    def stop(self) -> None:
        """Send SIGTERM to the steps that run, and begin no other."""
        with self._lock:
            self._stopped = True
            for group in self._running:
                _signal_group(group, signal.SIGTERM)

    def _end_all(self) -> None:
        """End all steps and their children: a child may outlive the shell of its step."""
        self.stop()
        kill_at_s = time.monotonic() + GRACE_S
        while any(map(_is_alive, self._groups())) and time.monotonic() < kill_at_s:
            time.sleep(0.05)
        for group in self._groups():
            _signal_group(group, signal.SIGKILL)

    def _groups(self) -> list[int]:
        with self._lock:
            return list(self._running)

    def _run_lane(self, steps: list[Step], outcomes: list[Outcome]) -> None:
        for step in steps:
            log, clock = self._logs / f"{step.name}.log", Clock()
            process = self._begin(step, log)
            if process is None:
                return
            status = _wait(process, step.limit_s)
            outcome = Outcome(step, status, clock.seconds, clock.busy, log)
            with self._lock:
                if self._stopped:  # `stop` ended it, so its status says nothing
                    return
                self._running.discard(process.pid)
                outcomes.append(outcome)
                self._ended(outcome)

    def _begin(self, step: Step, log: Path) -> subprocess.Popen[bytes] | None:
        log.parent.mkdir(parents=True, exist_ok=True)
        with self._lock, log.open("wb") as output:  # locked: `stop` must find what has begun
            if self._stopped:
                return None
            process = subprocess.Popen(
                ["bash", "-uo", "pipefail", "-c", step.command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**os.environ, IN_A_GATE: "1"},
            )
            self._running.add(process.pid)
        return process


def _wait(process: subprocess.Popen[bytes], limit_s: float) -> int:
    try:
        return process.wait(limit_s)
    except subprocess.TimeoutExpired:
        _signal_group(process.pid, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(GRACE_S)
        _signal_group(process.pid, signal.SIGKILL)
        process.wait()
        return TIMED_OUT


def _signal_group(group: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.killpg(group, number)


def _is_alive(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True
