"""The record of a version, which its home keeps and all watchers hear."""

from __future__ import annotations

import json
from dataclasses import dataclass

from hoplite_ray.errors import InvalidArgumentError
from hoplite_ray.values.versions import VersionNumber

_FORMAT = 1


@dataclass(frozen=True, slots=True)
class Record:
    """A version of a channel.

    version:     its number, as its publisher calls it; they ascend.
    time_s:      when its bytes were whole, in seconds since 1970, by the publisher's clock.
    size_bytes:  of its value.
    kept:        numbers of the older versions that can be read, ascending.
    dropped:     numbers of those that this version's publisher deletes.
    """

    version: int
    time_s: float = 0.0
    size_bytes: int = 0
    kept: tuple[VersionNumber, ...] = ()
    dropped: tuple[VersionNumber, ...] = ()

    def encode(self) -> bytes:
        """Return the record's bytes."""
        fields = [_FORMAT, self.version, self.time_s, self.size_bytes, self.kept, self.dropped]
        return json.dumps(fields, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, payload: bytes) -> Record:
        """Return the record that `encode` made.

        Raises:  InvalidArgumentError if another release of hoplite_ray made it.
        """
        try:
            form, version, time_s, size_bytes, kept, dropped = json.loads(payload)
            if form != _FORMAT:
                raise ValueError(f"its format is {form!r}, and {_FORMAT} is known")
            numbers = [tuple(VersionNumber(*each) for each in listed) for listed in (kept, dropped)]
            return cls(int(version), float(time_s), int(size_bytes), *numbers)
        except (TypeError, ValueError) as error:
            raise InvalidArgumentError(
                f"record {payload[:60]!r} of a channel is none of this release ({error}); run one "
                "release of hoplite_ray on all nodes"
            ) from error
