"""The lines that collectives.py, training.py and canonical.py print with --json, as records."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


class RecordError(Exception):
    """A line can't be drawn: where it stands, and what is wrong with it."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where and of what it was measured."""

    network: str  # "8 nodes x 500 Mbit/s", or "" for loopback
    commit: str
    machine: str


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


@dataclass(frozen=True, slots=True)
class Rounds:
    """One application with a model of one size, over one peer."""

    place: Place
    application: str
    parameters: int
    peer: str
    seconds: tuple[float, ...]  # of each round
    failure: str | None


@dataclass(frozen=True, slots=True)
class Canonical:
    """The two numbers."""

    place: Place
    goodput_share: float
    small_get_p99_s: float


Line = Latency | Rounds | Canonical


def read(texts: Mapping[str, str]) -> list[Line]:
    """Return the records of all texts, by name of each; of two for the same thing the later one.

    Raises: RecordError naming text and line: no JSON, an unknown benchmark, a field that is missing
            or of another kind; or naming the texts, if there is no record in any.
    """
    found: dict[tuple[object, ...], Line] = {}
    for name, text in texts.items():
        for number, line in enumerate(text.splitlines(), start=1):
            if line.startswith("{"):
                record = _parsed(line, f"{name}:{number}")
                key = _key(record)
                found.pop(key, None)
                found[key] = record
    if not found:
        raise RecordError(
            f"no line of {', '.join(texts) or 'no file'} is a record: "
            "run a benchmark with --json and keep what it prints"
        )
    return list(found.values())


def _parsed(line: str, where: str) -> Line:
    try:
        record = json.loads(line)
    except json.JSONDecodeError as error:
        raise RecordError(f"{where}: begins like a record and is no JSON: {error}") from error
    kinds = {"collectives": _latency, "training": _rounds, "canonical": _two_numbers}
    kind = record.get("benchmark")
    if kind not in kinds:
        raise RecordError(
            f"{where}: its benchmark is {kind!r}; only {', '.join(kinds)} can be drawn"
        )
    try:
        return kinds[kind](_Fields(record))
    except RecordError as error:
        raise RecordError(f"{where}: {error}") from None


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
        return Place(network, self.text("commit", "?")[:12], self.text("machine", "?"))

    def _of(self, name: str, kind: Any, words: str, default: Any = None) -> Any:
        value = self._record.get(name, default)
        if value is None:
            raise RecordError(f"it has no field {self._path}{name}")
        if not isinstance(value, kind):
            raise RecordError(f"its field {self._path}{name} is {value!r}, not {words}")
        return value


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
    )


def _rounds(fields: _Fields) -> Rounds:
    return Rounds(
        fields.place(has_network=True),
        fields.text("application"),
        fields.whole("parameters"),
        fields.text("peer"),
        fields.seconds(),
        fields.failure(),
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
