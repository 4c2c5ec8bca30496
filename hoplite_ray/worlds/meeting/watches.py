"""Watching connections, by which processes see each other die, whatever worlds are between them.

Two processes share one for all of their edges. Whoever dials an edge names the watch that it has
with the other one, or dials one at the same time; if the other one does not have it, or no more,
the dialler makes a new one. So both ends of an edge hold the same watch, and it ends when one of
them has no edge left that uses it. All of this is of one event loop.
"""

from __future__ import annotations

import asyncio
import secrets
import socket
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from hoplite_ray._native import WorldPort
from hoplite_ray.worlds.handshake.errors import RefusedError
from hoplite_ray.worlds.handshake.frames import HANDSHAKE_S
from hoplite_ray.worlds.handshake.tls import tls_of

_UNUSED_S = 5 * HANDSHAKE_S  # the edge for which a watch was made comes long before


@dataclass(eq=False, slots=True)
class Watch:
    """A watch as this end has it: `name` is of both ends, `number` of the native core."""

    name: str
    peer: str
    number: asyncio.Future[int]  # pending while it is dialled
    uses: int = 0
    is_over: bool = False

    @property
    def is_fresh(self) -> bool:
        """Whether the other end may not have it yet."""
        return not self.number.done()


class Watches:
    """All watches of a manager."""

    def __init__(self, port: WorldPort) -> None:
        self._port = port
        self._of_peer: dict[str, list[Watch]] = {}
        self._dialling: set[asyncio.Task[None]] = set()
        self._has_come = asyncio.Event()  # one that was dialled from elsewhere

    def acquire(
        self, peer: str, dial: Callable[[str], Coroutine[Any, Any, socket.socket]]
    ) -> Watch:
        """Return a watch with a process, one more user's; `dial` makes one of a name."""
        watch = next((each for each in self._of_peer.get(peer, ()) if not each.is_over), None)
        if watch is None:
            watch = self._add(peer, secrets.token_hex(8))
            dialling = asyncio.ensure_future(self._dial(watch, dial(watch.name)))
            self._dialling.add(dialling)
            dialling.add_done_callback(self._dialling.discard)
        watch.uses += 1
        return watch

    async def _dial(self, watch: Watch, dialled: Coroutine[Any, Any, socket.socket]) -> None:
        try:
            sock = await dialled
            if watch.number.cancelled():
                sock.close()
            else:
                watch.number.set_result(self._port.watch(sock.detach(), tls=tls_of(sock)))
        except Exception as error:
            watch.is_over = True
            if not watch.number.done():
                watch.number.set_exception(error)
                watch.number.exception()  # nobody may be left who waits for it

    def accept(self, peer: str, name: str, sock: socket.socket) -> None:
        """Take a watch that a process has dialled, proven; an edge uses it."""
        watch = self._add(peer, name)
        watch.number.set_result(self._port.watch(sock.detach(), tls=tls_of(sock)))
        self._has_come.set()
        self._has_come = asyncio.Event()

        def look() -> None:
            if watch.uses == 0:
                self._forget(watch)

        asyncio.get_running_loop().call_later(_UNUSED_S, look)

    async def take(self, peer: str, name: str, *, is_fresh: bool) -> Watch:
        """Return the watch that a process names, one more user's; waits for one that is fresh.

        Raises:  RefusedError if there is none, or it is over.
        """
        while True:
            for watch in self._of_peer.get(peer, ()):
                if watch.name == name and not watch.is_over and not watch.is_fresh:
                    watch.uses += 1
                    return watch
            if not is_fresh:
                raise RefusedError("watch", "that watch is over here")
            await self._has_come.wait()

    def release(self, watch: Watch) -> None:
        """End one use."""
        watch.uses -= 1
        if watch.uses == 0:
            self._forget(watch)

    def handle_end(self, number: int) -> None:
        """A watch is over. Its edges have ended, or do so by themselves; no other may use it."""
        for watches in list(self._of_peer.values()):
            for watch in [each for each in watches if _is_numbered(each, number)]:
                watch.is_over = True
                if watch.uses == 0:
                    self._forget(watch)

    def _add(self, peer: str, name: str) -> Watch:
        watch = Watch(name, peer, asyncio.get_running_loop().create_future())
        self._of_peer.setdefault(peer, []).append(watch)
        return watch

    def _forget(self, watch: Watch) -> None:
        watches = self._of_peer.get(watch.peer, [])
        if watch in watches:
            watches.remove(watch)
            watch.is_over = True
            if not watch.number.cancel() and watch.number.exception() is None:
                self._port.forget(watch.number.result())
        if not watches:
            self._of_peer.pop(watch.peer, None)


def _is_numbered(watch: Watch, number: int) -> bool:
    made = watch.number
    return (
        made.done()
        and not made.cancelled()
        and made.exception() is None
        and made.result() == number
    )
