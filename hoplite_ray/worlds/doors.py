"""Where other processes reach this one, and how it reaches them: TCP, and a Unix socket nearby."""

from __future__ import annotations

import asyncio
import fcntl
import ipaddress
import os
import socket
from collections.abc import AsyncGenerator

from hoplite_ray._native import WORLD_MEMORY_BYTES, TlsContext
from hoplite_ray.base.interfaces import own_addresses
from hoplite_ray.errors import InvalidArgumentError, WorldError
from hoplite_ray.worlds.introductions import (
    STRANGERS_MAX,
    Acceptor,
    Answer,
    RefusedError,
    Tls,
    connected,
)
from hoplite_ray.worlds.members import Member

_CONNECT_S = 1.0  # to one of a member's addresses
_F_ADD_SEALS, _F_GET_SEALS = 1033, 1034  # linux/fcntl.h; Python 3.11's fcntl lacks them
_SEALS = 0x1 | 0x2 | 0x4  # sealing, shrinking and growing are over


class Doors:
    """The listening sockets of one manager: where it was told to, or where its members meet."""

    def __init__(self, uuid: str, listen: str | None, answer: Answer, tls: Tls) -> None:
        """Answer connections; those to an address begin with what `tls` returns."""
        self._answer = answer
        self._tls = tls
        self._is_told = listen is not None
        self._acceptors: list[Acceptor] = []
        self.addresses: tuple[tuple[str, int], ...] = ()
        if listen is not None:
            self._open(*split_listen(listen))
        near = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        near.bind(near_name(uuid))
        near.listen(STRANGERS_MAX)
        self._acceptors.append(Acceptor(near, answer, lambda: None))

    def open_at(self, name: str) -> None:
        """Listen at that address of this machine, at any port, unless the user named another.

        Raises:  WorldError if it can't be had.
        """
        if not self._is_told and name not in {each for each, _ in self.addresses}:
            self._open(name, 0)

    def _open(self, name: str, port: int) -> None:
        tcp = _listening(name, port)
        port = tcp.getsockname()[1]
        is_any = ipaddress.ip_address(name).is_unspecified
        names = own_addresses() if is_any else [name]
        if tcp.family == socket.AF_INET:
            names = [each for each in names if ":" not in each]
        self.addresses += tuple((each, port) for each in names)
        self._acceptors.append(Acceptor(tcp, self._answer, self._tls))

    @property
    def refusal(self) -> str:
        """Which connection could not begin with TLS, and why; empty while all could."""
        return next((each.refusal for each in self._acceptors if each.refusal), "")

    async def close(self) -> None:
        """Stop listening."""
        for acceptor in self._acceptors:
            await acceptor.close()


def split_listen(text: str) -> tuple[str, int]:
    """Split "ADDRESS:PORT", or "[ADDRESS]:PORT" of IPv6.

    Raises:  InvalidArgumentError if it is none.
    """
    name, _, port = text.rpartition(":")
    name = name.removeprefix("[").removesuffix("]")
    try:
        ipaddress.ip_address(name)
        if port.isdecimal() and int(port) < 1 << 16:
            return name, int(port)
    except ValueError:
        pass
    raise InvalidArgumentError(
        f"listen={text!r} is no address; write ADDRESS:PORT of this machine, as 10.1.0.5:0"
    )


def _listening(name: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in name else socket.AF_INET
    try:
        return socket.create_server((name, port), family=family, backlog=STRANGERS_MAX)
    except OSError as error:
        raise WorldError(
            f"can't listen at {name}:{port}: {error}; give listen= an address of this "
            "machine, with port 0 for any"
        ) from error


def near_name(uuid: str) -> str:
    """Return the address of a manager's Unix socket."""
    return f"\0hoplite_ray-world-{uuid}"  # abstract: it ends with the process, and leaves no file


async def near(member: Member) -> socket.socket:
    """Connect to a process of this machine.

    Raises:  OSError if it can't be reached from here, as from another container.
    """
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.setblocking(False)
    try:
        await asyncio.get_running_loop().sock_connect(sock, near_name(member.uuid))
    except BaseException:
        sock.close()
        raise
    return sock


async def far(
    member: Member, tls: TlsContext | None, *, is_near: bool
) -> AsyncGenerator[socket.socket, None]:
    """Connect to one address of a process after another, while none of them is the right one.

    Addresses of a loopback are this machine's, and tried first if the process is.
    """
    addresses = [
        (ipaddress.ip_address(name).is_loopback, name, port) for name, port in member.addresses
    ]
    for is_loopback, name, port in sorted(addresses, key=lambda each: each[0], reverse=is_near):
        if is_loopback and not is_near:
            continue
        try:
            async with asyncio.timeout(_CONNECT_S):
                sock = await connected(name, port, tls)
        except (OSError, TimeoutError):
            continue
        yield sock


def give_memory(sock: socket.socket) -> int:
    """Make the memory that the two ends of an edge share, and pass it on; returns ours.

    Raises:  OSError if there is none.
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

    Raises:  OSError if there is none.
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
    """Whether memory keeps its size, so that reading it can't end the process."""
    try:
        return fcntl.fcntl(memory, _F_GET_SEALS) & _SEALS == _SEALS
    except OSError:  # it is something else
        return False


async def take_memory(sock: socket.socket) -> int:
    """Receive it.

    Raises:  RefusedError if something else comes.
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
