"""The lines that benchmarks print with --json, as records.

collectives.py, training.py and canonical.py have records of their own, which report.py draws. Any
other line is a figure (figures.py). `figures_of` makes figures of all of them.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from figures import OURS, Figure

# Lines that only the notebooks read: figures.py's lines beside them say the same in short.
_FOR_NOTEBOOKS = ("sgd death", "serving: ")
_PEERS = {"hoplite": OURS, "ray": "Ray", "gloo": "Gloo", "openmpi": "OpenMPI"}
_PEERS |= {"openmpi tuned": "OpenMPI, tuned", "ray tree": "Ray, a tree of tasks"}
_RATIO_BYTES_MIN = 64 << 10  # below, latency is all there is, and the bound says nothing


class RecordError(Exception):
    """A line can't be drawn: where it stands, and what is wrong with it."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where and of what it was measured."""

    network: str  # "8 nodes x 500 Mbit/s", or "" for loopback
    commit: str
    machine: str
    kernel: str = "?"
    command: str = ""  # "" for lines that don't say it
    day: str = ""  # the same


@dataclass(frozen=True, slots=True)
class Latency:
    """One collective of one size, by one peer."""

    place: Place
    title: str
    size_bytes: int
    bound_s: float
    peer: str
    seconds: tuple[float, ...]
    failure: str | None
    limit: float | None = None  # of the median, as a multiple of the bound


@dataclass(frozen=True, slots=True)
class Rounds:
    """One application with a model of one size, over one peer."""

    place: Place
    application: str
    parameters: int
    peer: str
    seconds: tuple[float, ...]  # of each round
    failure: str | None
    bound_s: float | None = None


@dataclass(frozen=True, slots=True)
class Canonical:
    """The two numbers."""

    place: Place
    goodput_share: float
    small_get_p99_s: float


@dataclass(frozen=True, slots=True)
class Measured:
    """A figure of any other benchmark."""

    place: Place
    benchmark: str
    figure: Figure


Line = Latency | Rounds | Canonical | Measured


def read(texts: Mapping[str, str]) -> list[Line]:
    """Return the records of all texts, by name of each; of two for the same thing the later one.

    Raises: RecordError naming text and line: no JSON, an unknown benchmark, a field that is missing
            or of another kind; or naming the texts, if there is no record in any.
    """
    found: dict[tuple[object, ...], Line] = {}
    is_empty = True
    for name, text in texts.items():
        for number, line in enumerate(text.splitlines(), start=1):
            if line.startswith("{"):
                is_empty = False
                record = _parsed(line, f"{name}:{number}")
                if record is None:
                    continue
                key = _key(record)
                found.pop(key, None)
                found[key] = record
    if is_empty:
        raise RecordError(
            f"no line of {', '.join(texts) or 'no file'} is a record: "
            "run a benchmark with --json and keep what it prints"
        )
    return list(found.values())


def figures_of(line: Line) -> list[Figure]:
    """Return the figures that the page of results makes of a line."""
    match line:
        case Measured(figure=figure):
            return [figure]
        case Canonical(goodput_share=share, small_get_p99_s=p99_s):
            broadcast = "broadcast to 3 nodes over loopback: share of one plain TCP stream's rate"
            return [
                Figure(case=broadcast, unit="share", samples=(share,), is_more_better=True),
                Figure(case="small remote get: p99", unit="s", samples=(p99_s,)),
            ]
        case Rounds(peer=peer):
            small = f"{line.parameters / 1e6:.3g} M parameters"
            return [
                Figure(
                    case=f"a round of {line.application}, {small}",
                    by=_PEERS.get(peer, peer),
                    unit="s",
                    samples=line.seconds,
                    bound=line.bound_s,
                    failure=line.failure,
                )
            ]
        case Latency():
            return [_latency_figure(line)]


def _latency_figure(line: Latency) -> Figure:
    base, _, level = line.peer.partition(", ")
    is_under_ray = level == "through Ray" or base.startswith("ray")
    under = ", from actors of Ray" if is_under_ray else ""
    has_ratio = line.size_bytes >= _RATIO_BYTES_MIN
    goal_s = line.limit * line.bound_s if line.limit is not None else None
    return Figure(
        case=f"{line.title}, {size_text(line.size_bytes)}{under}",
        by=_PEERS.get(base, base),
        unit="s",
        samples=line.seconds,
        bound=line.bound_s if has_ratio else None,
        goal=goal_s,
        failure=line.failure,
    )


def size_text(size_bytes: int) -> str:
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if size_bytes >= unit:
            return f"{size_bytes / unit:g} {name}"
    return f"{size_bytes} B"


