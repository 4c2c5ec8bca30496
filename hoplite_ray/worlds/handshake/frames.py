"""Frames: four bytes of length, then a JSON object.

A read takes one frame and not a byte more, so that the connection can be handed on to the native
core. Hostile bytes end in RefusedError.
"""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from typing import Any

from hoplite_ray.worlds.handshake.errors import RefusedError
from hoplite_ray.worlds.handshake.tls import (
    RECEIVED_BYTES_MAX,
    TlsSocket,
    receive_by_tls,
    send_by_tls,
)

FRAME_BYTES_MAX = 64 << 10
TABLE_BYTES_MAX = 16 << 20  # the table of all members, from a rank 0 that has proven itself
HANDSHAKE_S = 2.0
_LENGTH = struct.Struct("<I")
_TLS = (
    b"\x15\x03",
    b"\x16\x03",
)  # the first bytes of a TLS alert and a TLS greeting, and of no frame


async def say(sock: socket.socket, **fields: Any) -> None:
    """Send one frame."""
    body = json.dumps(fields).encode()
    data = _LENGTH.pack(len(body)) + body
    if isinstance(sock, TlsSocket):
        await send_by_tls(sock, data)
    else:
        await asyncio.get_running_loop().sock_sendall(sock, data)


async def hear(sock: socket.socket, size_max: int = FRAME_BYTES_MAX) -> dict[str, Any]:
    """Receive one frame.

    Raises:  RefusedError for bytes that are no frame, and for a frame that says "refused";
             ConnectionError at the end of the connection.
    """
    head = await _receive_exactly(sock, _LENGTH.size)
    (size,) = _LENGTH.unpack(head)
    if FRAME_BYTES_MAX < size and size_max < TABLE_BYTES_MAX and head.startswith(_TLS):
        raise RefusedError(
            "tls", "it speaks TLS, and data_tls is off here; give all processes the same data_tls"
        )
    if size > size_max:
        raise RefusedError("nonsense", f"a frame of {size} B")
    try:
        frame = json.loads(await _receive_exactly(sock, size))
    except (ValueError, RecursionError) as error:
        raise RefusedError("nonsense", "a frame that is no JSON") from error
    if not isinstance(frame, dict):
        raise RefusedError("nonsense", "a frame that is no object")
    if "refused" in frame:
        raise RefusedError(str(frame["refused"]), str(frame.get("text", "")))
    return frame


async def _receive_exactly(sock: socket.socket, size: int) -> bytes:
    loop = asyncio.get_running_loop()
    parts = bytearray()
    while len(parts) < size:
        wanted = min(size - len(parts), RECEIVED_BYTES_MAX)
        if isinstance(sock, TlsSocket):
            part = await receive_by_tls(sock, wanted)
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
