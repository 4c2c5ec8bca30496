"""Every wait ends: by its limit, by Ctrl-C, by ray.cancel, or with the reason why it can't."""

from __future__ import annotations

import asyncio
import math
import os
import signal
import threading
from typing import Any

import numpy as np
import pytest
import ray

import hoplite_ray as hop
from tests.ray.raycluster import LARGE, RayCluster


@ray.remote(num_cpus=0)
class Never:
    async def ends(self) -> None:
        await asyncio.Event().wait()


@ray.remote(num_cpus=0)
def make_large() -> hop.Array:
    return hop.array(np.ones(LARGE))


@ray.remote(num_cpus=0)
def fail() -> None:
    raise KeyError("no such batch")


def test_a_limit_that_runs_out_names_the_object_and_its_state(cluster: RayCluster) -> None:
    actors = [Never.remote() for _ in range(5)]  # kept, because a reduce may start its steward
    pending, *others = [each.ends.remote() for each in actors]
    name = pending.hex()[:12]
    with pytest.raises(hop.GetTimeoutError, match=rf"object {name}\.\. is .* its task has not"):
        hop.get([hop.put(np.ones(3)), pending], timeout_s=0.2)
    with pytest.raises(hop.GetTimeoutError, match=r"and 2 more are .* their tasks have not"):
        hop.get([pending, *others], timeout_s=0.2)
    with pytest.raises(TimeoutError):
        hop.sources(hop.reduce([pending]), timeout_s=0.2)


@pytest.mark.parametrize("extent", [4, LARGE])
def test_a_limit_of_0_takes_what_is_here(cluster: RayCluster, extent: int) -> None:
    hop.get(hop.put(np.zeros(1)))  # this process has its node
    ref = hop.put(np.ones(extent), timeout_s=0)
    pending = Never.remote().ends.remote()
    assert hop.get(ref, timeout_s=0).sum() == extent
    assert [each.sum() for each in hop.get([ref, ref], timeout_s=0)] == [extent, extent]
    assert asyncio.run(hop.get_async(ref, timeout_s=0)).sum() == extent
    assert hop.wait([ref, pending], timeout_s=0) == ([ref], [pending])
    for refs in (pending, [ref, pending]):
        with pytest.raises(hop.GetTimeoutError, match="is not there after 0 s"):
            hop.get(refs, timeout_s=0)
        with pytest.raises(hop.GetTimeoutError, match="is not there after 0 s"):
            asyncio.run(hop.get_async(refs, timeout_s=0))
    hop.delete(ref, timeout_s=0)


@pytest.mark.parametrize("how", ["get", "get_async"])
@pytest.mark.parametrize("made", ["put", "result", "gathered"])
def test_a_loss_is_heard_behind_what_is_pending(cluster: RayCluster, how: str, made: str) -> None:
    """Case review_09."""
    lost: Any = hop.put(np.ones(LARGE))
    if made == "result":
        lost = make_large.remote()
    elif made == "gathered":
        lost = hop.gather([make_large.remote()])
    ray.wait([lost])
    hop.delete(ray.get(lost) if made == "gathered" else lost)
    refs = [Never.remote().ends.remote(), lost]
    with pytest.raises(hop.ObjectLostError):
        if how == "get":
            hop.get(refs)
        else:
            asyncio.run(hop.get_async(refs))


@pytest.mark.parametrize("how", ["get", "get_async"])
def test_a_failed_task_is_heard_behind_what_is_pending(cluster: RayCluster, how: str) -> None:
    refs = [Never.remote().ends.remote(), hop.put(np.ones(3)), fail.remote()]
    with pytest.raises(KeyError, match="no such batch"):
        if how == "get":
            hop.get(refs)
        else:
            asyncio.run(hop.get_async(refs))


def test_several_results_come_in_their_order(cluster: RayCluster) -> None:
    refs = [make_large.remote(), hop.put(np.full(3, 2.0)), ray.put("plain")]
    for values in (hop.get([*refs, refs[1]]), asyncio.run(hop.get_async([*refs, refs[1]]))):
        assert values[0].shape == (LARGE,)
        assert values[1].tolist() == values[3].tolist() == [2.0] * 3
        assert not np.shares_memory(values[1], values[3])
        assert values[2] == "plain"


