"""Memory that two processes share. It can't shrink; its descriptor travels by a Unix socket."""

from __future__ import annotations

import asyncio
import fcntl
import os
import socket

from hoplite_ray._native import WORLD_MEMORY_BYTES
from hoplite_ray.worlds.handshake.errors import RefusedError

_F_ADD_SEALS, _F_GET_SEALS = 1033, 1034  # linux/fcntl.h; Python 3.11's fcntl lacks them
_SEALS = 0x1 | 0x2 | 0x4  # sealing, shrinking and growing are over


def give_memory(sock: socket.socket) -> int:
    """Make the memory of an edge, and pass it on to the peer; returns this end's descriptor.

    Raises:  OSError if there is no memory.
    """
    memory = sealed_memory(WORLD_MEMORY_BYTES)
    try:
        socket.send_fds(sock, [b"m"], [memory])
    except BaseException:
        os.close(memory)
        raise
    return memory


def sealed_memory(size: int) -> int:
    """Return a descriptor of new memory that keeps its size.

    Raises:  OSError if there is no memory.
    """
    memory = os.memfd_create("hoplite_ray-world", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(memory, size)
        fcntl.fcntl(memory, _F_ADD_SEALS, _SEALS)
    except BaseException:
        os.close(memory)
        raise
    return memory


def is_sealed(memory: int) -> bool:
    """Return True if the memory keeps its size, so that reading it can't end this process."""
    try:
        return fcntl.fcntl(memory, _F_GET_SEALS) & _SEALS == _SEALS
    except OSError:  # the descriptor is no memfd
        return False


async def take_memory(sock: socket.socket) -> int:
    """Receive a descriptor of memory.

    Raises:  RefusedError if anything else comes.
    """
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    loop.add_reader(sock, readable.set)
    try:
        await readable.wait()
    finally:
        loop.remove_reader(sock)
    _, memory, _, _ = socket.recv_fds(sock, 1, 1, socket.MSG_CMSG_CLOEXEC)
    if len(memory) != 1:
        raise RefusedError("nonsense", "no memory came with an edge")
    return memory[0]
