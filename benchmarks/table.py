"""Results as a table for people and as records for programs."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from cases import Case
from meters import Usage
from ranks import OBJECTS
from scenes import KIB, MIB, Contender, Sample

_RATIO_BYTES_MIN = 64 * KIB  # below, latency is all there is, and the bound says nothing


@dataclass(slots=True)
class Result:
    """All plays of one case by one contender."""

    case: Case
    peer: str
    level: str
    why_not: str | None = None  # the reason if the case is not played
    failure: str | None = None  # the error if a play failed
    samples: list[Sample] = field(default_factory=list)

    @property
    def median_s(self) -> float | None:
        """The median of all rounds; None without any."""
        return statistics.median(each.seconds for each in self.samples) if self.samples else None

    @property
    def cpu_s_per_gb(self) -> float | None:
        """Core seconds of the contender's processes per GB to move: median of all rounds."""
        moved_gb = self.case.scene.moved_bytes / 1e9
        if not self.samples or self.case.scene.size_bytes < _RATIO_BYTES_MIN:
            return None
        return statistics.median(each.usage.own_s for each in self.samples) / moved_gb

    @property
    def is_saturated(self) -> bool:
        """True if the cores were the limit over all rounds together."""
        return bool(self.samples) and self._usage.is_saturated

    @property
    def _usage(self) -> Usage:
        return sum((each.usage for each in self.samples[1:]), self.samples[0].usage)

    def holds(self) -> bool | None:
        """True if the median keeps the case's limit; None without a limit."""
        if self.case.limit is None or self.median_s is None:
            return None
        return self.median_s <= self.case.limit * self.case.scene.bound_s

    def words(self) -> list[str]:
        """Return remarks on the figure: failure, use of the cores, packets sent again."""
        if self.failure:
            return [f"FAILED: {self.failure}"]
        if not self.samples:
            return [self.why_not or "not played"]
        usage = self._usage
        words = [] if usage.busy_share == 0 else [f"{usage.busy_share:4.0%} cpu"]
        words += [f"{usage.retransmitted / len(self.samples):.0f} resent"]
        if self.case.scene.collective == "objects":
            assert self.median_s is not None
            words += [f"{OBJECTS * self.case.scene.nodes / self.median_s:,.0f}/s"]
        return words + (["CORES SATURATED"] if usage.is_saturated else [])


@dataclass(frozen=True, slots=True)
class Row:
    """One case: the result of hoplite_ray, then those of all others."""

    results: list[Result]

    @classmethod
    def of(cls, case: Case, contenders: Sequence[Contender]) -> Row:
        """Make a row without any plays."""
        return cls(
            [
                Result(case, each.peer, each.level, case.scene.why_not or each.why_not(case.scene))
                for each in contenders
            ]
        )

    def costs(self) -> str:
        """Core time per GB to move: ours, and ours as a multiple of each other contender's.

        Only at the level of the store, where all of a contender's processes are known.
        """
        costs = {each.peer: each.cpu_s_per_gb for each in self.results if each.level == "store"}
        ours = costs.pop("hoplite", None)
        if ours is None:
            return ""
        others = [f"{ours / cost:.2f} x {peer}'s" for peer, cost in costs.items() if cost]
        return ", ".join([f"{ours:.2f} core s/GB", *others])

    def rivals(self) -> str:
        """Name the fastest other contender of each level, as a multiple of our time."""
        words = []
        for level in ("store", "ray"):
            ours, others = None, []
            for each in self.results:
                if each.level == level and each.median_s is not None:
                    if each.peer == "hoplite":
                        ours = each.median_s
                    else:
                        others.append((each.median_s, each.peer))
            if ours is not None and others:
                seconds, peer = min(others)
                behind = "BEHIND: " if seconds < ours else ""
                words.append(f"{behind}{peer} {seconds / ours:.2f} x")
        return "; ".join(words)


