"""Checks of arguments: an error names what is wrong and what to give instead."""

from __future__ import annotations

import operator
from typing import Any

from hoplite_ray.errors import InvalidArgumentError, WrongTypeError


def check_whole(what: str, value: Any) -> int:
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
    """Check a time limit: seconds from 0 on, or None.

    Raises:  WrongTypeError or InvalidArgumentError for everything else.
    """
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