def test_ctrl_c_ends_a_get(cluster: RayCluster) -> None:
    pending = Never.remote().ends.remote()
    interrupt = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        interrupt.start()
        hop.get(pending)


def test_ray_cancel_ends_a_get_inside_a_task(cluster: RayCluster) -> None:
    @ray.remote(num_cpus=0)
    class Started:
        def __init__(self) -> None:
            self.event = asyncio.Event()

        async def set(self) -> None:
            self.event.set()

        async def wait(self) -> None:
            await self.event.wait()

    @ray.remote(num_cpus=0)
    def waits(refs: list[ray.ObjectRef], started: ray.actor.ActorHandle) -> None:
        ray.get(started.set.remote())
        hop.get(refs[0])

    started = Started.remote()
    ref = waits.remote([Never.remote().ends.remote()], started)
    ray.get(started.wait.remote())
    ray.cancel(ref)
    with pytest.raises(ray.exceptions.TaskCancelledError):
        ray.get(ref, timeout=30)


def test_wait_tells_ready_from_pending(cluster: RayCluster) -> None:
    there = hop.put(np.ones(LARGE))
    pending = Never.remote().ends.remote()
    total = hop.reduce([there, pending])
    assert hop.wait([pending, there], timeout_s=30) == ([there], [pending])
    assert hop.wait([total], timeout_s=0.1) == ([], [total])
    done = hop.reduce([there, there])
    assert hop.wait([total, done], timeout_s=30) == ([done], [total])


def test_an_infinite_limit_is_none(cluster: RayCluster) -> None:
    @ray.remote(num_cpus=0)
    def make() -> hop.Array:
        return hop.array(np.ones(3), timeout_s=math.inf)

    async def awaited(ref: ray.ObjectRef) -> float:
        await hop.wait_async([ref], timeout_s=math.inf)
        return float((await hop.get_async(ref, timeout_s=math.inf)).sum())

    assert hop.get([make.remote()], timeout_s=math.inf)[0].sum() == 3
    assert asyncio.run(awaited(make.remote())) == 3
    ref = hop.put(np.ones(3), timeout_s=math.inf)
    assert hop.wait([ref], timeout_s=math.inf) == ([ref], [])


def test_errors_of_tasks_come_as_from_ray(cluster: RayCluster) -> None:
    @ray.remote(num_cpus=0)
    def fails() -> None:
        raise KeyError("lost key")

    with pytest.raises(KeyError, match="lost key"):
        hop.get(fails.remote())
    with pytest.raises(ray.exceptions.RayTaskError):
        hop.get(fails.remote())


def test_what_is_no_array_comes_as_from_ray(cluster: RayCluster) -> None:
    assert hop.get(ray.put({"a": 1})) == {"a": 1}
    assert hop.get([]) == []


def test_bad_input_is_named(cluster: RayCluster) -> None:
    with pytest.raises(TypeError, match="get takes refs and Arrays, not int"):
        hop.get([1])  # type: ignore[list-item]
    with pytest.raises(ValueError, match=r"value\[1\] is set"):
        hop.put([1, {2}])
    with pytest.raises(ValueError, match="holds Python objects"):
        hop.array(np.array([object()]))


def test_an_object_larger_than_the_arena_is_refused(cluster: RayCluster) -> None:
    with pytest.raises(hop.StoreFullError):
        hop.put(np.zeros(1 << 28, np.uint8), timeout_s=10)


def test_consumers_of_a_pending_reduce_never_starve_its_producers(cluster: RayCluster) -> None:
    two_cpus = {"num_cpus": 1, "resources": {"n1": 0.001}}  # node 1 has two

    @ray.remote(max_retries=3, **two_cpus)
    def dies_once(value: float) -> hop.Array:
        from hoplite_ray.plugin.seams import core as seams

        if seams.attempt_number() == 0:
            os._exit(1)
        return hop.array(np.full(LARGE, value, np.float32))

    @ray.remote(**two_cpus)
    def first(refs: list[ray.ObjectRef]) -> float:
        return float(hop.get(refs[0])[0])

    producers = [dies_once.remote(index) for index in range(4)]
    total = hop.reduce(producers)
    consumers = [first.remote([total]) for _ in range(4)]
    assert ray.get(consumers, timeout=80) == [6, 6, 6, 6]
