"""Estimates that a stage learns while it runs: of batches, later stages and arrivals. Pure."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence

_REMEMBERED = 0.98  # by which a batch's weight falls with each later one: some fifty count
_FIRST = 3  # batches, of which the slow ones of a cold model are forgotten
_OUTLIER = 4.0  # times the estimate; a batch that takes longer is learnt as if it took so long
_SIZE_MAX = 1e9  # of a batch, as an estimate
_RATE_S = 1.0  # after which an arrival counts e times less
_COUNTED_S_MIN = 0.1  # over which arrivals make a rate; the first ones come together
_RECENT = 512  # batches of each size, and ways here, that are kept: enough for their p99
_WINDOW = 50  # batches that are compared with the profile
_DRIFT_MIN, _DRIFT_MAX = 0.8, 1.25  # times the profile's; beyond them the profile is called old


class ServiceTime:
    """The seconds that a batch of n queries takes: a + b n, learnt from the batches that have run.

    Least squares with weights that fade. Neither a nor b is ever below 0.
    """

    def __init__(self) -> None:
        self._learnt = 0
        self._forget()

    def _forget(self) -> None:
        self._weight = self._sizes = self._squares = self._times = self._products = 0.0
        self._time_squares = 0.0

    def learn(self, size: int, took_s: float) -> None:
        """Learn that a batch of `size` queries took so long."""
        self._learnt += 1
        is_warm = size * self._weight >= self._sizes and took_s < self.estimate(size) / 2
        if self._learnt <= _FIRST and is_warm:
            self._forget()
        elif self._learnt > _FIRST:  # one slow batch says little of the next ones
            larger = max(1.0, size * self._weight / self._sizes)
            took_s = min(took_s, _OUTLIER * larger * self.estimate(size))
        self._weight = _REMEMBERED * self._weight + 1
        self._sizes = _REMEMBERED * self._sizes + size
        self._squares = _REMEMBERED * self._squares + size * size
        self._times = _REMEMBERED * self._times + took_s
        self._products = _REMEMBERED * self._products + size * took_s
        self._time_squares = _REMEMBERED * self._time_squares + took_s * took_s

    def estimate(self, size: int) -> float:
        """Return how long a batch of `size` queries takes on average; 0 before any has run."""
        fixed_s, each_s = self._line()
        return fixed_s + each_s * size

    def size_within(self, seconds: float) -> float:
        """Return how many queries a batch may have that takes so long on average."""
        fixed_s, each_s = self._line()
        if seconds < fixed_s:
            return 0
        if each_s <= 0 or seconds == math.inf:
            return math.inf
        return math.floor(min((seconds - fixed_s) / each_s, _SIZE_MAX))

    @property
    def variance_s2(self) -> float:
        """The mean square of the seconds by which batches differed from the estimates."""
        if not self._weight:
            return 0.0
        fixed_s, each_s = self._line()
        mean_square = self._time_squares - 2 * (fixed_s * self._times + each_s * self._products)
        mean_square += fixed_s**2 * self._weight + 2 * fixed_s * each_s * self._sizes
        mean_square += each_s**2 * self._squares
        return max(mean_square / self._weight, 0.0)

    def _line(self) -> tuple[float, float]:
        if not self._weight:
            return 0.0, 0.0
        mean_size, mean_time = self._sizes / self._weight, self._times / self._weight
        spread = self._squares / self._weight - mean_size**2
        common = self._products / self._weight - mean_size * mean_time
        each = max(common / spread, 0.0) if spread > 1e-9 * mean_size**2 else 0.0
        fixed = mean_time - each * mean_size
        if fixed < 0:  # then all time is each query's own
            fixed, each = 0.0, self._products / self._squares
        return fixed, each


class AfterTime:
    """The seconds from the end of a batch to its answers, which later stages need.

    A stage before a join learns the least of them: the others have waited for another input.

    least_s:  the least of late, which hardly has any wait in queues.
    """

    def __init__(self) -> None:
        self.mean_s = self.variance_s2 = self.least_s = 0.0
        self._learnt = 0

    def learn(self, took_s: float) -> None:
        """Learn that the answer to one query took so long."""
        self._learn_least(took_s)
        part = max(1 - _REMEMBERED, 1 / self._learnt)
        error_s = took_s - self.mean_s
        self.mean_s += part * error_s
        self.variance_s2 += part * ((1 - part) * error_s * error_s - self.variance_s2)

    def learn_least(self, took_s: float) -> None:
        """Learn that the answer took so long, maybe because another input came late."""
        self._learn_least(took_s)
        self.mean_s = self.least_s

    def _learn_least(self, took_s: float) -> None:
        self._learnt += 1
        self.least_s = took_s if self._learnt == 1 else min(took_s, self.least_s / _REMEMBERED)


class Arrivals:
    """The queries that come in a second, over the last seconds.

    count:  queries since the last look.
    """

    def __init__(self) -> None:
        self.count = 0
        self._looked_s: float | None = None
        self._faded_count = self._faded_s = 0.0

    @property
    def rate_per_s(self) -> float:
        """The queries in a second; older ones count less."""
        return self._faded_count / max(self._faded_s, _COUNTED_S_MIN)

    def look(self, now_s: float) -> None:
        """Count what has come since the last look."""
        passed_s = 0.0 if self._looked_s is None else max(now_s - self._looked_s, 0.0)
        kept = math.exp(-passed_s / _RATE_S)
        self._faded_count = kept * self._faded_count + self.count
        self._faded_s = kept * self._faded_s + passed_s
        self.count, self._looked_s = 0, now_s


class LoopShare:
    """The share of batches' time in which the replica's event loop could not run.

    It is near 1 if the stage's code keeps Python's global interpreter lock, and else near 0.
    """

    def __init__(self) -> None:
        self.mean = 0.0
        self._learnt = 0

    def learn(self, waited_s: float, took_s: float) -> None:
        """Learn that the loop waited so long of a batch's time."""
        self._learnt += 1
        part = max(1 - _REMEMBERED, 1 / self._learnt)
        self.mean += part * (min(waited_s / took_s, 1.0) - self.mean)


