"""The order in which handlers are asked to take a value that is sent to a key."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Literal

Route = Literal["key", "balanced"]


def rank_by_key(key: str, handlers: Iterable[str]) -> list[str]:
    """Return handlers by rendezvous hashing; without one of them, the rest keep their order.

    So values of one key go to one handler, and only the keys of a handler that leaves move.
    Source: Thaler and Ravishankar, "A Name-Based Mapping Scheme for Rendezvous", 1996.
    """

    def weigh(handler: str) -> tuple[bytes, str]:
        text = f"{handler} {key}".encode()
        return hashlib.blake2b(text, digest_size=8).digest(), handler

    return sorted(handlers, key=weigh)


def rank_by_load(
    handlers: Iterable[str], under_way: Mapping[str, int], last_turn: Mapping[str, int]
) -> list[str]:
    """Return handlers with the fewest values under way first, and of equal ones the longest idle.

    Args: under_way: values that a handler has now; last_turn: when it was sent its last value, by a
          counter. A handler that is in neither has none.
    """
    return sorted(handlers, key=lambda each: (under_way.get(each, 0), last_turn.get(each, 0), each))
