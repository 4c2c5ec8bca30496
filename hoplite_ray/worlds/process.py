"""The manager that a process shares, for programs that need no limits of their own."""

from __future__ import annotations

import os
import threading

from hoplite_ray.worlds.manager import WorldManager

_making = threading.Lock()
_made: WorldManager | None = None


def manager() -> WorldManager:
    """Return this process's own manager, with the default limits; made at the first use.

    A forked child has another one. After the manager's close the next call makes a new one.
    """
    global _made
    with _making:
        if _made is None or _made.is_over:
            _made = WorldManager()
        return _made


def _after_fork() -> None:
    global _making
    _making = threading.Lock()  # another thread may have held it at the fork


os.register_at_fork(after_in_child=_after_fork)