def _parsed(line: str, where: str) -> Line | None:
    try:
        record = json.loads(line)
    except json.JSONDecodeError as error:
        raise RecordError(f"{where}: begins like a record and is no JSON: {error}") from error
    kinds = {"collectives": _latency, "training": _rounds, "canonical": _two_numbers}
    kind = record.get("benchmark")
    if isinstance(kind, str) and kind.startswith(_FOR_NOTEBOOKS):
        return None
    try:
        if kind in kinds:
            return kinds[kind](_Fields(record))
        if isinstance(kind, str) and "unit" in record:
            return Measured(_Fields(record).place(has_network=False), kind, Figure.of(record))
    except KeyError as error:
        raise RecordError(f"{where}: it has no field {error.args[0]}") from None
    except (RecordError, TypeError, ValueError) as error:
        raise RecordError(f"{where}: {error}") from None
    raise RecordError(
        f"{where}: its benchmark is {kind!r}, and it is no figure; "
        f"of others only {', '.join(kinds)} are known"
    )


class _Fields:
    """The fields of a record, each of the kind that is asked for."""

    def __init__(self, record: Mapping[str, Any], path: str = "") -> None:
        self._record = record
        self._path = path

    def text(self, name: str, default: str | None = None) -> str:
        return self._of(name, str, "text", default)

    def number(self, name: str) -> float:
        """A finite number above 0: all that is drawn is, some of it on a logarithmic scale."""
        value = self._of(name, (int, float), "a number")
        if isinstance(value, bool) or not math.isfinite(value) or value <= 0:
            raise RecordError(f"its field {self._path}{name} is {value}, not a number above 0")
        return value

    def optional(self, name: str) -> float | None:
        return None if self._record.get(name) is None else self.number(name)

    def whole(self, name: str) -> int:
        value = self.number(name)
        if value != int(value):
            raise RecordError(f"its field {self._path}{name} is {value}, not a whole number")
        return int(value)

    def failure(self) -> str | None:
        return None if self._record.get("failure") is None else self.text("failure")

    def seconds(self) -> tuple[float, ...]:
        """Return the seconds of all samples; none are allowed only beside a failure."""
        samples = self._of("samples", list, "a list")
        if not samples and self.failure() is None:
            raise RecordError("it has neither samples nor a failure")
        if not all(isinstance(sample, dict) for sample in samples):
            raise RecordError("its field samples is not a list of objects")
        return tuple(
            _Fields(sample, f"samples[{index}].").number("seconds")
            for index, sample in enumerate(samples)
        )

    def place(self, *, has_network: bool) -> Place:
        network = ""
        if has_network:
            network = f"{self.whole('nodes')} nodes x {self.number('rate_mbit'):g} Mbit/s"
        return Place(
            network,
            _commit(self.text("commit", "?")),
            self.text("machine", "?"),
            self.text("kernel", "?"),
            self.text("command", ""),
            self._day(),
        )

    def _day(self) -> str:
        if date := self.text("date", ""):
            return date[:10]
        if (at_s := self._record.get("at_s")) is None:
            return ""
        return time.strftime("%Y-%m-%d", time.gmtime(float(at_s)))

    def _of(self, name: str, kind: Any, words: str, default: Any = None) -> Any:
        value = self._record.get(name, default)
        if value is None:
            raise RecordError(f"it has no field {self._path}{name}")
        if not isinstance(value, kind):
            raise RecordError(f"its field {self._path}{name} is {value!r}, not {words}")
        return value


def _commit(text: str) -> str:
    """The first digits of a commit, and whether its tree had changes."""
    digits = text.removesuffix("-dirty")
    return digits[:12] + text[len(digits) :]


def _latency(fields: _Fields) -> Latency:
    title = fields.text("collective").replace("_", " ")
    is_plain = fields.text("variant") == "plain"
    peer = fields.text("peer")
    both = peer == "hoplite" and fields.text("level") == "ray"  # of ours there are two lines
    return Latency(
        fields.place(has_network=True),
        title if is_plain else f"{title}, {fields.text('case').strip()}",
        fields.whole("size_bytes"),
        fields.number("bound_s"),
        f"{peer}, through Ray" if both else peer,
        fields.seconds(),
        fields.failure(),
        fields.optional("limit"),
    )


def _rounds(fields: _Fields) -> Rounds:
    return Rounds(
        fields.place(has_network=True),
        fields.text("application"),
        fields.whole("parameters"),
        fields.text("peer"),
        fields.seconds(),
        fields.failure(),
        fields.optional("bound_s"),
    )


def _two_numbers(fields: _Fields) -> Canonical:
    return Canonical(
        fields.place(has_network=False),
        fields.number("goodput_share"),
        fields.number("small_get_p99_s"),
    )


def _key(record: Line) -> tuple[object, ...]:
    match record:
        case Latency(place=place, title=title, size_bytes=size, peer=peer):
            return Latency, place.network, title, size, peer
        case Rounds(place=place, application=application, parameters=parameters, peer=peer):
            return Rounds, place.network, application, parameters, peer
        case Canonical(place=place):
            return Canonical, place
        case Measured(benchmark=benchmark, figure=figure):
            return Measured, benchmark, figure.case, figure.by
