"""Checks of arguments: an error names what is wrong and what to give instead."""

from __future__ import annotations

import operator
from typing import Any

from hoplite_ray.errors import WrongTypeError


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
