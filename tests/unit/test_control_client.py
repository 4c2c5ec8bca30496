"""How long a control client waits for a connection, at an address that is slow or says nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing, suppress
from typing import Any

import pytest

from hoplite_ray.control.client import ControlClient, UnreachableError
from hoplite_ray.control.service.control_service import ControlService
from hoplite_ray.errors import ControlError

SECRET = b"0123456789abcdef"
LATE_S = 1.3  # gRPC gives up a connection after 1 s where it is to redial after that
LIMIT_S = 2.5


class Slow:
    """An address that takes connections at once, as the kernel does, and passes them on late.

    `behind` is where to; None: nowhere, and nothing is ever said.
    """

    def __init__(self, behind: str | None) -> None:
        self.dialled = 0
        self.tasks: list[asyncio.Task[None]] = []
        self._behind = behind

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.dialled += 1
        task = asyncio.current_task()
        assert task is not None
        self.tasks.append(task)
        with closing(writer), suppress(ConnectionError):
            if self._behind is None:
                await reader.read()  # to its end: the caller hangs up
                return
            await asyncio.sleep(LATE_S)
            address, _, port = self._behind.rpartition(":")
            answers, there = await asyncio.open_connection(address, int(port))
            with closing(there):
                await asyncio.gather(_passed(reader, there), _passed(answers, writer))


async def _passed(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):  # of a connection that has ended
        while said := await reader.read(1 << 16):
            writer.write(said)
        writer.write_eof()


@asynccontextmanager
async def slow(behind: str | None = None) -> AsyncIterator[tuple[Slow, ControlClient, str]]:
    address = Slow(behind)
    server = await asyncio.start_server(address.answer, "127.0.0.1", 0)
    calls = ControlClient(SECRET)
    try:
        yield address, calls, f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        await calls.close()
        server.close()
        await asyncio.gather(*address.tasks)  # they end when the caller has hung up
        await server.wait_closed()


def test_a_connection_has_its_callers_limit_and_the_next_call_dials_anew() -> None:
    async def walk() -> None:
        async with slow() as (address, calls, name):
            for dialled in (1, 2):
                with pytest.raises(UnreachableError, match=r"no connection within 2\.5 s") as told:
                    await calls.stats(name, timeout_s=LIMIT_S)
                assert told.value.silent_s == LIMIT_S
                assert address.dialled == dialled

    asyncio.run(walk())


def test_a_watch_that_lasts_waits_less_for_its_connection() -> None:
    async def walk() -> None:
        async with slow() as (_, calls, name):
            with pytest.raises(UnreachableError, match=r"WatchView.*no connection within 0\.5 s"):
                async for _ in calls.watch(name, 0, timeout_s=60.0, connect_s=0.5):
                    raise AssertionError("a view without members")

    asyncio.run(walk())


def test_a_node_that_greets_late_is_reached_by_its_first_connection() -> None:
    """As on busy cores, where a service needs seconds for its greeting."""
    nothing: Any = None

    async def walk() -> None:
        service = ControlService(secret=SECRET, administration=nothing)
        behind = await service.start("127.0.0.1:0")
        async with slow(behind) as (address, calls, name):
            with pytest.raises(ControlError, match="has not joined yet"):
                await calls.stats(name, timeout_s=60.0)
            assert address.dialled == 1
        await service.stop(0.0)

    asyncio.run(walk())


def test_two_callers_of_one_address_have_their_own_limits() -> None:
    async def walk() -> None:
        async with slow() as (_, calls, name):
            short, long = await asyncio.gather(
                *(calls.stats(name, timeout_s=limit_s) for limit_s in (0.3, 0.9)),
                return_exceptions=True,
            )
            assert "within 0.3 s" in str(short)
            assert "within 0.9 s" in str(long)
            await asyncio.gather(*calls._close_tasks)
            assert not calls._links

    asyncio.run(walk())
