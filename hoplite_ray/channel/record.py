"""The record of a version, which its home keeps and all watchers hear."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import astuple, dataclass, field
from typing import Any

from hoplite_ray.channel.trail import Trail
from hoplite_ray.errors import InvalidArgumentError
from hoplite_ray.values.versions import VERSION_BYTES_MAX, VersionNumber

_FORMAT = 1

# Versions of one channel. A reader expands them from a few bytes of a record.
KEPT_MAX = 65_536


@dataclass(frozen=True, slots=True)
class Origin:
    """The origin of a version, as lists of channels show it.

    namespace, name:  of its channel, whose id is their hash.
    ordinal:          its place among all versions of the channel, from 1 on.
    node_id:          of the node that published it.
    """

    namespace: str = ""
    name: str = ""
    ordinal: int = 0
    node_id: int = 0


@dataclass(frozen=True, slots=True)
class Record:
    """A version of a channel.

    version:     its number, as its publisher calls it; they ascend.
    time_s:      when its bytes were whole, in seconds since 1970, by the publisher's clock.
    size_bytes:  of its value.
    kept:        numbers of the older versions that can be read, ascending.
    dropped:     numbers of those that this version's publisher deletes.
    origin:      what `hoplite_ray.channels` and `hoplite-ray top` tell of it.
    trail:       the deltas that lead to it.
    """

    version: int
    time_s: float = 0.0
    size_bytes: int = 0
    kept: tuple[VersionNumber, ...] = ()
    dropped: tuple[VersionNumber, ...] = ()
    origin: Origin = Origin()
    trail: Trail = field(default_factory=Trail)

    def encode(self) -> bytes:
        """Return the record's bytes.

        Raises:  InvalidArgumentError if they are more than a channel's home keeps.
        """
        fields: list[Any] = [_FORMAT, self.version, self.time_s, self.size_bytes]
        fields += [_join(self.kept), _join(self.dropped)]
        fields += [astuple(self.origin), self.trail.to_fields()]
        encoded = json.dumps(fields, separators=(",", ":"), ensure_ascii=False).encode()
        if len(encoded) > VERSION_BYTES_MAX:
            raise InvalidArgumentError(
                f"channel {self.origin.name!r:.80}: {len(encoded)} bytes tell of version "
                f"{self.version}, of at most {VERSION_BYTES_MAX}; give a shorter name or "
                "namespace, or unpublish a channel that keeps versions of many publishers"
            )
        return encoded

    @classmethod
    def decode(cls, payload: bytes) -> Record:
        """Return the record that `encode` made.

        Raises:  InvalidArgumentError if another release of hoplite_ray made it.
        """
        try:
            form, version, time_s, size_bytes, kept, dropped, origin, trail = json.loads(payload)
            namespace, name, ordinal, node_id = origin
            if form != _FORMAT:
                raise ValueError(f"its format is {form!r}, and {_FORMAT} is known")
            return cls(
                int(version),
                float(time_s),
                int(size_bytes),
                _expand(kept),
                _expand(dropped),
                Origin(str(namespace), str(name), int(ordinal), int(node_id)),
                Trail.from_fields(trail),
            )
        except (TypeError, ValueError) as error:
            raise InvalidArgumentError(
                f"record {payload[:60]!r} of a channel is none of this release ({error}); run one "
                "release of hoplite_ray on all nodes"
            ) from error


def _join(numbers: Sequence[VersionNumber]) -> list[list[int]]:
    """Return runs of consecutive numbers: each its first number, and how many there are.

    Example: versions 4, 5 and 6 of term (1, 2) are [[1, 2, 4, 3]].
    """
    runs: list[list[int]] = []
    for each in numbers:
        if runs and [each.epoch, each.counter, each.n] == [*runs[-1][:2], sum(runs[-1][2:])]:
            runs[-1][3] += 1
        else:
            runs.append([*each, 1])
    return runs


def _expand(runs: Sequence[Sequence[int]]) -> tuple[VersionNumber, ...]:
    """Return the numbers that `_join` made runs of. Raises: TypeError or ValueError for others."""
    count_all = sum(count for _, _, _, count in runs)
    if not all(count > 0 for _, _, _, count in runs) or count_all > KEPT_MAX:
        raise ValueError(f"it names {count_all} versions, of at most {KEPT_MAX}")
    return tuple(
        VersionNumber(epoch, counter, n)
        for epoch, counter, first, count in runs
        for n in range(first, first + count)
    )
