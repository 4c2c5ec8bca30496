"""Streams of events: `for` in threads, `async for` in event loops."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from hoplite_ray.errors import InvalidArgumentError, WorldError, WorldTimeoutError
from hoplite_ray.worlds import EventKind, EventStream, WorldEvent, WorldManager
from tests.unit.test_worlds_fake import crew, in_a_loop


def event(rank: int) -> WorldEvent:
    return WorldEvent(EventKind.SUSPECT, "w", 1, rank, "", "", 0)


def ranks(events: Any) -> list[int]:
    return [each.rank for each in events]


def test_a_thread_gets_events_as_they_come_until_the_end() -> None:
    stream, seen = EventStream(), list[int]()
    reads = threading.Thread(target=lambda: seen.extend(ranks(stream)))
    reads.start()
    for rank in range(3):
        stream.tell(event(rank))
    stream.tell(None)
    reads.join(10.0)
    assert seen == [0, 1, 2]
    stream.tell(event(3))
    assert list(stream) == [], "nothing comes after the end"


@in_a_loop
async def test_a_loop_gets_the_events_of_another_thread() -> None:
    stream = EventStream()
    reads = asyncio.create_task(stream.next_async(timeout_s=30.0))
    await asyncio.sleep(0)
    tells = threading.Thread(target=lambda: [stream.tell(event(7)), stream.tell(None)])
    tells.start()
    first = await reads
    assert first is not None and first.rank == 7
    assert [each async for each in stream] == []
    tells.join()


@in_a_loop
async def test_a_wait_that_is_cancelled_or_too_short_loses_nothing_and_leaves_nothing() -> None:
    stream = EventStream()
    for _ in range(3):
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(stream), 0.001)
        with pytest.raises(WorldTimeoutError, match=r"no event has come within 0\.001 s"):
            stream.next(timeout_s=0.001)
    assert not stream._waiting
    stream.tell(event(1))
    assert (await anext(stream)).rank == 1
    with pytest.raises(InvalidArgumentError, match="timeout_s is -1; it takes 0 or more seconds"):
        await stream.next_async(timeout_s=-1)


def test_each_event_goes_to_one_of_those_that_wait() -> None:
    stream, seen, lock = EventStream(), list[int](), threading.Lock()

    def read() -> None:
        for each in stream:
            with lock:
                seen.append(each.rank)

    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    for rank in range(100):
        stream.tell(event(rank))
    stream.tell(None)
    for reader in readers:
        reader.join(10.0)
    assert sorted(seen) == list(range(100))


def test_a_stream_that_is_closed_is_at_its_end() -> None:
    stream = EventStream()
    stream.tell(event(1))
    stream.close()
    assert list(stream) == [] and stream.next() is None


def test_a_manager_gives_a_stream_without_an_event_loop() -> None:
    manager = WorldManager()
    events = manager.events()
    with pytest.raises(WorldTimeoutError):
        events.next(timeout_s=0)
    manager.close()
    with pytest.raises(WorldError, match="was closed"):
        manager.events()


@in_a_loop
async def test_nothing_of_a_stream_is_bound_to_the_loop_that_made_it() -> None:
    stream = EventStream()

    async def read() -> WorldEvent:
        return await anext(stream)

    reads = asyncio.create_task(asyncio.to_thread(asyncio.run, read()))
    async with crew(1):
        stream.tell(event(5))
        assert (await reads).rank == 5