def lines(rows: Sequence[Row]) -> list[str]:
    """Return the table, and below it the cases that were not played, with reasons."""
    width = max(len(row.results[0].case.name) for row in rows)
    head = f"{'':{width}} {'size':>7} {'bound':>9} {'median':>9} {'least':>9} {'most':>9}"
    heads = [f"{head} {'x bound':>7} {'limit':>5}"]
    others = rows[0].results[1:]
    names = [each.peer if each.level == "store" else _under_ray(each.peer) for each in others]
    columns = [max(9, len(name)) for name in names]
    heads += [f"{name:>{column}}" for name, column in zip(names, columns, strict=True)]
    texts = ["  ".join(heads)]
    for row in rows:
        cells = [_own(row.results[0], width)]
        for each, column in zip(row.results[1:], columns, strict=True):
            cells.append(f"{_cell(each):>{column}}")
        verdict = {None: "", True: "ok", False: "OVER"}[row.results[0].holds()]
        words = [", ".join(row.results[0].words()), row.costs(), row.rivals()]
        texts.append("  ".join([*cells, f"{verdict:4} " + "; ".join(filter(None, words))]))
    if others:
        texts.append("Others: x bound, below 64 KiB their time. Last: the fastest of them, x ours.")
    return texts + _notes(rows)


def records(rows: Sequence[Row], nodes: int, rate_mbit: float) -> list[dict[str, object]]:
    """Return a record for each case and contender, in the order of the table."""
    return [
        {
            "benchmark": "collectives",
            "peer": result.peer,
            "level": result.level,
            "nodes": nodes,
            "rate_mbit": rate_mbit,
            "collective": result.case.scene.collective,
            "variant": result.case.scene.variant.value,
            "case": result.case.name.strip(),
            "size_bytes": result.case.scene.size_bytes,
            "bound_s": result.case.scene.bound_s,
            "limit": result.case.limit if result.peer == "hoplite" else None,
            "median_s": result.median_s,
            "failure": result.failure or (None if result.samples else result.why_not),
            "saturated": result.is_saturated,
            "cpu_s_per_gb": _rounded(result.cpu_s_per_gb),
            "samples": [_rounded(asdict(sample)) for sample in result.samples],
            "at_s": time.time(),
        }
        for row in rows
        for result in row.results
    ]


def _rounded(value: Any) -> Any:
    """Round to microseconds, which is less than the difference of two runs."""
    if isinstance(value, dict):
        return {key: _rounded(each) for key, each in value.items()}
    return round(value, 6) if isinstance(value, float) else value


def _own(result: Result, width: int) -> str:
    case = result.case
    text = f"{case.name:{width}} {size_text(case.scene.size_bytes):>7}"
    text += f" {time_text(case.scene.bound_s)}"
    taken = [sample.seconds for sample in result.samples]
    for each in (result.median_s, min(taken, default=None), max(taken, default=None)):
        text += f" {time_text(each)}" if each is not None else f" {'-':>9}"
    ratio = _ratio(result)
    text += f" {ratio:7.3f}" if ratio is not None else f" {'':7}"
    return text + (f" {case.limit:5.2f}" if case.limit else f" {'':5}")


def _cell(result: Result) -> str:
    if result.median_s is None:
        return "FAILED" if result.failure else "-"
    ratio = _ratio(result)
    mark = "!" if result.is_saturated else ""
    return f"{mark}{time_text(result.median_s) if ratio is None else f'{ratio:.2f} x'}"


def _ratio(result: Result) -> float | None:
    if result.median_s is None or result.case.scene.size_bytes < _RATIO_BYTES_MIN:
        return None
    return result.median_s / result.case.scene.bound_s


def _notes(rows: Sequence[Row]) -> list[str]:
    """Each reason once, with the lines that it is about."""
    about: dict[str, list[str]] = {}
    for row in rows:
        for result in row.results:
            if result.failure or result.why_not:
                name = result.peer if result.level == "store" else _under_ray(result.peer)
                why = f"failed {result.failure}" if result.failure else result.why_not
                case = f"{result.case.scene.collective}, {result.case.scene.variant.value}"
                about.setdefault(f"{name}: {why}", []).append(case)
    notes = []
    for why, cases in about.items():
        whole = len(cases) == len(rows)
        notes.append(why if whole else f"{why} ({'; '.join(dict.fromkeys(cases))})")
    if any(result.is_saturated for row in rows for result in row.results[1:]):
        notes.append("!: with saturated cores, so that the figure speaks of the machine.")
    return notes


def _under_ray(peer: str) -> str:
    return peer if peer.startswith("ray") else f"{peer} under ray"


def time_text(seconds: float) -> str:
    return f"{seconds * 1e3:6.2f} ms" if seconds < 1 else f"{seconds:7.3f} s"


def size_text(size_bytes: int) -> str:
    return f"{size_bytes / MIB:.4g} MiB" if size_bytes >= MIB else f"{size_bytes / KIB:.4g} KiB"
