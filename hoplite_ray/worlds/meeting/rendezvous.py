"""The rendezvous at which members find rank 0: an object with two coroutines, or an address.

Only joining needs it. Rank 0 sets one record for a world's name; the other members get it.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import sys
from collections import Counter
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, Protocol
from urllib.parse import urlsplit

from hoplite_ray._native import TlsContext
from hoplite_ray.base.interfaces import own_addresses
from hoplite_ray.errors import InvalidArgumentError, WorldError, WrongTypeError
from hoplite_ray.worlds.handshake.acceptor import STRANGERS_MAX, Acceptor
from hoplite_ray.worlds.handshake.errors import RefusedError
from hoplite_ray.worlds.handshake.frames import FRAME_BYTES_MAX, HANDSHAKE_S, field, hear, say
from hoplite_ray.worlds.handshake.tls import Tls, connected

_KEY_BYTES_MAX = 8192  # a name of 200 characters, each of which JSON may write as twelve

Address = tuple[str, int]

_UNSPECIFIED = ("0.0.0.0", "::")
_ANYWHERE = ("8.8.8.8", "2001:4860:4860::8888")  # Ray finds a node's address by them, too


class Rendezvous(Protocol):
    """A table of bytes that all members reach; the last value set for a key stands."""

    async def set(self, key: str, value: bytes) -> None:
        """Keep a value."""

    async def get(self, key: str) -> bytes | None:
        """Return the value, or None while there is none."""


class ClosedRendezvous(Rendezvous, Protocol):
    """A rendezvous that a manager closes: with the world of its rank 0, or after a failed join."""

    def close(self) -> None:
        """Remove the records that were set by it, without waiting."""


class Elsewhere:
    """A user's rendezvous, called in the event loop that it belongs to."""

    def __init__(self, there: Rendezvous, loop: asyncio.AbstractEventLoop) -> None:
        self._there = there
        self._loop = loop

    async def set(self, key: str, value: bytes) -> None:
        """Keep a value."""
        await self._do(self._there.set(key, value))

    async def get(self, key: str) -> bytes | None:
        """Return the value, or None while there is none."""
        value: bytes | None = await self._do(self._there.get(key))
        return value

    async def _do(self, work: Coroutine[Any, Any, Any]) -> Any:
        if not asyncio.iscoroutine(work):
            raise WrongTypeError(
                f"set or get of {type(self._there).__name__} is no coroutine; write `async def`"
            )
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))


class Board:
    """The table at an address: rank 0 keeps it, other members read it over TCP.

    Only the event loop of meetings uses it.
    """

    def __init__(self, address: Address, tls: Tls) -> None:
        """Listen at the address. Raises OSError if that fails."""
        family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self.values: dict[str, bytes] = {}
        sock = socket.create_server(address, family=family, backlog=STRANGERS_MAX)
        self._acceptor = Acceptor(sock, self._answer, tls)

    @property
    def refusal(self) -> str:
        """The last connection that could not begin with TLS, and why; empty if all could."""
        return self._acceptor.refusal

    async def close(self) -> None:
        """Stop listening."""
        await self._acceptor.close()

    async def _answer(self, reader: socket.socket) -> None:
        value = self.values.get(field(await hear(reader, _KEY_BYTES_MAX), "get", str))
        await say(reader, value=None if value is None else value.hex())


class Boards:
    """The boards of a manager. Each lives as long as a world of this process uses it."""

    def __init__(self, tls: Tls) -> None:
        self._tls = tls
        self._boards: dict[Address, Board] = {}
        self._uses: Counter[Address] = Counter()
        self._closing: set[asyncio.Task[None]] = set()

    def use(self, address: Address) -> OwnBoard:
        """Return a rendezvous at an address of this machine, which the caller must close."""
        self._uses[address] += 1
        return OwnBoard(self, address)

    def board(self, address: Address) -> Board:
        """Return the board, listening.

        Raises:  OSError if another process has the address; WorldError if no process can have it.
        """
        board = self._boards.get(address)
        if board is None:
            name, port = address
            try:
                board = self._boards[address] = Board(address, self._tls)
            except OSError as error:
                text = f"rank 0 can't listen at tcp://{name}:{port}: {error}"
                if error.errno == errno.EADDRINUSE:  # a rank 0 that has died keeps it for a while
                    text = f"another rank 0 or program listens at tcp://{name}:{port}"
                    raise OSError(error.errno, text) from error
                raise WorldError(
                    f"{text}; give an address of rank 0's machine, the same to all members"
                ) from error
        return board

    def release(self, address: Address) -> None:
        """End one use."""
        self._uses[address] -= 1
        if self._uses[address] == 0 and address in self._boards:
            closing = asyncio.ensure_future(self._boards.pop(address).close())
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        """Stop listening at all addresses."""
        await asyncio.gather(*self._closing, *(board.close() for board in self._boards.values()))


