"""A figure: the result of one contender in one case. Every benchmark prints its own with --json.

A line of JSON has the fields of a `Figure`, its median and spread, and those of `meters.machine`.
`results_page.py` makes tables of such lines.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

OURS = "hoplite_ray"
_MORE, _LESS = "more", "less"
_DIGITS = 6  # significant; two runs differ by more
# The names of a value by its unit: each with the least value that is written so, largest first.
_SCALES: dict[str, tuple[tuple[float, str], ...]] = {
    "s": ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")),
    "bytes/s": ((1e9, "GB/s"), (1e6, "MB/s"), (1e3, "kB/s")),
    "share": ((1e-2, "%"),),
    "1/s": ((1.0, "/s"),),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """The result of one contender in one case. All numbers are in `unit`."""

    case: str
    by: str = OURS  # or the name of a peer, or OURS with what is special: "hoplite_ray, by id"
    unit: str  # "s", "bytes/s", "1/s", "share", "MiB", "cores", or what is counted
    samples: tuple[float, ...] = ()  # of each round; none only beside a failure
    bound: float | None = None  # what the network or the machine allows
    goal: float | None = None  # what the median should keep
    is_more_better: bool = False
    failure: str | None = None  # why there is no figure: the peer failed, or is not installed

    @property
    def median(self) -> float | None:
        """The median of all samples; None without any."""
        return statistics.median(self.samples) if self.samples else None

    def is_better_than(self, other: Figure) -> bool:
        """True if both have a figure and this one is better."""
        return (self.times(other) or 0.0) > 1.0

    def times(self, other: Figure) -> float | None:
        """How many times better this one is; None if either has no figure or is 0."""
        if not self.median or not other.median:
            return None
        ratio = self.median / other.median
        return ratio if self.is_more_better else 1 / ratio

    def misses_its_goal(self) -> bool:
        """True if there is a goal and the median does not keep it."""
        if self.goal is None or self.median is None:
            return False
        return self.median < self.goal if self.is_more_better else self.median > self.goal

    def record(self) -> dict[str, object]:
        """The figure as fields of a line."""
        return {
            "case": self.case,
            "by": self.by,
            "unit": self.unit,
            "better": _MORE if self.is_more_better else _LESS,
            "bound": _round(self.bound),
            "goal": _round(self.goal),
            "failure": self.failure,
            "median": _round(self.median),
            "least": _round(min(self.samples, default=None)),
            "most": _round(max(self.samples, default=None)),
            "samples": [_round(each) for each in self.samples],
        }

    @classmethod
    def of(cls, record: Mapping[str, object]) -> Figure:
        """Read what `record` made. Raises: KeyError, TypeError or ValueError if it did not."""
        samples = record["samples"]
        if not isinstance(samples, list) or not (samples or record["failure"]):
            raise ValueError("it has neither samples nor a failure")
        if record["better"] not in (_MORE, _LESS):
            raise ValueError(f"its field better is {record['better']!r}, not {_MORE} or {_LESS}")
        return cls(
            case=_text(record, "case"),
            by=_text(record, "by"),
            unit=_text(record, "unit"),
            samples=tuple(float(each) for each in samples),
            bound=_number(record, "bound"),
            goal=_number(record, "goal"),
            is_more_better=record["better"] == _MORE,
            failure=None if record["failure"] is None else _text(record, "failure"),
        )


def print_figures(benchmark: str, figures: Iterable[Figure], where: Mapping[str, object]) -> None:
    """Print a line of JSON for each figure; `where` is what `meters.machine` returned."""
    for figure in figures:
        print(json.dumps({"benchmark": benchmark, **figure.record(), **where}))


def scale_of(values: Sequence[float], unit: str) -> tuple[float, str]:
    """Return the divisor and the name with which the smallest of the values is easy to read."""
    scales = _SCALES.get(unit)
    if scales is None:
        return 1.0, unit
    least = min((abs(each) for each in values if each), default=0.0)
    return next((scale for scale in scales if least >= scale[0]), scales[-1])


def number_text(value: float) -> str:
    """Three significant digits; whole numbers from 100 on, in groups of three."""
    if value == 0 or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}" if abs(value) < 1e-3 else f"{value:.{2 - _exponent(value)}f}"


def value_text(value: float, unit: str) -> str:
    """A value with its unit: 0.7 s as `700 ms`."""
    divisor, name = scale_of([value], unit)
    return f"{number_text(value / divisor)} {name}"


def _exponent(value: float) -> int:
    return int(f"{abs(value):e}".partition("e")[2])


def _round(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.{_DIGITS}g}")


def _text(record: Mapping[str, object], name: str) -> str:
    value = record[name]
    if not isinstance(value, str) or not value:
        raise TypeError(f"its field {name} is {value!r}, not text")
    return value


def _number(record: Mapping[str, object], name: str) -> float | None:
    value = record[name]
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"its field {name} is {value!r}, not a number")
    return float(value)
