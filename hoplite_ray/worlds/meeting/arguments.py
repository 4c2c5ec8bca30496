"""Checks of the arguments of `join`: an error names what is wrong and what to give instead."""

from __future__ import annotations

from typing import Any

from hoplite_ray.config import WORLD_TRANSPORTS, world_transport
from hoplite_ray.errors import InvalidArgumentError, WrongTypeError
from hoplite_ray.worlds.meeting.rendezvous import parse_address

_NAME_CHARACTERS_MAX = 200


def check_name(name: Any) -> None:
    """Raise InvalidArgumentError for a name that no world can have."""
    if not isinstance(name, str) or not 0 < len(name) <= _NAME_CHARACTERS_MAX:
        raise InvalidArgumentError(
            f"a world's name has 1 to {_NAME_CHARACTERS_MAX} characters, not {name!r:.40}"
        )
    if not all(character.isprintable() for character in name):
        raise InvalidArgumentError(f"a world's name has no such characters: {name!a:.60}")


def chosen_transport(transport: Any) -> str:
    """Return the transport; for "auto" the environment may choose it.

    Raises:  InvalidArgumentError for an unknown word.
    """
    if transport not in WORLD_TRANSPORTS:
        words = " or ".join(map(repr, WORLD_TRANSPORTS))
        raise InvalidArgumentError(f"transport={transport!r:.60} is unknown; it takes {words}")
    if transport != "auto":
        return str(transport)
    try:
        return world_transport()
    except ValueError as error:
        raise InvalidArgumentError(str(error)) from None


def check_rendezvous(rendezvous: Any) -> None:
    """Raise for a value that is no rendezvous: None, an address, or an object with set and get."""
    if isinstance(rendezvous, str):
        parse_address(rendezvous)
    elif rendezvous is not None and not all(
        callable(getattr(type(rendezvous), name, None)) for name in ("set", "get")
    ):
        raise WrongTypeError(
            f"rendezvous={rendezvous!r:.60} is no place to meet; give 'tcp://ADDRESS:PORT', an "
            "object with async set(key, value) and get(key), or None under Ray"
        )
