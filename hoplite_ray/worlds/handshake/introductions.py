"""Introductions: dialler and listener prove to each other that they know the world's token.

The dialler's hello says what it wants, and has a nonce; the listener answers with a nonce of its
own. Each side proves by HMAC-SHA256, over the hello and both nonces, that it knows the token. The
token itself never travels here. Where data_tls is on, a connection to another machine is a
TlsSocket, and a proof is valid in its TLS session only.
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
    """Introduce this process as the dialler; returns the listener's answer.

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
    """Introduce this process as the listener, after the hello. The caller sends the answer next.

    Raises:  RefusedError if the dialler does not know the token.
    """
    nonce = secrets.token_hex(16)
    said = [hello, nonce, *_binding(sock)]
    await say(sock, nonce=nonce, proof=_proof(token, "listener", said))
    if not _is_proof(await hear(sock), token, "dialler", said):
        raise RefusedError("proof", "you do not know the world's token")


def _binding(sock: socket.socket) -> list[str]:
    """Return the binding of the TLS session, so that a proof fails that is passed on to another."""
    return [sock.tls.binding.hex()] if isinstance(sock, TlsSocket) else []


def _proof(token: bytes, side: str, said: list[Any]) -> str:
    text = json.dumps([side, *said], sort_keys=True).encode()
    return hmac.new(token, text, hashlib.sha256).hexdigest()


def _is_proof(frame: dict[str, Any], token: bytes, side: str, said: list[Any]) -> bool:
    proof = field(frame, "proof", str).encode(errors="replace")
    return hmac.compare_digest(proof, _proof(token, side, said).encode())
