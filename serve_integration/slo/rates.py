"""The rate of queries at a stage: counted, fitted by a constant, a step or a ramp, and forecast.

Pure: times and counts are arguments. The rates of the last seconds are noisy, and a mean over more
of them is late. So a change is believed when it is larger than the noise, and then the queries from
before it are left out.

Serve's controller gets this module by value (policy.py), so it imports the standard library only.

Source: docs/internals/decisions/0035-scaling-ahead.md; InferLine (envelopes of arrivals).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

BIN_S = 0.25  # of the counts that are kept; reports are some 0.2 s apart
KEPT_S = 64.0  # for which counts are kept; their dispersion and their peak are of these
WINDOWS_S = (20.0, 10.0, 5.0)  # of a fit; the next one if the rate has changed twice within
RECENT_S = (2.0, 4.0)  # with which a fit must agree; the rate is known from the first on
CHANGES_S = (0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0)  # ages of a change, tried
EVIDENCE = 3.6  # deviations from which a change is real; a constant rate then hardly ever has one
DOUBT = 2.5  # deviations from which the recent rate contradicts a fit
RAMP_MIN_S = 4.0  # age from which a change may be a ramp; shorter ones look alike in the noise
RATE_MIN = 0.05  # queries per second; the variance of a lower rate is taken as this one's
SECONDS_MIN = 10  # from which a dispersion is measured

DAMPING_PER_S = 0.95  # of a slope, each second: no ramp goes on for more than some twenty seconds
LEDGER_MAX = 20  # forecasts, some 20 s of ramps, that decide whether forecasts are used
LEDGER_MIN = 3  # below which they are used
SHORTAGE_WEIGHT = 3.0  # cost of a query more than forecast, over that of one less


@dataclass(frozen=True)
class Fit:
    """The recent rate: constant, or changed by a step or a ramp."""

    level_per_s: float  # at the end
    slope_per_s2: float  # not 0 for a ramp
    error_per_s: float  # standard deviation of the level

    def forecast(self, ahead_s: float) -> float:
        """Return the rate after some seconds; a slope loses 5 % each second."""
        effective_s = (1 - math.pow(DAMPING_PER_S, ahead_s)) / -math.log(DAMPING_PER_S)
        return self.level_per_s + self.slope_per_s2 * effective_s


def fit_rate(counts: Sequence[float], dispersion: float) -> Fit:
    """Fit a constant, a step or a ramp to counts in bins of BIN_S, the newest one last.

    A change is believed if its evidence exceeds EVIDENCE standard deviations of such counts, and
    the better of step and ramp is taken. A result that contradicts the last seconds means that the
    rate has changed more than once: older counts are left out, and it is tried again.

    Cost:    O(n) for each age in CHANGES_S; 60 us for 80 counts.
    """
    rates = [count / BIN_S for count in counts]
    fit = _fit_window(rates, dispersion)
    for window_s in WINDOWS_S[1:]:
        if len(rates) * BIN_S <= window_s or _agrees(fit, rates, dispersion):
            break
        rates = rates[-round(window_s / BIN_S) :]
        fit = _fit_window(rates, dispersion)
    return fit


def _agrees(fit: Fit, rates: Sequence[float], dispersion: float) -> bool:
    """Return True if the recent rates are such as the fit expects."""
    for seconds in RECENT_S:
        recent = rates[-round(seconds / BIN_S) :]
        expected = fit.level_per_s - fit.slope_per_s2 * seconds / 2
        error = _estimate_error(max(expected, fit.level_per_s), dispersion, seconds)
        if abs(sum(recent) / len(recent) - expected) > DOUBT * error:
            return False
    return True


def _fit_window(rates: Sequence[float], dispersion: float) -> Fit:
    """Fit the rates of all bins with at most one change."""
    length_s = len(rates) * BIN_S
    mean = sum(rates) / len(rates)
    best = EVIDENCE * EVIDENCE
    chosen = Fit(mean, 0.0, _estimate_error(mean, dispersion, length_s))
    for age_s in (*(each for each in CHANGES_S if each < length_s), length_s):
        tried = [_fit_step(rates, mean, age_s, dispersion)] if age_s < length_s else []
        if age_s >= RAMP_MIN_S:
            tried.append(_fit_ramp(rates, mean, age_s, dispersion))
        for gain, fit in tried:
            if gain > best:
                best, chosen = gain, fit
    return chosen


def _fit_step(
    rates: Sequence[float], mean: float, age_s: float, dispersion: float
) -> tuple[float, Fit]:
    """Return a step at some age, and by how much it explains the rates better than their mean.

    That gain is in squared standard deviations.
    """
    n, k = len(rates), round(age_s / BIN_S)
    total = sum(rates[n - k :])
    level, before = total / k, (mean * n - total) / (n - k)
    variance = dispersion * max((before + level) / 2, before, RATE_MIN) / BIN_S
    gain = k * (n - k) / n * (level - before) ** 2 / variance
    return gain, Fit(level, 0.0, _estimate_error(level, dispersion, age_s))


def _fit_ramp(
    rates: Sequence[float], mean: float, age_s: float, dispersion: float
) -> tuple[float, Fit]:
    """Return a ramp that began at some age, by least squares, and its gain as of `_fit_step`."""
    n, k = len(rates), round(age_s / BIN_S)
    # u is the time since the change at the centre of each bin, and 0 ahead of it.
    u_mean = k * age_s / 2 / n
    u_squares = BIN_S * BIN_S * k * (4 * k * k - 1) / 12 - n * u_mean * u_mean
    products = BIN_S * sum((i + 0.5) * rate for i, rate in enumerate(rates[n - k :]))
    slope = (products - u_mean * mean * n) / u_squares
    level = max(mean + slope * (age_s - u_mean), 0.0)
    variance = dispersion * max((mean + level) / 2, mean, RATE_MIN) / BIN_S
    error = 2 * _estimate_error(level, dispersion, age_s)  # a line's end is twice as uncertain
    return slope * slope * u_squares / variance, Fit(level, slope, error)


def _estimate_error(rate_per_s: float, dispersion: float, seconds: float) -> float:
    """Return the standard deviation of a rate that was counted for some seconds."""
    return math.sqrt(dispersion * max(rate_per_s, RATE_MIN) / seconds)


class Arrivals:
    """The queries of the last KEPT_S seconds, in bins."""

    def __init__(self) -> None:
        self.bins: dict[int, float] = {}
        self.first = 0  # the first bin that is complete

    def add(self, since_s: float, until_s: float, count: float) -> None:
        """Add queries that came between two different times, evenly."""
        first, last = math.floor(since_s / BIN_S), math.floor(until_s / BIN_S)
        if not self.bins:
            self.first = first + 1
        for number in range(first, last + 1):
            inside_s = min(until_s, (number + 1) * BIN_S) - max(since_s, number * BIN_S)
            share = inside_s / (until_s - since_s)
            self.bins[number] = self.bins.get(number, 0.0) + count * share
        if len(self.bins) > 1.25 * KEPT_S / BIN_S:
            oldest = max(self.bins) - round(KEPT_S / BIN_S)
            self.bins = {key: value for key, value in self.bins.items() if key > oldest}
            self.first = max(self.first, oldest + 1)

    def list_counts(self, end: int, seconds: float) -> list[float]:
        """Return the counts of the bins ahead of bin `end`, the newest one last, none below 0."""
        begin = max(end - round(seconds / BIN_S), self.first)
        return [max(self.bins.get(number, 0.0), 0.0) for number in range(begin, end)]

    def measure_dispersion(self, end: int) -> tuple[float, float]:
        """Return the variance of a second's count over its mean, at least 1, and the peak.

        The variance is that of differences of successive seconds, which a trend hardly changes.
        One standard error is taken off, so that Poisson arrivals count as such.
        """
        counts = self.list_counts(end, KEPT_S)
        size = round(1 / BIN_S)
        counts = counts[len(counts) % size :]
        seconds = [sum(counts[i : i + size]) for i in range(0, len(counts), size)]
        n = len(seconds)
        if n < SECONDS_MIN:
            return 1.0, max(seconds, default=0.0)
        squares = sum((after - before) ** 2 for before, after in pairwise(seconds))
        ratio = squares / (2 * (n - 1)) / max(sum(seconds) / n, RATE_MIN)
        return max(1.0, ratio * (1 - math.sqrt(3 / n))), max(seconds)


class Forecasts:
    """Forecasts of the rate, and how good they have been."""

    def __init__(self) -> None:
        self.open: list[tuple[float, float, float]] = []  # (for when, forecast, level at the time)
        self.gains: list[tuple[float, float]] = []  # (gain, rise over the level)

    def note(self, due_s: float, ahead_per_s: float, level_per_s: float) -> None:
        """Note a forecast for a time; at most one for each second."""
        if not self.open or due_s >= self.open[-1][0] + 1:
            self.open.append((due_s, ahead_per_s, level_per_s))

    def check(self, arrivals: Arrivals, end: int) -> None:
        """Compare the forecasts that are due with the rate in the second around their time.

        The gain of a forecast is by how much the cost of its error is below that of the level's.
        """
        while self.open and self.open[0][0] + 0.5 <= end * BIN_S:
            due_s, ahead, level = self.open.pop(0)
            counts = arrivals.list_counts(math.floor((due_s + 0.5) / BIN_S), 1.0)
            if counts:
                came = sum(counts) / (len(counts) * BIN_S)
                costs = [max(SHORTAGE_WEIGHT * (came - it), it - came) for it in (level, ahead)]
                self.gains = [*self.gains, (costs[0] - costs[1], came - level)][-LEDGER_MAX:]

    def are_good(self) -> bool:
        """Return True if forecasts have cost less than the level would have, or few are known."""
        return len(self.gains) < LEDGER_MIN or sum(gain for gain, _ in self.gains) >= 0

    def estimate_rise(self) -> float:
        """Return by how much the rate rose on average while forecasts were open, at least 0."""
        return max(sum(rise for _, rise in self.gains) / max(len(self.gains), 1), 0.0)
