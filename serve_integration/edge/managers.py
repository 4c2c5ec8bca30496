"""The manager of all edges of this process. It listens at this Ray node's address only."""

from __future__ import annotations

import threading

import ray

from hoplite_ray.worlds import WorldManager
from hoplite_ray.worlds.meeting.secrecy import Secrecy

secrecy = Secrecy()  # of all connections of this process's edges
_lock = threading.Lock()
_manager: WorldManager | None = None


def node_address() -> str:
    """Return the address by which Ray's nodes reach this one."""
    return str(ray.util.get_node_ip_address())  # type: ignore[no-untyped-call]


def node_id() -> str:
    """Return the id of this Ray node; "" without Ray."""
    return str(ray.get_runtime_context().get_node_id()) if ray.is_initialized() else ""


def manager() -> WorldManager:
    """Return the manager. It is made at the first use, and again after it was closed."""
    global _manager
    with _lock:
        if _manager is None or _manager.is_over:
            address = node_address()
            _manager = WorldManager(listen=f"[{address}]:0" if ":" in address else f"{address}:0")
        return _manager
