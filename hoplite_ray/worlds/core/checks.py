"""What callers of worlds may get wrong, named with what to do instead."""

from __future__ import annotations

import operator
from typing import Any

from hoplite_ray.config import WORLD_TRANSPORTS, world_transport
from hoplite_ray.errors import InvalidArgumentError, WrongTypeError
from hoplite_ray.worlds.meeting.rendezvous import parsed_address

_NAME_CHARACTERS_MAX = 200


def whole(what: str, value: Any) -> int:
    """Return a whole number, as Python's own.

    Raises:  WrongTypeError for everything else.
    """
    try:
        return int(operator.index(value))
    except TypeError as error:
        raise WrongTypeError(
            f"{what}={value!r:.60} is a {type(value).__name__}; give a whole number"
        ) from error


def check_timeout(timeout_s: Any) -> None:
    """Raise for what is no time limit: seconds from 0 on, or None."""
    if timeout_s is None:
        return
    try:
        is_right = timeout_s >= 0  # not so for a NaN
        float(timeout_s)
    except (TypeError, ValueError) as error:
        raise WrongTypeError(
            f"timeout_s={timeout_s!r:.60} is a {type(timeout_s).__name__}; give seconds, or None"
        ) from error
    if not is_right:
        raise InvalidArgumentError(f"timeout_s={timeout_s} is no limit; give 0 or more, or None")


def check_name(name: Any) -> None:
    """Raise for what no world can be named."""
    if not isinstance(name, str) or not 0 < len(name) <= _NAME_CHARACTERS_MAX:
        raise InvalidArgumentError(
            f"a world's name has 1 to {_NAME_CHARACTERS_MAX} characters, not {name!r:.40}"
        )
    if not all(character.isprintable() for character in name):
        raise InvalidArgumentError(f"a world's name has no such characters: {name!a:.60}")


def chosen_transport(transport: Any) -> str:
    """Return what is to carry the bytes; the environment chooses for those who leave it open.

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
    """Raise for what is no place to meet: None, an address, or an object with set and get."""
    if isinstance(rendezvous, str):
        parsed_address(rendezvous)
    elif rendezvous is not None and not all(
        callable(getattr(type(rendezvous), name, None)) for name in ("set", "get")
    ):
        raise WrongTypeError(
            f"rendezvous={rendezvous!r:.60} is no place to meet; give 'tcp://ADDRESS:PORT', an "
            "object with async set(key, value) and get(key), or None under Ray"
        )
