"""A setup hook of a user's own; every worker imports it, so it imports next to nothing."""

from __future__ import annotations

import os


def set_up_worker() -> None:
    """The user's own set-up, which the flag must keep."""
    os.environ["SET_BY_THE_USERS_SETUP"] = "1"