class RecentTimes:
    """The last service times of each batch size, and ways of queries to this replica."""

    def __init__(self) -> None:
        self._times: dict[int, deque[float]] = {}  # as many sizes as the stage's cap
        self._hops: deque[float] = deque(maxlen=_RECENT)

    def learn(self, size: int, took_s: float) -> None:
        """Keep the seconds that a batch of `size` queries took."""
        self._times.setdefault(size, deque(maxlen=_RECENT)).append(took_s)

    def learn_hop(self, took_s: float) -> None:
        """Keep the seconds that a query was under way to this replica."""
        self._hops.append(took_s)

    def report(self) -> tuple[dict[int, list[float]], list[float]]:
        """Return the kept seconds by size, and those of the ways here."""
        return {size: list(times) for size, times in self._times.items()}, list(self._hops)


class Drift:
    """How much longer batches take than their profile says, over the last ones.

    expected_s:  the profile's mean seconds of batches of 1, 2 and so on; none without a profile.
    """

    def __init__(self, expected_s: Sequence[float]) -> None:
        self._means_s = expected_s
        self._count = 0
        self._took_s = self._expected_s = 0.0
        self._was_off = False

    def learn(self, size: int, took_s: float) -> float | None:
        """Learn from a batch; returns the ratio at the end of each window of batches."""
        if size > len(self._means_s):
            return None
        self._count += 1
        self._took_s += took_s
        self._expected_s += self._means_s[size - 1]
        if self._count < _WINDOW:
            return None
        ratio = self._took_s / self._expected_s
        self._count, self._took_s, self._expected_s = 0, 0.0, 0.0
        return ratio

    def judge(self, ratio: float) -> bool:
        """Take in a window's ratio; returns True if this one and the one before it are off."""
        was_off, self._was_off = self._was_off, not _DRIFT_MIN <= ratio <= _DRIFT_MAX
        return was_off and self._was_off
