"""Where members of a world find rank 0: any object with two coroutines, or an address.

Only joining needs it. Rank 0 sets one record for a world's name, the others get it.
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
from hoplite_ray.worlds.introductions import (
    FRAME_BYTES_MAX,
    HANDSHAKE_S,
    STRANGERS_MAX,
    Acceptor,
    RefusedError,
    Tls,
    connected,
    field,
    hear,
    say,
)

_KEY_BYTES_MAX = 8192  # of a name of 200 characters, each of which JSON may write as twelve

Address = tuple[str, int]

_UNSPECIFIED = ("0.0.0.0", "::")
_ANYWHERE = ("8.8.8.8", "2001:4860:4860::8888")  # as Ray finds a node's address


class Rendezvous(Protocol):
    """A table of bytes that all members reach; the last value set for a key stands."""

    async def set(self, key: str, value: bytes) -> None:
        """Keep a value."""

    async def get(self, key: str) -> bytes | None:
        """Return the value, or None while there is none."""


class ClosedRendezvous(Rendezvous, Protocol):
    """One that a manager closes: with the world of its rank 0, or when the join has failed."""

    def close(self) -> None:
        """Give up what was set by it; waits for nothing."""


class Elsewhere:
    """A user's rendezvous, in the event loop that it belongs to."""

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
    """The table of an address, kept by rank 0 and read over TCP. Of one event loop."""

    def __init__(self, address: Address, tls: Tls) -> None:
        """Raises OSError if the address can't be listened at."""
        family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self.values: dict[str, bytes] = {}
        sock = socket.create_server(address, family=family, backlog=STRANGERS_MAX)
        self._acceptor = Acceptor(sock, self._answer, tls)

    @property
    def refusal(self) -> str:
        """Which connection could not begin with TLS, and why; empty while all could."""
        return self._acceptor.refusal

    async def close(self) -> None:
        """Stop listening."""
        await self._acceptor.close()

    async def _answer(self, reader: socket.socket) -> None:
        value = self.values.get(field(await hear(reader, _KEY_BYTES_MAX), "get", str))
        await say(reader, value=None if value is None else value.hex())


class Boards:
    """The boards of a manager, each as long as somebody uses it."""

    def __init__(self, tls: Tls) -> None:
        self._tls = tls
        self._boards: dict[Address, Board] = {}
        self._uses: Counter[Address] = Counter()
        self._closing: set[asyncio.Task[None]] = set()

    def use(self, address: Address) -> OwnBoard:
        """Return a rendezvous at an address of this machine; it is to be released."""
        self._uses[address] += 1
        return OwnBoard(self, address)

    def board(self, address: Address) -> Board:
        """Return the board, listening.

        Raises:  OSError if another process still has the address; WorldError if nobody can.
        """
        board = self._boards.get(address)
        if board is None:
            name, port = address
            try:
                board = self._boards[address] = Board(address, self._tls)
            except OSError as error:
                text = f"rank 0 can't listen at tcp://{name}:{port}: {error}"
                if error.errno == errno.EADDRINUSE:  # a rank 0 that dies has it for a while
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
        """Stop listening anywhere."""
        await asyncio.gather(*self._closing, *(board.close() for board in self._boards.values()))


class OwnBoard:
    """A rendezvous that this process keeps, as rank 0."""

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
        """Of the last connection that could not begin with TLS, in words."""
        refusal = self._boards.board(self._address).refusal
        return f" ({refusal})" if refusal else ""

    def close(self) -> None:
        """End this use of the address."""
        self._boards.release(self._address)


class DistantBoard:
    """A rendezvous that rank 0 keeps, in another process."""

    def __init__(self, address: Address, tls: TlsContext | None) -> None:
        self._address = address
        self._tls = tls
        self.trouble = ""  # of the last get, in words

    async def set(self, key: str, value: bytes) -> None:
        """Only rank 0 does."""
        raise WorldError("only rank 0 sets what an address is asked for")

    async def get(self, key: str) -> bytes | None:
        """Return the value; None also while nobody listens there.

        Raises:  RefusedError if the listener has no TLS of use.
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


def parsed_address(text: str) -> Address:
    """Split "tcp://ADDRESS:PORT".

    Raises:  InvalidArgumentError if it is none.
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
    """Return the address of this machine by which members that meet there reach it. Sends nothing.

    That is the one of the way to an address, and where none is known Ray's own of the node, or
    the one of the way to the internet.

    Raises:  OSError if there is no way to the address, or its name is unknown.
    """
    if isinstance(meet_at, str):
        name, port = parsed_address(meet_at)
        own = _way_to(name, port)
        if name not in _UNSPECIFIED:
            return own
    if ray_runs():
        from hoplite_ray.plugin.seams import core as seams

        if not seams.is_client():
            return seams.node_address()
    for anywhere in _ANYWHERE:
        with suppress(OSError):
            return _way_to(anywhere, 53)
    return own_addresses()[0]  # a machine without a default route


def _way_to(name: str, port: int) -> str:
    family = socket.AF_INET6 if ":" in name else socket.AF_INET  # as of a board
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect((name, port))
        return str(probe.getsockname()[0])


def ray_runs() -> bool:
    """Tell whether this process is connected to Ray."""
    ray = sys.modules.get("ray")
    return ray is not None and bool(ray.is_initialized())


def rays() -> ClosedRendezvous:
    """Return Ray's, in a process that is connected to Ray.

    Raises:  WorldError naming the other ways where Ray is not there.
    """
    if not ray_runs():
        raise WorldError(
            'join needs to know where members meet: give rendezvous="tcp://ADDRESS:PORT", or an '
            "object with async set and get, or call ray.init() first"
        )
    from hoplite_ray.plugin.groups.rendezvous import RayRendezvous

    return RayRendezvous()
