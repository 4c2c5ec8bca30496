"""A leader receives from workers, each in a world of its own: one is killed, the other goes on.

Then a new worker joins while the leader receives. With --one-world all are members of a single
world, as in an ordinary process group: then the kill ends the world for all members.
"""

import argparse
import asyncio

import numpy as np
from support.processes import free_address, start
from support.timeline import Timeline

from hoplite_ray import worlds

SIZE = 100_000  # of a message, float32


def worker(meet_at: str, name: str, rank: int, size: int) -> None:
    """Send numbered messages until the leader has left."""
    with worlds.WorldManager() as manager:
        world = manager.join(name, rank=rank, size=size, rendezvous=meet_at)
        tensor = np.zeros(SIZE, np.float32)
        try:
            while True:
                world.send(tensor, dst=0)
                tensor += 1
        except worlds.WorldBrokenError:
            return


async def receive(world: worlds.World, rank: int, source: str, timeline: Timeline) -> None:
    """Receive what one worker sends, and check that no message is missing."""
    tensor, expected = np.empty(SIZE, np.float32), 0
    try:
        while True:
            await world.recv_async(tensor, src=rank)
            assert tensor[0] == tensor[-1] == expected, "a message is missing"
            expected += 1
            timeline.arrived(source)
    except worlds.WorldBrokenError as error:
        timeline.mark(f"nothing more from {source}: {error.cause}")


async def lead(meet_at: str, phase_s: float, one_world: bool) -> None:
    timeline, tasks, processes = Timeline(), [], {}
    async with worlds.WorldManager() as manager:

        async def add(name: str, sources: list[str]) -> None:
            """Start workers, and join a world with them."""
            size = len(sources) + 1
            for rank, source in enumerate(sources, 1):
                processes[source] = start(worker, meet_at, name, rank, size)
            world = await manager.join_async(name, rank=0, size=size, rendezvous=meet_at)
            for rank, source in enumerate(sources, 1):
                timeline.mark(f"{source} has joined")
                tasks.append(asyncio.create_task(receive(world, rank, source, timeline)))

        pair = ["worker 1", "worker 2"]
        for sources in [pair] if one_world else [[each] for each in pair]:
            await add(" and ".join(sources), sources)
        await asyncio.sleep(phase_s)
        timeline.mark("worker 2 is killed")
        processes["worker 2"].kill()
        await asyncio.sleep(phase_s)
        await add("worker 3", ["worker 3"])
        await asyncio.sleep(phase_s)
        timeline.show("What the leader receives", "leader")
        for task in tasks:
            task.cancel()
    for process in processes.values():
        process.join()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--one-world", action="store_true", help="as a process group would be")
    parser.add_argument("--toy", action="store_true", help="half a second for each step")
    options = parser.parse_args()
    asyncio.run(lead(free_address(), 0.5 if options.toy else 3.0, options.one_world))
