"""The listening sockets of a manager, and connections to other managers: TCP and Unix sockets."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import AsyncGenerator

from hoplite_ray._native import TlsContext
from hoplite_ray.base.interfaces import own_addresses
from hoplite_ray.errors import InvalidArgumentError, WorldError
from hoplite_ray.worlds.handshake.acceptor import STRANGERS_MAX, Acceptor, Answer
from hoplite_ray.worlds.handshake.tls import Tls, connected
from hoplite_ray.worlds.meeting.members import Member

_CONNECT_S = 1.0  # to one of a member's addresses


class Doors:
    """The listening sockets of one manager: at `listen=`, or at the addresses of its rendezvous."""

    def __init__(self, uuid: str, listen: str | None, answer: Answer, tls: Tls) -> None:
        """Listen at `listen`, and nearby. Connections by TCP begin with the context of `tls`."""
        self._answer = answer
        self._tls = tls
        self._is_told = listen is not None
        self._acceptors: list[Acceptor] = []
        self.addresses: tuple[tuple[str, int], ...] = ()
        if listen is not None:
            self._open(*split_listen(listen))
        near = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        near.bind(name_near(uuid))
        near.listen(STRANGERS_MAX)
        self._acceptors.append(Acceptor(near, answer, lambda: None))

    def open_at(self, name: str) -> None:
        """Listen at that address, at any port, except when the user has named another one.

        Raises:  WorldError if the address is none of this machine.
        """
        if not self._is_told and name not in {each for each, _ in self.addresses}:
            self._open(name, 0)

    def _open(self, name: str, port: int) -> None:
        tcp = _listen(name, port)
        port = tcp.getsockname()[1]
        is_any = ipaddress.ip_address(name).is_unspecified
        names = own_addresses() if is_any else [name]
        if tcp.family == socket.AF_INET:
            names = [each for each in names if ":" not in each]
        self.addresses += tuple((each, port) for each in names)
        self._acceptors.append(Acceptor(tcp, self._answer, self._tls))

    @property
    def refusal(self) -> str:
        """The last connection that could not begin with TLS, and why; empty if all could."""
        return next((each.refusal for each in self._acceptors if each.refusal), "")

    async def close(self) -> None:
        """Stop listening."""
        for acceptor in self._acceptors:
            await acceptor.close()


def split_listen(text: str) -> tuple[str, int]:
    """Split "ADDRESS:PORT", or "[ADDRESS]:PORT" of IPv6.

    Raises:  InvalidArgumentError for any other text.
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


def _listen(name: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in name else socket.AF_INET
    try:
        return socket.create_server((name, port), family=family, backlog=STRANGERS_MAX)
    except OSError as error:
        raise WorldError(
            f"can't listen at {name}:{port}: {error}; give listen= an address of this "
            "machine, with port 0 for any"
        ) from error


def name_near(uuid: str) -> str:
    """Return the address of a manager's Unix socket."""
    return f"\0hoplite_ray-world-{uuid}"  # an abstract name: it leaves no file


async def dial_near(member: Member) -> socket.socket:
    """Connect to a process of this machine.

    Raises:  OSError if it can't be reached, for example from another container.
    """
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.setblocking(False)
    try:
        await asyncio.get_running_loop().sock_connect(sock, name_near(member.uuid))
    except BaseException:
        sock.close()
        raise
    return sock


async def dial_far(
    member: Member, tls: TlsContext | None, *, is_near: bool
) -> AsyncGenerator[socket.socket, None]:
    """Yield a connection to each address of a process in turn, until the caller takes one.

    Addresses of a loopback come first for a process of this machine, and never for another one.
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
