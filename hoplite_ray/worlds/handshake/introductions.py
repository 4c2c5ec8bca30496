"""How two processes begin to speak: small frames, and a proof on both sides that they may.

A frame is four bytes of length and a JSON object. Who dials says what it wants and a nonce; both
sides prove by HMAC-SHA256, over all that was said and each other's nonce, that they know the
world's token, which never travels here. Reads take what belongs to a frame and not a byte more, so
that the connection can be handed on. Hostile bytes end in RefusedError. Where data_tls is on a
connection to another machine is a TlsSocket, and the proofs hold in its session only.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import json
import secrets
import socket
import struct
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

from hoplite_ray._native import TlsContext, TlsEnd
from hoplite_ray.errors import HopliteError, PeerLostError, WorldError

FRAME_BYTES_MAX = 64 << 10
TABLE_BYTES_MAX = 16 << 20  # of all members, from a leader who has proven itself
HANDSHAKE_S = 2.0
STRANGERS_MAX = 256  # connections at once that have proven nothing yet

Tls = Callable[[], TlsContext | None]  # what connections begin with from now on; None: without it
Answer = Callable[[socket.socket], Coroutine[Any, Any, Coroutine[Any, Any, None] | None]]

_LENGTH = struct.Struct("<I")
_TLS = (b"\x15\x03", b"\x16\x03")  # an alert and a greeting of TLS begin so, and no frame of ours
_NO_TLS_HERE = bytes.fromhex("15030300020246")  # an alert: protocol version
_RECEIVED_BYTES_MAX = 1 << 20  # by one call
_PARTING_READS_MAX = 16  # of 64 KiB each, after which a dialler that goes on hears a reset
_NO_DESCRIPTOR_S = 0.1  # until accept is tried again when the process has none left


class RefusedError(WorldError):
    """The other side says no, or is not who it should be. `reason` is a word for programs."""

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(reason, text)
        self.reason = reason

    def __str__(self) -> str:
        return str(self.args[1])


class TlsSocket(socket.socket):
    """A connection whose bytes go by TLS: `say` and `hear` go by its session, nothing else may."""

    def __init__(self, sock: socket.socket, tls: TlsEnd) -> None:
        """Take a connection over."""
        super().__init__(fileno=sock.detach())
        self.setblocking(False)  # a new object takes the limit that is Python's default
        self.tls = tls


def taken(sock: socket.socket) -> socket.socket:
    """Return the connection as one of its own, which the context that opened it does not close."""
    if isinstance(sock, TlsSocket):
        return TlsSocket(sock, sock.tls)
    own = socket.socket(fileno=sock.detach())
    own.setblocking(False)
    return own


def tls_of(sock: socket.socket) -> TlsEnd | None:
    """Return what goes with a connection's descriptor to the native core."""
    return sock.tls if isinstance(sock, TlsSocket) else None


def dialled(sock: socket.socket, tls: TlsContext | None) -> socket.socket:
    """Take a connection over that begins with TLS when the first frame is said, if there is any."""
    return sock if tls is None else TlsSocket(sock, tls.begin(dials=True))


async def connected(name: str, port: int, tls: TlsContext | None) -> socket.socket:
    """Connect to an address. Raises OSError if nobody listens there."""
    sock = socket.socket(socket.AF_INET6 if ":" in name else socket.AF_INET)
    try:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        await asyncio.get_running_loop().sock_connect(sock, (name, port))
        return dialled(sock, tls)
    except BaseException:
        sock.close()
        raise


async def _greet(sock: TlsSocket) -> None:
    while not sock.tls.is_open:
        await _by_tls(sock, 0)


async def _by_tls(sock: TlsSocket, size: int) -> bytes:
    """Receive at most so many bytes, at least one; of 0 none, once the greeting has gone on."""
    while True:
        with _in_words():
            part = sock.tls.receive(sock.fileno(), size)
        if part or (size == 0 and sock.tls.is_open):
            return part
        is_greeting = not sock.tls.is_open  # after that, `say` waits for room, maybe at this moment
        await _until_ready(sock.fileno(), is_for_writing=is_greeting and sock.tls.has_unsent)


async def _send_by_tls(sock: TlsSocket, data: bytes) -> None:
    await _greet(sock)
    at = 0
    while True:
        with _in_words():
            if at < len(data):
                at += sock.tls.send(sock.fileno(), data[at : at + _RECEIVED_BYTES_MAX])
            sock.tls.flush(sock.fileno())
        if sock.tls.has_unsent:
            await _until_ready(sock.fileno(), is_for_writing=True)
        elif at == len(data):
            return


async def _until_ready(fd: int, *, is_for_writing: bool) -> None:
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
def _in_words() -> Iterator[None]:
    """Raise what a session raises as what the end of a plain connection, or nonsense on it, is."""
    try:
        yield
    except PeerLostError as error:
        raise ConnectionResetError(str(error)) from error
    except HopliteError as error:
        raise RefusedError("tls", str(error)) from error


async def say(sock: socket.socket, **fields: Any) -> None:
    """Send one frame."""
    body = json.dumps(fields).encode()
    data = _LENGTH.pack(len(body)) + body
    if isinstance(sock, TlsSocket):
        await _send_by_tls(sock, data)
    else:
        await asyncio.get_running_loop().sock_sendall(sock, data)


