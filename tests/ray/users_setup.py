"""A setup hook of a user's own; every worker imports it, so it imports next to nothing."""

from __future__ import annotations

import os


def set_up_worker() -> None:
    """What the flag must not displace."""
    os.environ["SET_BY_THE_USERS_SETUP"] = "1"
