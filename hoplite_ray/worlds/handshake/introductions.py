"""How two processes begin to speak: small frames, and a proof on both sides that they may.

A frame is four bytes of length and a JSON object. Who dials says what it wants and a nonce; both
sides prove by HMAC-SHA256, over all that was said and each other's nonce, that they know the
world's token, which never travels here. Reads take what belongs to a frame and not a byte more, so
that the connection can be handed on. Hostile bytes end in RefusedError. Where data_tls is on a
connection to another machine is a TlsSocket, and the proofs hold in its session only.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
import socket
from typing import Any

from hoplite_ray.worlds.handshake.errors import RefusedError
from hoplite_ray.worlds.handshake.frames import field, hear, say
from hoplite_ray.worlds.handshake.tls import TlsSocket


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
