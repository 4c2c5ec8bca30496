"""Ids that every process derives alike: of a channel, and of each of its versions' objects."""

from __future__ import annotations

import hashlib
from typing import Any

from hoplite_ray.errors import InvalidArgumentError
from hoplite_ray.values.layout import OBJECT_ID_BYTES
from hoplite_ray.values.versions import VersionNumber

_NAME_BYTES_MAX = 1024


def name_channel(namespace: str, name: str) -> bytes:
    """Return the id of a channel. Raises: InvalidArgumentError for a namespace that is too long."""
    if len(namespace.encode()) > _NAME_BYTES_MAX:
        raise InvalidArgumentError(
            f"namespace {namespace!r:.80} has more than {_NAME_BYTES_MAX} bytes; name a shorter one"
        )
    return _digest(b"channel", namespace.encode(), name.encode())


def name_object(channel: bytes, number: VersionNumber) -> bytes:
    """Return the id of a version's object, which is known before the version is there."""
    return _digest(channel, *(each.to_bytes(8, "little") for each in number))


def name_delta(channel: bytes, number: VersionNumber) -> bytes:
    """Return the id of the object with the delta that makes a version of the one before it."""
    return _digest(b"delta", name_object(channel, number))


def checked_name(name: Any) -> str:
    """Return `name` as it is. Raises: InvalidArgumentError unless it can name a channel."""
    if isinstance(name, str) and 0 < len(name.encode()) <= _NAME_BYTES_MAX:
        return name
    raise InvalidArgumentError(
        f"a channel's name is a text of 1 to {_NAME_BYTES_MAX} bytes, not {name!r:.80}"
    )


def _digest(*parts: bytes) -> bytes:
    digest = hashlib.blake2b(digest_size=OBJECT_ID_BYTES)
    for part in parts:
        digest.update(len(part).to_bytes(8, "little") + part)
    return digest.digest()
