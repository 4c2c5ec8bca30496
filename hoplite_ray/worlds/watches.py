"""Watching connections, by which processes see each other die, whatever worlds are between them.

Two processes share one for all of their edges. Whoever dials an edge names the watch that it has
with the other one; if that does not have it, or no more, the dialler makes a new one first. So both
ends of an edge hold the same watch, and it ends when one of them has no edge left that uses it. All
of this is of one event loop.
"""

from __future__ import annotations

import asyncio
import secrets
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from weakref import WeakValueDictionary

from hoplite_ray._native import WorldPort
from hoplite_ray.worlds.introductions import HANDSHAKE_S, RefusedError

_UNUSED_S = 5 * HANDSHAKE_S  # the edge for which a watch was made comes long before


@dataclass(eq=False, slots=True)
class Watch:
    """A watch as this end has it: `name` is of both ends, `number` of the native core."""

    name: str
    peer: str
    number: int
    uses: int = 0
    is_over: bool = False


class Watches:
    """All watches of a manager."""

    def __init__(self, port: WorldPort) -> None:
        self._port = port
        self._of_peer: dict[str, list[Watch]] = {}
        self._dialling: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def acquire(self, peer: str, dial: Callable[[str], Awaitable[socket.socket]]) -> Watch:
        """Return a watch with a process, one more user's; `dial` makes one of a name."""
        dialling = self._dialling.setdefault(peer, asyncio.Lock())
        async with dialling:
            watch = next((each for each in self._of_peer.get(peer, ()) if not each.is_over), None)
            if watch is None:
                name = secrets.token_hex(8)
                watch = self._add(peer, name, await dial(name))
            watch.uses += 1
            return watch

    def accept(self, peer: str, name: str, sock: socket.socket) -> None:
        """Take a watch that a process has dialled, proven; an edge that uses it follows."""
        watch = self._add(peer, name, sock)

        def look() -> None:
            if watch.uses == 0:
                self._forget(watch)

        asyncio.get_running_loop().call_later(_UNUSED_S, look)

    def take(self, peer: str, name: str) -> Watch:
        """Return the watch that a process names, one more user's.

        Raises:  RefusedError if there is none, or it is over.
        """
        for watch in self._of_peer.get(peer, ()):
            if watch.name == name and not watch.is_over:
                watch.uses += 1
                return watch
        raise RefusedError("watch", "that watch is over here")

    def release(self, watch: Watch) -> None:
        """End one use."""
        watch.uses -= 1
        if watch.uses == 0:
            self._forget(watch)

    def handle_end(self, number: int) -> None:
        """A watch is over. Its edges have ended, or do so by themselves; no other may use it."""
        for watches in list(self._of_peer.values()):
            for watch in [each for each in watches if each.number == number]:
                watch.is_over = True
                if watch.uses == 0:
                    self._forget(watch)

    def _add(self, peer: str, name: str, sock: socket.socket) -> Watch:
        watch = Watch(name, peer, self._port.watch(sock.detach()))
        self._of_peer.setdefault(peer, []).append(watch)
        return watch

    def _forget(self, watch: Watch) -> None:
        watches = self._of_peer.get(watch.peer, [])
        if watch in watches:
            watches.remove(watch)
            self._port.forget(watch.number)
        if not watches:
            self._of_peer.pop(watch.peer, None)
