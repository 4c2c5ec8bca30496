"""How well a policy plays while it learns: the mean return of the last episodes, and the rate."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from statistics import fmean

from support.rl.rollouts import Report

EPISODES = 100  # that the mean is of
SAY_EVERY_S = 2.0
RATE, RATE_SHARE_LAST = 2.5e-3, 0.1  # of learning at first, and the share of it at the last frame


@dataclass
class Scores:
    """The scores of one run, from its start on."""

    title: str
    seed: int
    frames_max: int
    goal: float  # mean return at which the run ends; infinite for none
    say: Callable[[str], None] = print
    clock: Callable[[], float] = time.monotonic
    frames: int = 0
    _returns: deque[int] = field(default_factory=lambda: deque(maxlen=EPISODES))
    _began_s: float | None = None  # when the first step was over, which starts things
    _frames_first: int = 0  # of the first step
    _said_s: float = 0.0

    @property
    def mean(self) -> float:
        """The mean return of the last episodes; 0 until there are enough."""
        return fmean(self._returns) if len(self._returns) == EPISODES else 0.0

    @property
    def has_learnt(self) -> bool:
        return self.mean >= self.goal

    @property
    def is_over(self) -> bool:
        return self.has_learnt or self.frames >= self.frames_max

    @property
    def rate(self) -> float:
        """The rate of learning, which falls with the frames."""
        return RATE * (1 - (1 - RATE_SHARE_LAST) * min(1.0, self.frames / self.frames_max))

    @property
    def seconds(self) -> float:
        """The seconds without the first step."""
        return 0.0 if self._began_s is None else self.clock() - self._began_s

    @property
    def frames_per_s(self) -> float:
        """The rate without the first step."""
        return (self.frames - self._frames_first) / self.seconds if self.seconds > 0 else 0.0

    def add(self, reports: Iterable[Report]) -> None:
        """Count the reports of one step; now and then a line says how it goes."""
        for report in reports:
            self.frames += report.frames
            self._returns.extend(report.returns)
        if self._began_s is None:
            self._began_s = self._said_s = self.clock()
            self._frames_first = self.frames
        if self.clock() - self._said_s >= SAY_EVERY_S:
            self._said_s = self.clock()
            self.say(f"  {self}")

    def __str__(self) -> str:
        return (
            f"{self.title}, seed {self.seed}: mean return {self.mean:.0f} after {self.frames:,} "
            f"frames and {self.seconds:.1f} s, {self.frames_per_s:,.0f} frames/s"
        )
