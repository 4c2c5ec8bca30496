"""The record of a version, which its home keeps and all watchers hear."""

from __future__ import annotations

import json
from dataclasses import astuple, dataclass, field

from hoplite_ray.channel.trail import Trail
from hoplite_ray.errors import InvalidArgumentError
from hoplite_ray.values.versions import VERSION_BYTES_MAX, VersionNumber

_FORMAT = 1


@dataclass(frozen=True, slots=True)
class Origin:
    """The origin of a version, for people who look at its channel.

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
        fields = [_FORMAT, self.version, self.time_s, self.size_bytes, self.kept, self.dropped]
        fields += [astuple(self.origin), self.trail.to_fields()]
        encoded = json.dumps(fields, separators=(",", ":"), ensure_ascii=False).encode()
        if len(encoded) > VERSION_BYTES_MAX:
            raise InvalidArgumentError(
                f"channel {self.origin.name!r:.80}: {len(encoded)} bytes tell of version "
                f"{self.version}, of at most {VERSION_BYTES_MAX}; give a smaller keep, or a "
                "shorter name or namespace"
            )
        return encoded

    @classmethod
    def decode(cls, payload: bytes) -> Record:
        """Return the record that `encode` made.

        Raises:  InvalidArgumentError if another release of hoplite_ray made it.
        """
        try:
            form, version, time_s, size_bytes, kept, dropped, origin, trail = json.loads(payload)
            if form != _FORMAT:
                raise ValueError(f"its format is {form!r}, and {_FORMAT} is known")
            return cls(
                int(version),
                float(time_s),
                int(size_bytes),
                tuple(VersionNumber(*each) for each in kept),
                tuple(VersionNumber(*each) for each in dropped),
                Origin(*origin),
                Trail.from_fields(trail),
            )
        except (TypeError, ValueError) as error:
            raise InvalidArgumentError(
                f"record {payload[:60]!r} of a channel is none of this release ({error}); run one "
                "release of hoplite_ray on all nodes"
            ) from error
