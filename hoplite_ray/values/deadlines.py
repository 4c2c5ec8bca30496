"""Time limits: `timeout_s` of a caller, and the deadline that it becomes.

A `timeout_s` is a number of seconds, or None to wait without a limit. With 0 a call returns what
can be had at once, and otherwise raises its timeout error. A deadline is a time of the monotonic
clock, or None.
"""

from __future__ import annotations

import math
import time
from numbers import Real
from typing import Any

from hoplite_ray.errors import GetTimeoutError, InvalidArgumentError, WrongTypeError


def checked_timeout(timeout_s: Any) -> float | None:
    """Return `timeout_s` as a float; None if it is None or infinite.

    Raises:  WrongTypeError if it is no number; InvalidArgumentError if it is negative or NaN.
    """
    if timeout_s is None:
        return None
    if not isinstance(timeout_s, Real) or isinstance(timeout_s, bool):
        kind = type(timeout_s).__name__
        raise WrongTypeError(f"timeout_s is a {kind}; it takes seconds, or None for no limit")
    seconds = float(timeout_s)
    if not seconds >= 0:  # not so for a NaN
        raise InvalidArgumentError(
            f"timeout_s is {timeout_s}; it takes 0 or more seconds, or None for no limit"
        )
    return None if math.isinf(seconds) else seconds


def deadline_in(timeout_s: float | None) -> float | None:
    """Return the end of `timeout_s`; None if there is none.

    Raises:  as `checked_timeout`.
    """
    limit_s = checked_timeout(timeout_s)
    return None if limit_s is None else time.monotonic() + limit_s


def left_s(deadline: float | None) -> float | None:
    """Return the seconds until `deadline`; None if there is none."""
    return None if deadline is None else max(0.0, deadline - time.monotonic())


def refuse_late(deadline: float | None, timeout_s: float | None, what: str) -> None:
    """Check between two steps of a call that the caller's time is not over.

    Raises: GetTimeoutError if it is; not for a `timeout_s` of 0, with which each step takes what
            can be had at once.
    """
    if timeout_s and left_s(deadline) == 0:
        raise GetTimeoutError(f"{what} has taken longer than timeout_s={timeout_s}")
