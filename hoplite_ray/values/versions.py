"""Versions of a channel: a name whose newest version readers wait for.

A publisher takes a term once, which ends all older terms of the channel. It then numbers its
versions itself. Versions are ordered by (term, n), and a version never changes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from hoplite_ray import _native
from hoplite_ray.errors import InvalidArgumentError


class Term(NamedTuple):
    """The right of one publisher to publish; a newer one ends all older ones."""

    epoch: int  # of the cluster's members when it was taken
    counter: int  # within the epoch, from 1 on


class VersionNumber(NamedTuple):
    """The place of a version in the order of its channel; `n` 0: no version."""

    epoch: int
    counter: int
    n: int

    @property
    def term(self) -> Term:
        """The term of its publisher."""
        return Term(self.epoch, self.counter)


NO_VERSION = VersionNumber(0, 0, 0)


@dataclass(frozen=True, slots=True)
class Version:
    """One visible version of a channel."""

    number: VersionNumber
    payload: bytes  # what its publisher gave, at most 4 KiB
    is_end: bool  # True if the channel was unpublished; a later version begins it again


@dataclass(frozen=True, slots=True)
class TakenTerm:
    """A publisher's new term."""

    term: Term
    newest: VersionNumber  # visible by then; NO_VERSION: none


@dataclass(frozen=True, slots=True)
class ChannelReader:
    """A node that watches a channel."""

    node_id: int
    sent: VersionNumber  # the newest one that its home has sent to it
    acknowledged: VersionNumber  # the newest one that it has confirmed to keep


@dataclass(frozen=True, slots=True)
class ChannelState:
    """One channel, as its home knows it."""

    channel: bytes
    newest: VersionNumber
    is_end: bool
    readers: tuple[ChannelReader, ...]


def read_taken(found: Any) -> TakenTerm:
    """Return the answer to a request for a term."""
    term, newest = found
    return TakenTerm(Term(*term), VersionNumber(*newest))


def read_version(found: Any) -> Version | None:
    """Return the answer to a watch; None if no version is newer."""
    if found is None:
        return None
    number, is_end, payload = found
    return Version(VersionNumber(*number), payload, is_end)


def read_channels(found: Any) -> list[ChannelState]:
    """Return the channels that a node has listed."""
    return [
        ChannelState(
            row["channel"],
            VersionNumber(*row["newest"]),
            row["is_end"],
            tuple(
                ChannelReader(
                    each["node_id"],
                    VersionNumber(*each["sent"]),
                    VersionNumber(*each["acknowledged"]),
                )
                for each in row["readers"]
            ),
        )
        for row in found
    ]


def check_number(number: VersionNumber) -> VersionNumber:
    """Return the number of a version to publish, or raise InvalidArgumentError."""
    fits = number.epoch < 2**64 and number.counter < 2**32 and number.n < 2**64
    if min(number) < 1 or not fits:
        raise InvalidArgumentError(
            f"version {tuple(number)}: epoch, counter and n are whole numbers from 1 on; take a "
            "term first, and number its versions from 1"
        )
    return number


def check_payload(payload: bytes) -> bytes:
    """Return the payload of a version, or raise InvalidArgumentError."""
    if len(payload) > _native.VERSION_BYTES_MAX:
        raise InvalidArgumentError(
            f"a version's payload has {len(payload)} bytes, of at most "
            f"{_native.VERSION_BYTES_MAX}; put the value, and publish the id of the object"
        )
    return payload
