"""Rates of queries: seen through noise, in steps and ramps, with their dispersion."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from surge_policies import draw_arrivals

from hoplite_ray.serve.slo.rates import BIN_S, KEPT_S, Arrivals, fit_rate


def list_counts(rate: Callable[[float], float], seconds: float = 20.0) -> list[float]:
    bins = round(seconds / BIN_S)
    return [rate((number + 0.5) * BIN_S) * BIN_S for number in range(bins)]


FITS: dict[str, tuple[Callable[[float], float], float, float]] = {
    # rate at a time -> level at 20 s, slope
    "nothing": (lambda _: 0.0, 0, 0),
    "constant": (lambda _: 100.0, 100, 0),
    "step": (lambda at: 100.0 if at < 17 else 160.0, 160, 0),
    "ramp": (lambda at: 100 + 6 * max(at - 12, 0), 148, 6),
    "fall": (lambda at: 200 - 6 * max(at - 12, 0), 152, -6),
    "line": (lambda at: 100 + 3 * at, 160, 3),
    "turn": (lambda at: 200 - 10 * at if at < 10 else 100 + 12 * (at - 10), 220, 12),
    "ramp that ended": (lambda at: 100 + 10 * min(at, 8), 180, 0),
}


@pytest.mark.parametrize("what", FITS)
def test_a_rate_is_seen_as_it_is(what: str) -> None:
    rate, level, slope = FITS[what]
    fit = fit_rate(list_counts(rate), 1.0)
    assert fit.level_per_s == pytest.approx(level, rel=0.05)
    assert fit.slope_per_s2 == pytest.approx(slope, abs=1.5)


def test_a_small_change_is_taken_for_noise() -> None:
    fit = fit_rate(list_counts(lambda at: 100.0 if at < 17 else 112.0), 1.0)
    assert fit.slope_per_s2 == 0 and fit.level_per_s < 103
    clumped = fit_rate(list_counts(lambda at: 100.0 if at < 17 else 160.0), 30.0)
    assert clumped.level_per_s < 110, "arrivals that vary that much anyway"


@pytest.mark.parametrize(("variance", "least", "most"), [(1.0, 1.0, 1.3), (4.0, 2.2, 6.0)])
def test_the_dispersion_is_that_of_the_arrivals(variance: float, least: float, most: float) -> None:
    arrivals = Arrivals()
    for when_s in draw_arrivals(lambda _: 100, seconds=64, seed=3, variance=variance):
        arrivals.add(when_s, when_s + 1e-6, 1.0)
    dispersion, peak = arrivals.measure_dispersion(round(64 / BIN_S))
    assert least <= dispersion <= most
    assert peak > 100


@given(st.lists(st.tuples(st.floats(0.01, 3), st.floats(0, 50)), min_size=1, max_size=60))
def test_no_query_is_lost_between_the_bins(spans: list[tuple[float, float]]) -> None:
    arrivals, now_s, total = Arrivals(), 1000.0, 0.0
    for length_s, count in spans:
        arrivals.add(now_s, now_s + length_s, count)
        now_s, total = now_s + length_s, total + count
    if now_s < 1000 + KEPT_S:
        assert sum(arrivals.bins.values()) == pytest.approx(total, abs=1e-6)
    assert len(arrivals.bins) <= 1.25 * KEPT_S / BIN_S + 3 / BIN_S + 1
