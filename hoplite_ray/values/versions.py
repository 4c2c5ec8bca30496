"""Versions of a channel: a name whose newest version readers wait for.

A publisher takes a term once, which ends all older terms of the channel. It then numbers its
versions itself. Versions are ordered by (term, n), and a version never changes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from hoplite_ray import _native
from hoplite_ray.errors import InvalidArgumentError

VERSION_BYTES_MAX: int = _native.VERSION_BYTES_MAX  # of a version's payload


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
NO_ID = bytes(28)  # before the ids of all channels; 28 is `OBJECT_ID_BYTES`


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
    before: Term  # the newest one by then; (0, 0): none is known


@dataclass(frozen=True, slots=True)
class ChannelReader:
    """A process of a node that reads a channel, and the version that it has read last."""

    process: int  # its id
    version: int  # what its publisher calls it
    ordinal: int  # its place among all versions of the channel, from 1 on
    time_s: float  # since 1970, by its publisher's clock


@dataclass(frozen=True, slots=True)
class ChannelState:
    """One live channel, as a node knows it."""

    channel: bytes
    newest: Version  # that the node keeps; perhaps not visible yet
    is_home: bool  # True if the node is the channel's home
    readers: tuple[ChannelReader, ...]  # of that node


def read_taken(found: Any) -> TakenTerm:
    """Return the answer to a request for a term."""
    term, newest, before = found
    return TakenTerm(Term(*term), VersionNumber(*newest), Term(*before))


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
            Version(VersionNumber(*row["newest"][0]), row["newest"][2], row["newest"][1]),
            row["is_home"],
            tuple(
                ChannelReader(
                    each["process"], each["version"], each["ordinal"], each["time_us"] / 1e6
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
    if len(payload) > VERSION_BYTES_MAX:
        raise InvalidArgumentError(
            f"a version's payload has {len(payload)} bytes, of at most "
            f"{VERSION_BYTES_MAX}; put the value, and publish the id of the object"
        )
    return payload
