"""Watches: connections by which two processes see each other die.

Two processes share one watch for all their edges, of all worlds. The dialler of an edge names its
watch with the peer, or dials a new one at the same time. If the peer does not have that watch, the
dialler makes a new one. So both ends of an edge hold the same watch. A watch ends when one of the
two processes has no edge left that uses it. Only the event loop of meetings uses this module.
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

_UNUSED_S = 5 * HANDSHAKE_S  # a watch's first edge comes long before


@dataclass(eq=False, slots=True)
class Watch:
    """This end of a watch. Both ends know its `name`; `number` is the native core's."""

    name: str
    peer: str
    number: asyncio.Future[int]  # pending while the watch is dialled
    uses: int = 0
    is_over: bool = False

    @property
    def is_fresh(self) -> bool:
        """True if the peer may not have it yet."""
        return not self.number.done()


class Watches:
    """All watches of a manager."""

    def __init__(self, port: WorldPort) -> None:
        self._port = port
        self._of_peer: dict[str, list[Watch]] = {}
        self._dialling: set[asyncio.Task[None]] = set()
        self._has_come = asyncio.Event()  # set when a peer has dialled a watch

    def acquire(
        self, peer: str, dial: Callable[[str], Coroutine[Any, Any, socket.socket]]
    ) -> Watch:
        """Return a watch with a process, and count one use more. `dial` makes one of a name."""
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
                watch.number.exception()  # marks it as seen: perhaps no task waits for it

    def accept(self, peer: str, name: str, sock: socket.socket) -> None:
        """Take a watch that a process has dialled, and proven; an edge will use it."""
        watch = self._add(peer, name)
        watch.number.set_result(self._port.watch(sock.detach(), tls=tls_of(sock)))
        self._has_come.set()
        self._has_come = asyncio.Event()

        def look() -> None:
            if watch.uses == 0:
                self._forget(watch)

        asyncio.get_running_loop().call_later(_UNUSED_S, look)

    async def take(self, peer: str, name: str, *, is_fresh: bool) -> Watch:
        """Return the watch that a process names, and count one use more; waits for a fresh one.

        Raises:  RefusedError if there is no such watch, or if it is over.
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
        """Mark a watch as over: no new edge uses it. Its edges end by themselves."""
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
