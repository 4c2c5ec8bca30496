"""Objects live as long as a reference to them, whichever process made them, and no longer."""

from __future__ import annotations

import asyncio
import errno
import itertools
import os
import queue
import signal
import threading
from typing import Any

import numpy as np
import pytest
import ray

import hoplite_ray as hop
from hoplite_ray.plugin.handle import borrowing
from hoplite_ray.plugin.handle.borrowing import BorrowedArrays, register_borrow
from hoplite_ray.plugin.process.anchors import AnchorSupply
from hoplite_ray.plugin.process.attachment import attachment
from hoplite_ray.plugin.process.reaper import Reaper
from hoplite_ray.store import new_id
from tests.ray.gates import Gate
from tests.ray.lifetimes import Canary, await_end, canary
from tests.ray.raycluster import (
    ARENA_BYTES,
    LARGE,
    RayCluster,
    eventually,
    is_gone,
    not_initialized,
)


@ray.remote(num_cpus=0)
class Keeper:
    """Keeps what it is given; makes arrays and puts, and may be killed."""

    def __init__(self) -> None:
        self.kept: list[Any] = []

    def keep(self, *values: Any) -> None:
        self.kept.extend(values)

    def put(self) -> list[ray.ObjectRef]:
        self.kept.append(hop.put(np.ones(LARGE)))
        return self.kept

    def sums(self) -> list[float]:
        return [float(array.sum()) for array in hop.get(self.kept)]

    def drop(self) -> None:
        self.kept.clear()

    def array(self) -> tuple[hop.Array, bytes]:
        made = hop.array(np.ones(LARGE, np.float32))
        return made, made._object_id

    def pass_on(self, other: Any) -> None:
        ray.get(other.keep.remote(*self.kept))

    def canary(self) -> Canary:
        self.anchor, named = canary()
        return named

    def pid(self) -> int:
        return os.getpid()


def test_a_put_goes_with_its_ref(cluster: RayCluster) -> None:
    ref = hop.put(np.ones(LARGE))
    object_id = ref.binary()
    assert not is_gone(object_id)
    del ref
    assert eventually(lambda: is_gone(object_id))


def test_a_put_that_failed_leaves_nothing(cluster: RayCluster) -> None:
    owned = set(attachment().journal._owned)
    with pytest.raises(hop.StoreFullError):
        hop.put(np.ones(ARENA_BYTES, np.uint8))
    assert eventually(lambda: set(attachment().journal._owned) <= owned)


def test_the_end_of_one_object_does_not_wait_for_another_that_fails(cluster: RayCluster) -> None:
    released: list[bytes] = []

    def release(object_id: bytes) -> None:
        released.append(object_id)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    reaper = Reaper(release)
    for _ in range(2):
        reaper.watch(ray.put(b""))
    assert eventually(lambda: len(released) == 2)
    reaper.close()


def leave_ray(monkeypatch: pytest.MonkeyPatch, *threads: threading.Thread) -> list[str]:
    """From now on it is as after a ray.shutdown, for this thread, `threads` and new ones.

    Returns what then asks Ray to start again.
    """
    asked: list[str] = []
    monkeypatch.setattr(ray, "is_initialized", not_initialized(*threads))
    monkeypatch.setattr(ray, "init", lambda: asked.append("a cluster"))
    return asked


