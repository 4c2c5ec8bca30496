"""Strangers at a door of this machine, by its Unix socket."""

from __future__ import annotations

import asyncio
import socket
import uuid
from typing import Any

from hoplite_ray.worlds.handshake.acceptor import Acceptor
from hoplite_ray.worlds.handshake.frames import hear


def test_a_stranger_of_this_machine_that_speaks_tls_is_told_and_named() -> None:
    told: list[dict[str, Any]] = []

    async def program() -> tuple[bytes, str]:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, what: told.append(what))
        near = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        near.bind(name := f"\0hoplite_ray-test-{uuid.uuid4()}")
        near.listen()
        acceptor = Acceptor(near, answer, lambda: None)
        reader, writer = await asyncio.open_unix_connection(name)
        writer.write(b"\x16\x03\x01\x02\x00\x01\x00\x01")
        heard = await asyncio.wait_for(reader.read(), 30)
        writer.close()
        await acceptor.close()
        return heard, acceptor.refusal

    async def answer(sock: socket.socket) -> None:
        await hear(sock)

    heard, refusal = asyncio.run(program())
    assert b"it speaks TLS" in heard
    assert "a connection from a process of this machine was refused" in refusal
    assert told == []
