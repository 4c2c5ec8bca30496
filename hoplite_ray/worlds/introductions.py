"""How two processes begin to speak: small frames, and a proof on both sides that they may.

A frame is four bytes of length and a JSON object. Who dials says what it wants and a nonce; both
sides prove by HMAC-SHA256, over all that was said and each other's nonce, that they know the
world's token, which never travels here. Reads take what belongs to a frame and not a byte more, so
that the connection can be handed on. Hostile bytes end in RefusedError.
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
from collections.abc import Callable, Coroutine
from typing import Any

from hoplite_ray.errors import HopliteError, WorldError

FRAME_BYTES_MAX = 64 << 10
TABLE_BYTES_MAX = 16 << 20  # of all members, from a leader who has proven itself
HANDSHAKE_S = 2.0
STRANGERS_MAX = 256  # connections at once that have proven nothing yet

Answer = Callable[[socket.socket], Coroutine[Any, Any, Coroutine[Any, Any, None] | None]]

_LENGTH = struct.Struct("<I")
_NO_DESCRIPTOR_S = 0.1  # until accept is tried again when the process has none left


class RefusedError(WorldError):
    """The other side says no, or is not who it should be. `reason` is a word for programs."""

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(reason, text)
        self.reason = reason

    def __str__(self) -> str:
        return str(self.args[1])


async def say(sock: socket.socket, **fields: Any) -> None:
    """Send one frame."""
    body = json.dumps(fields).encode()
    await asyncio.get_running_loop().sock_sendall(sock, _LENGTH.pack(len(body)) + body)


async def hear(sock: socket.socket, size_max: int = FRAME_BYTES_MAX) -> dict[str, Any]:
    """Receive one frame.

    Raises:  RefusedError for what is none, or says "refused"; ConnectionError at the end.
    """
    (size,) = _LENGTH.unpack(await _exactly(sock, _LENGTH.size))
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
        part = await loop.sock_recv(sock, min(size - len(parts), 1 << 20))
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
    if not _is_proof(welcome, token, "listener", hello, nonce):
        raise RefusedError("proof", "who listens there does not know the world's token")
    await say(sock, proof=_proof(token, "dialler", hello, nonce))
    return await hear(sock)


async def welcome(sock: socket.socket, token: bytes, hello: dict[str, Any]) -> None:
    """Do the same as the listener, who has heard the hello; the answer is still to be said.

    Raises:  RefusedError if the dialler does not know the token.
    """
    nonce = secrets.token_hex(16)
    await say(sock, nonce=nonce, proof=_proof(token, "listener", hello, nonce))
    if not _is_proof(await hear(sock), token, "dialler", hello, nonce):
        raise RefusedError("proof", "you do not know the world's token")


def _proof(token: bytes, side: str, hello: dict[str, Any], nonce: str) -> str:
    said = json.dumps([side, hello, nonce], sort_keys=True).encode()
    return hmac.new(token, said, hashlib.sha256).hexdigest()


def _is_proof(
    frame: dict[str, Any], token: bytes, side: str, hello: dict[str, Any], nonce: str
) -> bool:
    proof = field(frame, "proof", str).encode(errors="replace")
    return hmac.compare_digest(proof, _proof(token, side, hello, nonce).encode())


class Acceptor:
    """Answers whoever dials a listening socket, each in a task of the event loop that made this.

    `answer` has a time limit, and returns what is to be done once the other side has proven itself.
    A connection is closed when its task ends, if that has not detached it. What the task raises
    because of a stranger's bytes or death ends nothing else; a refusal is told.
    """

    def __init__(self, sock: socket.socket, answer: Answer) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._answer = answer
        self._loop = asyncio.get_running_loop()
        self._strangers = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._listen()

    async def close(self) -> None:
        """End all of it."""
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
            sock, _ = self._sock.accept()
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
        self._strangers += 1
        task = asyncio.ensure_future(self._serve(sock))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda _: sock.close())  # also if it was cancelled before it began

    async def _serve(self, sock: socket.socket) -> None:
        with contextlib.suppress(OSError):
            try:
                rest = await self._heard(sock)
                if rest is not None:
                    await rest
            except HopliteError as error:
                reason = error.reason if isinstance(error, RefusedError) else "failed"
                async with asyncio.timeout(HANDSHAKE_S):
                    await say(sock, refused=reason, text=str(error))

    async def _heard(self, sock: socket.socket) -> Coroutine[Any, Any, None] | None:
        try:
            if sock.family != socket.AF_UNIX:  # else two frames in a row wait for 40 ms
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            async with asyncio.timeout(HANDSHAKE_S):
                return await self._answer(sock)
        finally:
            self._strangers -= 1