def test_what_is_queued_at_a_shutdown_is_left_to_the_steward(
    cluster: RayCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    released: list[bytes] = []
    ended = threading.Event()
    reaper = Reaper(released.append, ended.set)
    leave_ray(monkeypatch, reaper._thread)
    for _ in range(3):
        reaper._gone.put(new_id())
    assert ended.wait(10)
    assert not released


def test_after_a_shutdown_no_thread_of_ours_starts_a_cluster(
    cluster: RayCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = attachment()
    supply = AnchorSupply(here.place, lambda: here.steward)
    _ = here.steward
    asked = leave_ray(monkeypatch)
    with pytest.raises(hop.HopliteError, match="the Ray session that this belongs to was shut"):
        here._abandon(new_id())
    with monkeypatch.context() as lost:
        lost.setattr(here, "_store", None)
        with pytest.raises(hop.HopliteError, match="the Ray session that this belongs to was shut"):
            _ = here.store
    with pytest.raises(hop.HopliteError, match="was shut down in this process"):
        supply.take()
    monkeypatch.setattr(here, "_steward", (0, None))
    with pytest.raises(hop.HopliteError, match=r"after ray\.init"):
        _ = here.steward
    assert here.store.is_alive
    assert not asked


def test_a_put_stays_while_another_process_has_its_array(cluster: RayCluster) -> None:
    keeper = Keeper.options(**cluster.on(1)).remote()
    ref = hop.put(np.ones(LARGE, np.float32))
    object_id = ref.binary()
    ray.get(keeper.keep.remote(ref))
    del ref
    assert ray.get(keeper.sums.remote()) == [LARGE]
    assert not is_gone(object_id)
    ray.get(keeper.drop.remote())
    assert eventually(lambda: is_gone(object_id))


def test_an_array_outlives_its_maker_and_goes_with_its_handles(cluster: RayCluster) -> None:
    maker = Keeper.options(**cluster.on(2)).remote()
    array, object_id = ray.get(maker.array.remote())
    ray.kill(maker)
    keeper = Keeper.options(**cluster.on(1)).remote()
    ray.get(keeper.keep.remote(array))
    del array
    assert ray.get(keeper.sums.remote()) == [LARGE]
    ray.get(keeper.drop.remote())
    assert eventually(lambda: is_gone(object_id))


def test_who_is_given_an_array_is_known_to_its_steward(cluster: RayCluster) -> None:
    middle, last = (Keeper.options(**cluster.on(node)).remote() for node in (1, 2))
    array = hop.array(np.ones(LARGE, np.float32))
    object_id = array._object_id
    ray.get(middle.keep.remote(array))
    ray.get(middle.pass_on.remote(last))
    del array
    seen = ray.get(middle.canary.remote())
    os.kill(ray.get(middle.pid.remote()), signal.SIGKILL)
    await_end(seen)  # and Ray has forgotten whom it had passed the array on to
    assert ray.get(last.sums.remote()) == [LARGE]
    ray.get(last.drop.remote())
    assert eventually(lambda: is_gone(object_id))


def test_what_fails_once_does_not_end_the_asking_for_arrays(
    cluster: RayCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    rounds: queue.SimpleQueue[type[BaseException]] = queue.SimpleQueue()
    kinds = itertools.cycle([AttributeError, hop.HopliteError, SystemExit])

    def ask(self: BorrowedArrays, given: list[Any]) -> None:
        kind = next(kinds)
        rounds.put(kind)
        raise kind

    monkeypatch.setattr(BorrowedArrays, "_borrow", ask)
    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    monkeypatch.setattr(borrowing, "_current", None)
    array = hop.array(np.ones(3))
    for kind in (AttributeError, hop.HopliteError, SystemExit):
        register_borrow(array)  # one at a time: of several, some may be in the next round
        assert rounds.get(timeout=10) is kind
        thread = borrowing._current._thread
    thread.join(10)  # which SystemExit has ended
    register_borrow(array)
    assert rounds.get(timeout=10) is AttributeError


def test_an_array_of_a_worker_that_ends_after_one_call_stays(cluster: RayCluster) -> None:
    @ray.remote(num_cpus=0, max_calls=1)
    def once() -> tuple[hop.Array, int]:
        return hop.array(np.ones(LARGE, np.float32)), os.getpid()

    array, pid = ray.get(once.options(**cluster.on(1)).remote())
    assert eventually(lambda: not os.path.exists(f"/proc/{pid}"))
    assert np.asarray(array).sum() == LARGE


def test_an_argument_by_value_stays_while_its_task_runs(cluster: RayCluster) -> None:
    @ray.remote(num_cpus=0)
    def late_sum(array: hop.Array, gate: list[ray.ObjectRef]) -> float:
        ray.get(gate)
        return float(np.asarray(array).sum())

    gate = Gate.remote()
    array = hop.array(np.ones(LARGE, np.float32))
    object_id = array._object_id
    ref = late_sum.options(**cluster.on(1)).remote(array, [gate.passed.remote()])
    del array
    ray.get(gate.open.remote())
    assert ray.get(ref) == LARGE
    assert eventually(lambda: is_gone(object_id))


def test_a_reduce_holds_its_sources_until_it_commits(cluster: RayCluster) -> None:
    keeper = Keeper.options(**cluster.on(1)).remote()
    gate = Gate.remote()

    @ray.remote(num_cpus=0)
    def late(gate: list[ray.ObjectRef]) -> hop.Array:
        ray.get(gate)
        return hop.array(np.ones(LARGE, np.float32))

    array, object_id = ray.get(keeper.array.remote())
    source = ray.put(array)
    del array
    total = hop.reduce([source, late.remote([gate.passed.remote()])])
    del source
    assert not eventually(lambda: is_gone(object_id), within_s=0.5)
    ray.get(gate.open.remote())
    assert hop.get(total, timeout_s=60)[0] == 2
    target = ray.get(total)._object_id  # a restarted steward's differs from the ref's
    assert eventually(lambda: is_gone(object_id))
    assert not is_gone(target)
    del total
    assert eventually(lambda: is_gone(target))


def test_a_result_stays_when_only_a_task_still_has_it(cluster: RayCluster) -> None:
    @ray.remote(num_cpus=0)
    def late_first(value: hop.Array, gate: list[ray.ObjectRef]) -> float:
        ray.get(gate)
        return float(np.asarray(value)[0])

    gate = Gate.remote()
    total = hop.reduce([hop.put(np.ones(LARGE, np.float32)) for _ in range(2)])
    first = late_first.options(**cluster.on(2)).remote(total, [gate.passed.remote()])
    hop.wait([total], timeout_s=60)
    del total
    ray.get(gate.open.remote())
    assert ray.get(first, timeout=60) == 2


def test_a_reduce_that_nobody_waits_for_lets_its_sources_go(cluster: RayCluster) -> None:
    keeper = Keeper.remote()
    gate = Gate.remote()
    array, object_id = ray.get(keeper.array.remote())
    total = hop.reduce([ray.put(array), gate.passed.remote()])
    del array
    assert not is_gone(object_id)
    del total
    assert eventually(lambda: is_gone(object_id))


def test_a_failed_reduce_lets_its_sources_go(cluster: RayCluster) -> None:
    keeper = Keeper.remote()
    array, object_id = ray.get(keeper.array.remote())
    total = hop.reduce([ray.put(array), ray.put({"text"})])
    del array
    with pytest.raises(TypeError, match="source 1 returned set"):
        hop.get(total, timeout_s=60)
    del total
    assert eventually(lambda: is_gone(object_id))


def test_pending_reduces_survive_the_steward(cluster: RayCluster) -> None:
    gate = Gate.remote()

    @ray.remote(num_cpus=0)
    def late(gate: list[ray.ObjectRef]) -> hop.Array:
        ray.get(gate)
        return hop.array(np.ones(LARGE, np.float32))

    total = hop.reduce([hop.put(np.ones(LARGE, np.float32)), late.remote([gate.passed.remote()])])
    steward = attachment().steward
    ray.get(steward.anchors.remote(0))  # its call follows that of the reduce
    process = ray.get(steward.__ray_call__.remote(lambda self: os.getpid()))
    os.kill(process, signal.SIGKILL)
    ray.get(gate.open.remote())
    assert hop.get(total, timeout_s=60)[0] == 2


def test_delete_frees_now_and_only_what_is_there(cluster: RayCluster) -> None:
    refs = [hop.put(np.ones(LARGE)) for _ in range(3)]
    array = ray.get(refs[2])
    hop.delete(refs[0])
    hop.delete([refs[1], array])
    for ref in refs:
        with pytest.raises(hop.ObjectLostError):
            hop.get(ref, timeout_s=10)
        with pytest.raises(ray.exceptions.ObjectLostError):  # Ray's own, too
            hop.get(ref, timeout_s=10)
    with pytest.raises(ValueError, match="still pending"):
        hop.delete(Gate.remote().passed.remote())
    with pytest.raises(ValueError, match="holds no array"):
        hop.delete(ray.put(1))


def test_delete_frees_what_a_dead_process_has_put(cluster: RayCluster) -> None:
    orphans = []
    for _ in range(2):
        owner = Keeper.options(**cluster.on(1)).remote()
        orphans += ray.get(owner.put.remote())
        end = ray.get(owner.canary.remote())
        ray.kill(owner)
        await_end(end)
    for ref in orphans:
        assert hop.get(ref, timeout_s=30).sum() == LARGE
    hop.delete(orphans[0])
    asyncio.run(hop.delete_async(orphans[1]))
    for ref in orphans:
        assert eventually(lambda ref=ref: is_gone(ref.binary()))
        with pytest.raises(hop.ObjectLostError, match="has died"):
            hop.get(ref, timeout_s=30)
