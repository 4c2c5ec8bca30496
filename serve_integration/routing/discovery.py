"""The replicas of each deployment, as Serve tells the routers of this process.

Serve pickles a router's module by value, so a router keeps no state. It tells this module, which
keeps the replicas and tells the outlets.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

Deployment = tuple[str, str]  # the application's name, and the deployment's
Doors = dict[str, dict[str, Any]]  # a replica's id -> where its door is

_lock = threading.Lock()
_doors: dict[Deployment, Doors] = {}
_watchers: dict[Deployment, list[tuple[asyncio.AbstractEventLoop, Callable[[Doors], None]]]] = {}

METADATA_KEY = "hoplite_edge"


def publish(deployment: Deployment, doors: Doors) -> None:
    """Give a deployment's replicas to its watchers. Any thread may call it."""
    with _lock:
        _doors[deployment] = doors
        watchers = list(_watchers.get(deployment, ()))
    for loop, watcher in watchers:
        if not loop.is_closed():
            loop.call_soon_threadsafe(watcher, doors)


def watch(deployment: Deployment, watcher: Callable[[Doors], None]) -> None:
    """Have `watcher` called in this event loop with the replicas, now and after each change."""
    loop = asyncio.get_running_loop()
    with _lock:
        _watchers.setdefault(deployment, []).append((loop, watcher))
        doors = _doors.get(deployment)
    if doors is not None:
        loop.call_soon(watcher, doors)


def unwatch(deployment: Deployment, watcher: Callable[[Doors], None]) -> None:
    """Remove a watcher. The last watcher of a deployment takes its replicas with it."""
    with _lock:
        left = [each for each in _watchers.get(deployment, ()) if each[1] != watcher]
        if left:
            _watchers[deployment] = left
        else:
            _watchers.pop(deployment, None)
            _doors.pop(deployment, None)
