"""A pause of Python's cyclic collector while the leaves of a large value are made.

None of them is garbage, and a full collection reads every object of the process: with torch
imported it takes as long as all the rest of a get of 40,000 tensors.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_lock = threading.Lock()
_pauses = 0  # under way, of all threads
_was_enabled = False  # before the first of them


@contextmanager
def pause_collector() -> Iterator[None]:
    """Keep the collector from running in the body. Any thread may use it, also inside another."""
    global _pauses, _was_enabled
    with _lock:
        if _pauses == 0:
            _was_enabled = gc.isenabled()
            gc.disable()
        _pauses += 1
    try:
        yield
    finally:
        with _lock:
            _pauses -= 1
            if _pauses == 0 and _was_enabled:
                gc.enable()
