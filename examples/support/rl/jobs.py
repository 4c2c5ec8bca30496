"""The command line of `a3c.py` and `impala.py`: actors that play, runs that learn, and kills."""

from __future__ import annotations

import argparse
import math
import os
import random
import re
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from typing import Any

import ray
from ray._private import state  # the public ray.util.state needs Ray's dashboard
from support.local_cluster import cluster_at
from support.rl.policy import Policy
from support.rl.rollouts import Environments, lacking
from support.rl.scores import Scores

import hoplite_ray as hop

KILL_EVERY_S = 5.0
MILLION = 1_000_000
STORE_BYTES = 256 << 20  # on each node, ours and Ray's, and what the weights need
COPIES = 3  # of the weights' bytes, for each actor and for the learner

Learn = Callable[[Any, Sequence[Any], Policy, Scores], None]


class Player:
    """The part that the actors of both programs share: environments, and how they are played."""

    def __init__(self, rank: int, options: argparse.Namespace) -> None:
        self.policy: Policy = options.policy
        self._rank, self._options = rank, options
        self.begin(0)

    def begin(self, seed: int) -> None:
        """Play new episodes from here on."""
        seed = seed * 1000 + self._rank
        self._environments = Environments(self._options.environments, seed=seed)
        self.play = partial(self._environments.play, self.policy, steps=self._options.steps)


def parse_options(description: str) -> argparse.Namespace:
    """Return the options, in the full size or the toy's. Ends the program if packages lack."""
    parser = argparse.ArgumentParser(description=description.split("\n")[0])
    add = parser.add_argument
    add("--plain-ray", action="store_true", help="the same over Ray's own object store as well")
    add("--kill", action="store_true", help="an actor, every 5 s, with kill -9")
    add("--toy", action="store_true", help="a few thousand frames, from which little is learnt")
    add("--seeds", type=_numbers, default=(0,), help="a run for each, as in 0,1,2 (default: 0)")
    add("--frames", type=float, default=1.0, help="of a run at most, in millions (default: 1)")
    add("--goal", type=float, default=475.0, help="mean return that ends a run (default: 475)")
    add(
        "--parameters", type=float, default=0.25, help="of the weights, in millions (default: 0.25)"
    )
    add("--actors", type=int, default=8, help="(default: 8)")
    add("--environments", type=int, default=8, help="of each actor (default: 8)")
    add("--steps", type=int, default=32, help="of each environment in a rollout (default: 32)")
    add("--nodes", type=int, default=2, help="of the Ray cluster, with the head (default: 2)")
    add("--address", help="of the head of a Ray cluster to use, ADDRESS:PORT, instead of --nodes")
    options = parser.parse_args()
    if min(options.environments, options.steps, options.nodes) < 1 or options.actors < 2:
        parser.error("at least two actors, one environment, one step and one node")
    if options.address and not re.fullmatch(r"[\w.-]+:\d+", options.address):
        parser.error(f"--address {options.address}: give ADDRESS:PORT of the head")
    if options.address and options.kill:
        parser.error("--kill: not with --address, because it kills processes of this machine")
    if packages := lacking():
        print(f"{', '.join(packages)} not installed; pip install '.[rl]' installs all")
        raise SystemExit(0 if options.toy else 1)
    if options.toy:
        print("toy sizes: they prove only that it runs")
        options.frames, options.goal, options.actors = 0.01, math.inf, min(options.actors, 4)
    options.policy = Policy(parameters=int(options.parameters * MILLION))
    return options


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(word) for word in text.split(","))


def play_runs(learn: Learn, stores: Sequence[Any], actor: Any, options: argparse.Namespace) -> int:
    """Learn with each seed over one store or both, and print how it went.

    learn:   gets a store, the actors, the policy and the scores, and returns when they are over.
    stores:  ours, and plain Ray's.
    actor:   the class of the actors, which is a `Player`.

    Returns: the program's status: 0 if all runs have reached the goal.
    """
    policy, over = options.policy, []
    store_bytes = STORE_BYTES + COPIES * (options.actors + 1) * 4 * policy.size
    with cluster_at(options.address, options.nodes, options.actors, store_bytes) as place:
        hop.init(**place, arena_bytes=store_bytes)
        actors = [actor.remote(rank, options) for rank in range(options.actors)]
        ray.get([each.__ray_ready__.remote() for each in actors])  # before the clocks start
        with killing(type_name(actor)) if options.kill else nullcontext():
            for seed in options.seeds:
                for store in stores if options.plain_ray else stores[:1]:
                    ray.get([each.begin.remote(seed) for each in actors])
                    frames = int(options.frames * MILLION)
                    scores = Scores(store.title, seed, frames, options.goal)
                    learn(store, actors, policy, scores)
                    print(scores, flush=True)
                    over.append(scores)
    if options.plain_ray:
        ours, plain = (sum(each.frames_per_s for each in over[at::2]) for at in (0, 1))
        print(f"{stores[0].title} played {ours / plain:.2f} x as many frames/s as plain Ray")
    return 0 if options.toy or all(each.has_learnt for each in over) else 1


def type_name(actor: Any) -> str:
    """Return the name of an actor's class, as Ray knows it."""
    return str(actor.__ray_metadata__.class_name)


@contextmanager
def killing(name: str) -> Iterator[None]:
    """Kill an actor's process every five seconds, as `kill -9` does. Ray starts it again."""
    over, chance = threading.Event(), random.Random(0)
    job_id = ray.get_runtime_context().get_job_id()
    killed: list[int] = []

    def run() -> None:
        while not over.wait(KILL_EVERY_S):
            alive = [each for each in state.actors().values() if each["State"] == "ALIVE"]
            mine = [each for each in alive if each["JobID"] == job_id]
            pids = [each["Pid"] for each in mine if each["ActorClassName"] == name and each["Pid"]]
            with suppress(IndexError, ProcessLookupError):  # all are being started again
                os.kill(pid := chance.choice(pids), signal.SIGKILL)
                killed.append(pid)
                print(f"  killed process {pid}", flush=True)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        print(f"{len(killed)} actors were killed with SIGKILL, and started again", flush=True)