class OwnBoard:
    """The rendezvous at a board of this process, which is rank 0."""

    def __init__(self, boards: Boards, address: Address) -> None:
        self._boards = boards
        self._address = address

    async def set(self, key: str, value: bytes) -> None:
        """Keep a value."""
        self._boards.board(self._address).values[key] = value

    async def get(self, key: str) -> bytes | None:
        """Return the value, or None while there is none."""
        return self._boards.board(self._address).values.get(key)

    @property
    def trouble(self) -> str:
        """The last connection that could not begin with TLS, in words for an error."""
        refusal = self._boards.board(self._address).refusal
        return f" ({refusal})" if refusal else ""

    def close(self) -> None:
        """End this use of the address."""
        self._boards.release(self._address)


class DistantBoard:
    """The rendezvous at a board of another process, which is rank 0."""

    def __init__(self, address: Address, tls: TlsContext | None) -> None:
        self._address = address
        self._tls = tls
        self.trouble = ""  # why the last get has failed, in words

    async def set(self, key: str, value: bytes) -> None:
        """Raise WorldError: only rank 0 sets."""
        raise WorldError("only rank 0 sets what an address is asked for")

    async def get(self, key: str) -> bytes | None:
        """Return the value; None also while no process listens there.

        Raises:  RefusedError if the TLS of both ends does not fit.
        """
        try:
            async with asyncio.timeout(HANDSHAKE_S):
                with await connected(*self._address, self._tls) as sock:
                    await say(sock, get=key)
                    value = (await hear(sock, 2 * FRAME_BYTES_MAX)).get("value")
                    self.trouble = ""
                    return bytes.fromhex(value) if isinstance(value, str) else None
        except (OSError, RefusedError, ValueError) as error:
            if isinstance(error, RefusedError) and error.reason == "tls":
                name, port = self._address
                raise RefusedError("tls", f"tcp://{name}:{port}: {error}") from error
            name, port = self._address
            self.trouble = f" (tcp://{name}:{port}: {error or type(error).__name__})"
            return None


def parse_address(text: str) -> Address:
    """Split "tcp://ADDRESS:PORT".

    Raises:  InvalidArgumentError for any other text.
    """
    try:
        parts = urlsplit(text)
        if parts.scheme == "tcp" and parts.hostname and parts.port and not parts.path.strip("/"):
            return parts.hostname, parts.port
    except ValueError:
        pass
    raise InvalidArgumentError(
        f"rendezvous={text!r} is no address; write tcp://ADDRESS:PORT, of rank 0's machine"
    )


def own_address(meet_at: Rendezvous | str | None) -> str:
    """Return the address of this machine by which members of that rendezvous reach it.

    With an address as rendezvous it is the address of the route there. Else it is Ray's address of
    the node; without Ray it is the address of the route to the internet. Sends nothing.

    Raises:  OSError if there is no route to the address, or its name is unknown.
    """
    if isinstance(meet_at, str):
        name, port = parse_address(meet_at)
        own = _find_route(name, port)
        if name not in _UNSPECIFIED:
            return own
    if is_ray_running():
        from hoplite_ray.plugin.seams import core as seams

        if not seams.is_client():
            return seams.node_address()
    for anywhere in _ANYWHERE:
        with suppress(OSError):
            return _find_route(anywhere, 53)
    return own_addresses()[0]  # the machine has no default route


def _find_route(name: str, port: int) -> str:
    family = socket.AF_INET6 if ":" in name else socket.AF_INET  # the family that a board uses
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect((name, port))
        return str(probe.getsockname()[0])


def is_ray_running() -> bool:
    """Return True if this process is connected to Ray."""
    ray = sys.modules.get("ray")
    return ray is not None and bool(ray.is_initialized())


def find_ray_rendezvous() -> ClosedRendezvous:
    """Return the rendezvous of Ray's cluster, in a process that is connected to Ray.

    Raises:  WorldError that names the other ways, in a process that is not.
    """
    if not is_ray_running():
        raise WorldError(
            'join needs to know where members meet: give rendezvous="tcp://ADDRESS:PORT", or an '
            "object with async set and get, or call ray.init() first"
        )
    from hoplite_ray.plugin.groups.rendezvous import RayRendezvous

    return RayRendezvous()
