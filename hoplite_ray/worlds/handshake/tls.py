"""Connections, with TLS where data_tls is on and the peer is on another machine."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Iterator

from hoplite_ray._native import TlsContext, TlsEnd
from hoplite_ray.errors import HopliteError, PeerLostError
from hoplite_ray.worlds.handshake.errors import RefusedError

Tls = Callable[[], TlsContext | None]  # returns the context that new connections use; None: no TLS
RECEIVED_BYTES_MAX = 1 << 20  # by one call


class TlsSocket(socket.socket):
    """A connection whose bytes go by TLS. Only `say` and `hear` may use it."""

    def __init__(self, sock: socket.socket, tls: TlsEnd) -> None:
        """Take over a connection."""
        super().__init__(fileno=sock.detach())
        self.setblocking(False)  # a new socket object has Python's default timeout
        self.tls = tls


def take_over(sock: socket.socket) -> socket.socket:
    """Return the connection as a new object, which the old object's context does not close."""
    if isinstance(sock, TlsSocket):
        return TlsSocket(sock, sock.tls)
    own = socket.socket(fileno=sock.detach())
    own.setblocking(False)
    return own


def tls_of(sock: socket.socket) -> TlsEnd | None:
    """Return the TLS session that goes to the native core with the connection's descriptor."""
    return sock.tls if isinstance(sock, TlsSocket) else None


def begin_tls(sock: socket.socket, tls: TlsContext | None) -> socket.socket:
    """Take over a connection that was dialled; TLS, if any, begins with the first frame."""
    return sock if tls is None else TlsSocket(sock, tls.begin(dials=True))


async def connected(name: str, port: int, tls: TlsContext | None) -> socket.socket:
    """Connect to an address. Raises OSError if no process listens there."""
    sock = socket.socket(socket.AF_INET6 if ":" in name else socket.AF_INET)
    try:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        await asyncio.get_running_loop().sock_connect(sock, (name, port))
        return begin_tls(sock, tls)
    except BaseException:
        sock.close()
        raise


async def greet(sock: TlsSocket) -> None:
    while not sock.tls.is_open:
        await receive_by_tls(sock, 0)


async def receive_by_tls(sock: TlsSocket, size: int) -> bytes:
    """Receive one to `size` bytes; with size 0 none, once the greeting has gone on."""
    while True:
        with _translate_errors():
            part = sock.tls.receive(sock.fileno(), size)
        if part or (size == 0 and sock.tls.is_open):
            return part
        is_greeting = not sock.tls.is_open  # after the greeting only `say` waits for room
        await _wait_until_ready(sock.fileno(), is_for_writing=is_greeting and sock.tls.has_unsent)


async def send_by_tls(sock: TlsSocket, data: bytes) -> None:
    await greet(sock)
    at = 0
    while True:
        with _translate_errors():
            if at < len(data):
                at += sock.tls.send(sock.fileno(), data[at : at + RECEIVED_BYTES_MAX])
            sock.tls.flush(sock.fileno())
        if sock.tls.has_unsent:
            await _wait_until_ready(sock.fileno(), is_for_writing=True)
        elif at == len(data):
            return


async def _wait_until_ready(fd: int, *, is_for_writing: bool) -> None:
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    if is_for_writing:
        loop.add_writer(fd, ready.set)
    else:
        loop.add_reader(fd, ready.set)
    try:
        await ready.wait()
    finally:
        if is_for_writing:
            loop.remove_writer(fd)
        else:
            loop.remove_reader(fd)


@contextlib.contextmanager
def _translate_errors() -> Iterator[None]:
    """Raise a session's errors as the ones of a plain connection: its end, or a refusal."""
    try:
        yield
    except PeerLostError as error:
        raise ConnectionResetError(str(error)) from error
    except HopliteError as error:
        raise RefusedError("tls", str(error)) from error