async def hear(sock: socket.socket, size_max: int = FRAME_BYTES_MAX) -> dict[str, Any]:
    """Receive one frame.

    Raises:  RefusedError for what is none, or says "refused"; ConnectionError at the end.
    """
    head = await _exactly(sock, _LENGTH.size)
    (size,) = _LENGTH.unpack(head)
    if FRAME_BYTES_MAX < size and size_max < TABLE_BYTES_MAX and head.startswith(_TLS):
        raise RefusedError(
            "tls", "it speaks TLS, and data_tls is off here; give all processes the same data_tls"
        )
    if size > size_max:
        raise RefusedError("nonsense", f"a frame of {size} B")
    try:
        frame = json.loads(await _exactly(sock, size))
    except (ValueError, RecursionError) as error:
        raise RefusedError("nonsense", "a frame that is no JSON") from error
    if not isinstance(frame, dict):
        raise RefusedError("nonsense", "a frame that is no object")
    if "refused" in frame:
        raise RefusedError(str(frame["refused"]), str(frame.get("text", "")))
    return frame


async def _exactly(sock: socket.socket, size: int) -> bytes:
    loop = asyncio.get_running_loop()
    parts = bytearray()
    while len(parts) < size:
        wanted = min(size - len(parts), _RECEIVED_BYTES_MAX)
        if isinstance(sock, TlsSocket):
            part = await _by_tls(sock, wanted)
        else:
            part = await loop.sock_recv(sock, wanted)
        if not part:
            raise ConnectionResetError("the other side has closed the connection")
        parts += part
    return bytes(parts)


def field(frame: dict[str, Any], name: str, kind: type) -> Any:
    """Return a field of a frame.

    Raises:  RefusedError if it is missing or of another type.
    """
    value = frame.get(name)
    if type(value) is not kind:
        raise RefusedError("nonsense", f"a frame whose {name!r} is {value!r:.60}")
    return value


async def introduce(sock: socket.socket, token: bytes, **hello: Any) -> dict[str, Any]:
    """Prove who dials and who listens, as the dialler; returns the listener's answer.

    Raises:  RefusedError if it refuses, or does not know the token.
    """
    hello["nonce"] = secrets.token_hex(16)
    await say(sock, **hello)
    welcome = await hear(sock)
    nonce = field(welcome, "nonce", str)
    said = [hello, nonce, *_binding(sock)]
    if not _is_proof(welcome, token, "listener", said):
        raise RefusedError("proof", "who listens there does not know the world's token")
    await say(sock, proof=_proof(token, "dialler", said))
    return await hear(sock)


async def welcome(sock: socket.socket, token: bytes, hello: dict[str, Any]) -> None:
    """Do the same as the listener, who has heard the hello; the answer is still to be said.

    Raises:  RefusedError if the dialler does not know the token.
    """
    nonce = secrets.token_hex(16)
    said = [hello, nonce, *_binding(sock)]
    await say(sock, nonce=nonce, proof=_proof(token, "listener", said))
    if not _is_proof(await hear(sock), token, "dialler", said):
        raise RefusedError("proof", "you do not know the world's token")


def _binding(sock: socket.socket) -> list[str]:
    """Return what both ends of this session have, so that a proof passed on into another fails."""
    return [sock.tls.binding.hex()] if isinstance(sock, TlsSocket) else []


def _proof(token: bytes, side: str, said: list[Any]) -> str:
    text = json.dumps([side, *said], sort_keys=True).encode()
    return hmac.new(token, text, hashlib.sha256).hexdigest()


def _is_proof(frame: dict[str, Any], token: bytes, side: str, said: list[Any]) -> bool:
    proof = field(frame, "proof", str).encode(errors="replace")
    return hmac.compare_digest(proof, _proof(token, side, said).encode())


class Acceptor:
    """Answers whoever dials a listening socket, each in a task of the event loop that made this.

    `answer` has a time limit, and returns what is to be done once the other side has proven itself.
    A connection is closed when its task ends, if that has not detached it. What the task raises
    because of a stranger's bytes or death ends nothing else; a refusal is told. Connections begin
    with TLS if `tls` returns what with; `refusal` says which of them could not.
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
        """End all of it. Idempotent."""
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
        except (BlockingIOError, ConnectionError):  # who has dialled has gone again
            return
        except OSError:  # no descriptor left: somebody has to give one back first
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
        task.add_done_callback(lambda _: sock.close())  # also if it was cancelled before it began

    async def _serve(self, sock: socket.socket, address: Any) -> None:
        with contextlib.suppress(OSError, RefusedError):  # the latter of a session that is broken
            try:
                rest = await self._heard(sock, address)
                if rest is not None:
                    await rest
            except HopliteError as error:
                await _refuse(sock, error)

    async def _heard(self, sock: socket.socket, address: Any) -> Coroutine[Any, Any, None] | None:
        try:
            if sock.family != socket.AF_UNIX:  # else two frames in a row wait for 40 ms
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            async with asyncio.timeout(HANDSHAKE_S):
                if isinstance(sock, TlsSocket):
                    await _greet(sock)
                return await self._answer(sock)
        except HopliteError as error:
            if isinstance(error, RefusedError) and error.reason == "tls":
                peer = address[0] if address else "a process of this machine"
                self.refusal = f"a connection from {peer} was refused: {error}"
            await _refuse(sock, error)  # a dialler that is being refused counts as a stranger
            return None
        finally:
            self._strangers -= 1


async def _refuse(sock: socket.socket, error: HopliteError) -> None:
    """Tell a dialler why, and let it hear that: unread bytes would make the end a reset."""
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
