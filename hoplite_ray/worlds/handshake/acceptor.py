"""A listening socket: each connection is answered in a task of its own."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Coroutine
from typing import Any

from hoplite_ray.errors import HopliteError
from hoplite_ray.worlds.handshake.errors import RefusedError
from hoplite_ray.worlds.handshake.frames import FRAME_BYTES_MAX, HANDSHAKE_S, say
from hoplite_ray.worlds.handshake.tls import Tls, TlsSocket, greet

STRANGERS_MAX = 256  # connections at once that have proven nothing yet
Answer = Callable[[socket.socket], Coroutine[Any, Any, Coroutine[Any, Any, None] | None]]
_NO_TLS_HERE = bytes.fromhex("15030300020246")  # an alert: protocol version
_PARTING_READS_MAX = 16  # of 64 KiB each; a dialler that sends more gets a reset
_NO_DESCRIPTOR_S = 0.1  # from one accept to the next while the process has no descriptor left


class Acceptor:
    """Answers the connections of a listening socket, in the event loop that has made it.

    answer:   has HANDSHAKE_S; returns the work that follows once the dialler has proven itself.
    tls:      returns the context that connections begin with, or None.
    refusal:  says which connection could not begin with TLS, and why.

    A connection is closed when its task ends, except when the task has detached it. An error that
    a stranger's bytes or death cause ends that task only. A dialler that is refused is told why.
    """

    def __init__(self, sock: socket.socket, answer: Answer, tls: Tls) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._answer = answer
        self._tls = tls
        self.refusal = ""
        self._loop = asyncio.get_running_loop()
        self._strangers = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._listen()

    async def close(self) -> None:
        """Stop listening, and end all tasks. Idempotent."""
        if self._sock.fileno() >= 0:
            self._loop.remove_reader(self._sock)
            self._sock.close()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _listen(self) -> None:
        if self._sock.fileno() >= 0:
            self._loop.add_reader(self._sock, self._accept)

    def _accept(self) -> None:
        try:
            sock, address = self._sock.accept()
        except (BlockingIOError, ConnectionError):  # the dialler has gone again
            return
        except OSError:  # no descriptor is left: try again later
            self._loop.remove_reader(self._sock)
            self._loop.call_later(_NO_DESCRIPTOR_S, self._listen)
            return
        if self._strangers >= STRANGERS_MAX:
            sock.close()
            return
        sock.setblocking(False)
        if (tls := self._tls()) is not None:
            sock = TlsSocket(sock, tls.begin(dials=False))
        self._strangers += 1
        task = asyncio.ensure_future(self._serve(sock, address))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(
            lambda _: sock.close()
        )  # also for a task that was cancelled before its first step

    async def _serve(self, sock: socket.socket, address: Any) -> None:
        with contextlib.suppress(OSError, RefusedError):  # RefusedError: the TLS session is broken
            try:
                rest = await self._answer_in_time(sock, address)
                if rest is not None:
                    await rest
            except HopliteError as error:
                await _refuse(sock, error)

    async def _answer_in_time(
        self, sock: socket.socket, address: Any
    ) -> Coroutine[Any, Any, None] | None:
        try:
            if sock.family != socket.AF_UNIX:  # else the second of two frames waits 40 ms
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            async with asyncio.timeout(HANDSHAKE_S):
                if isinstance(sock, TlsSocket):
                    await greet(sock)
                return await self._answer(sock)
        except HopliteError as error:
            if isinstance(error, RefusedError) and error.reason == "tls":
                peer = address[0] if address else "a process of this machine"
                self.refusal = f"a connection from {peer} was refused: {error}"
            await _refuse(sock, error)  # until it has heard why, it counts as a stranger
            return None
        finally:
            self._strangers -= 1


async def _refuse(sock: socket.socket, error: HopliteError) -> None:
    """Tell a dialler why it is refused, and read what it still sends.

    Unread bytes would make the end of the connection a reset, and the dialler would not hear why.
    """
    if sock.fileno() < 0:
        return  # the connection has been handed on
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(HANDSHAKE_S):
        if isinstance(sock, TlsSocket) and not sock.tls.is_open:
            await loop.sock_sendall(sock, _NO_TLS_HERE)
        else:
            reason = error.reason if isinstance(error, RefusedError) else "failed"
            await say(sock, refused=reason, text=str(error))
        sock.shutdown(socket.SHUT_WR)
        for _ in range(_PARTING_READS_MAX):
            if not await loop.sock_recv(sock, FRAME_BYTES_MAX):
                return  # the dialler has closed its end
