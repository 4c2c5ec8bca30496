"""P1 feeds P4 by way of P2 and of P3. P3 is killed and replaced; P1 and P4 go on with P2.

Each arrow is a world. P4, which is this process, answers each message back along its way. When a
way breaks, P1 sends the messages without an answer along the other way: no message is lost.
"""

import asyncio
import itertools
import sys

import numpy as np
from support.processes import free_address, start
from support.timeline import Timeline

from hoplite_ray import worlds

SIZE, STOP, JOIN = 10_000, -1.0, {"size": 2, "timeout_s": 60.0}  # STOP: P4's last answer


async def feed(source: str) -> None:
    numbers, returned, join = itertools.count(), [], worlds.manager().join_async

    async def along(way: str) -> None:
        answer = np.zeros(1, np.float32)
        while True:  # the replacement of a dead member joins the next epoch
            world = await join(f"P1-{way}", rank=0, rendezvous=source, **JOIN)
            try:
                while answer[0] != STOP:
                    number = returned.pop() if returned else next(numbers)
                    await world.send_async(np.full(SIZE, number, np.float32), dst=1)
                    await world.recv_async(answer, src=1)
                return await world.leave_async()
            except worlds.WorldBrokenError:
                returned.append(number)

    await asyncio.gather(along("P2"), along("P3"))


async def hand_on(way: str, source: str, sink: str) -> None:
    above = await worlds.manager().join_async(f"P1-{way}", rank=1, rendezvous=source, **JOIN)
    below = await worlds.manager().join_async(f"{way}-P4", rank=1, rendezvous=sink, **JOIN)
    message, answer = np.empty(SIZE, np.float32), np.zeros(1, np.float32)
    while answer[0] != STOP:
        await below.send_async(await above.recv_async(message, src=0), dst=0)
        await above.send_async(await below.recv_async(answer, src=0), dst=0)
    await asyncio.gather(above.leave_async(), below.leave_async())


async def main(count: int) -> int:
    timeline, source, sink, last = Timeline(), free_address(), free_address(), asyncio.Event()

    async def along(way: str) -> None:
        message, answer = np.empty(SIZE, np.float32), np.zeros(1, np.float32)
        while True:
            world = await worlds.manager().join_async(f"{way}-P4", rank=0, rendezvous=sink, **JOIN)
            timeline.mark(f"{way} has joined, epoch {world.epoch}")
            try:
                while answer[0] != STOP:
                    timeline.arrived(way, int((await world.recv_async(message, src=1))[0]))
                    answer[0] = STOP if last.is_set() else 0
                    await world.send_async(answer, dst=1)
                return await world.leave_async()
            except worlds.WorldBrokenError as error:
                timeline.mark(f"{way} has broken: {error.cause}")

    start(feed, source)
    start(hand_on, "P2", source, sink)
    third, ways = start(hand_on, "P3", source, sink), asyncio.gather(along("P2"), along("P3"))
    await asyncio.gather(*(timeline.arrivals(way, count) for way in ("P2", "P3")))
    third.kill()
    await timeline.arrivals("P2", count)
    start(hand_on, "P3", source, sink)
    await timeline.arrivals("P3", count)
    last.set()
    await ways
    return timeline.show("What P4 receives", "rhombus")


if __name__ == "__main__":
    raise SystemExit(asyncio.run(main(300 if "--toy" in sys.argv else 4000)))
