"""Every private name of Ray that the plug-in uses: which file breaks when a release moves one."""

from __future__ import annotations

import asyncio
import os
import threading
import time
import warnings
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import ray

import hoplite_ray as hop
from hoplite_ray.plugin.seams import core as seams
from hoplite_ray.plugin.seams import table
from tests.ray.raycluster import LARGE, RayCluster, eventually


def test_ray_directory_holds_the_raylets_sockets(cluster: RayCluster) -> None:
    assert (Path(seams.ray_directory()) / "sockets" / "raylet").exists()


@pytest.mark.parametrize("is_attached", [False, True])
def test_a_fork_of_a_worker_is_told(cluster: RayCluster, is_attached: bool) -> None:
    """Case 18."""

    @ray.remote(num_cpus=0)
    class Forks:
        def fork(self, refs: list[ray.ObjectRef]) -> tuple[bool, str, float]:
            if is_attached:
                hop.get(refs[0])
            read, write = os.pipe()
            if os.fork() == 0:
                try:
                    hop.get(refs[0])
                except Exception as error:
                    os.write(write, type(error).__name__.encode())
                os._exit(0)
            os.close(write)
            told = os.read(read, 100).decode()
            return seams.is_forked(), told, float(hop.get(refs[0])[0])

    told = Forks.remote().fork.remote([hop.put(np.ones(LARGE))])
    assert ray.get(told, timeout=60) == (False, "UnusableAfterForkError", 1.0)
    assert not seams.is_forked()


def test_node_address_is_one_of_rays(cluster: RayCluster) -> None:
    assert seams.node_address() in {node["NodeManagerAddress"] for node in ray.nodes()}


def test_raylet_pid_is_a_raylet_and_the_workers_own(cluster: RayCluster) -> None:
    @ray.remote
    def pids() -> tuple[int, int]:
        return seams.raylet_pid(), int(os.environ["RAY_RAYLET_PID"])

    assert b"raylet" in Path(f"/proc/{seams.raylet_pid()}/cmdline").read_bytes()
    seen = ray.get([pids.options(**cluster.on(node)).remote() for node in range(3)])
    assert all(asked == told for asked, told in seen)
    assert len({told for _, told in seen}) == 3


def test_cluster_address_and_raylets_are_known_without_joining(cluster: RayCluster) -> None:
    address = cluster.cluster.address
    assert seams.cluster_address(address) == address
    told = {each.node_id: each for each in seams.raylets(address)}
    assert {
        (each.node_id, each.address, each.hostname) for each in told.values() if each.is_alive
    } == {
        (node["NodeID"], node["NodeManagerAddress"], node["NodeManagerHostname"])
        for node in ray.nodes()
        if node["Alive"]
    }
    here = told[ray.get_runtime_context().get_node_id()]
    assert (here.directory, here.is_alive) == (seams.ray_directory(), True)


def test_nodes_that_ray_does_not_drain_are_placeable(cluster: RayCluster) -> None:
    here = ray.get_runtime_context().get_node_id()
    assert here in seams.placeable_nodes()
    assert not seams.is_draining(here)  # and one that is drained: test_leaving.py


def test_a_process_knows_its_job_and_that_it_is_no_ray_client(cluster: RayCluster) -> None:
    job = ray.get_runtime_context().get_job_id()
    assert seams.this_job().startswith(f"{job} (")
    assert not seams.is_client()  # and one that is: test_launchers.py


def test_an_actor_has_its_own_handle(cluster: RayCluster) -> None:
    @ray.remote(num_cpus=0)
    class Actor:
        def itself(self) -> bytes:
            return bytes(seams.this_actor()._actor_id.binary())

    actor = Actor.remote()
    assert ray.get(actor.itself.remote()) == actor._actor_id.binary()


def test_an_actor_knows_without_a_warning_how_often_ray_has_restarted_it(
    cluster: RayCluster,
) -> None:
    @ray.remote(num_cpus=0, max_restarts=1, max_task_retries=-1)
    class Actor:
        def __init__(self) -> None:  # as the steward asks
            warnings.simplefilter("error")
            self._restarts = seams.restarts()

        def restarts(self) -> int:
            return self._restarts

        def restarts_of_another_life(self) -> None:
            seams._worker = lambda: SimpleNamespace(worker_id=bytes(28))
            seams.restarts()

    assert seams.restarts() == 0, "a driver is no actor"
    actor = Actor.remote()
    assert ray.get(actor.restarts.remote()) == 0
    ray.kill(actor, no_restart=False)
    assert eventually(lambda: ray.get(actor.restarts.remote()) == 1)
    with pytest.raises(hop.HopliteError, match="knows another life of actor"):
        ray.get(actor.restarts_of_another_life.remote())


def test_task_id_and_attempt_name_a_task_and_return_id_its_ref(cluster: RayCluster) -> None:
    @ray.remote(max_retries=2)
    def dies_once() -> tuple[bytes | None, int]:
        if seams.attempt_number() == 0:
            os._exit(1)
        return seams.task_id(), seams.attempt_number()

    ref = dies_once.remote()
    task, attempt = ray.get(ref)
    assert seams.return_id(task) == ref.binary()
    assert attempt == 1
    assert seams.task_id() is None


def test_owner_of_a_ref_is_known_to_those_who_have_it(cluster: RayCluster) -> None:
    @ray.remote(num_cpus=0)
    class Owner:
        def refs(self) -> tuple[list[ray.ObjectRef], str]:
            return [ray.put(1)], ray.get_runtime_context().get_node_id()

    owner = Owner.options(**cluster.on(1)).remote()
    (theirs,), node_id = ray.get(owner.refs.remote())
    assert seams.owner_node_id(theirs) == node_id
    ours = ray.put(1)
    assert seams.owner_node_id(ours) is None
    assert seams.is_owned(ours)
    gone = ours.binary()
    del ours
    assert eventually(lambda: gone not in seams.known_refs())
    assert not seams.is_owned(seams.ref_of(gone))


def test_a_ref_that_only_a_pending_call_has_is_not_known(
    cluster: RayCluster, tmp_path: Path
) -> None:
    @ray.remote(num_cpus=0)
    def wait(refs: list[ray.ObjectRef]) -> None:
        while not released.exists():
            time.sleep(0.01)

    released = tmp_path / "released"
    ref = ray.put(1)
    name = ref.binary()
    pending = wait.remote([ref])
    assert name in seams.known_refs()
    del ref
    assert name not in seams.known_refs()
    released.touch()
    ray.get(pending)


def test_connection_is_that_of_this_process(cluster: RayCluster) -> None:
    connection = ray.remote(num_cpus=0)(seams.connection)
    assert seams.connection() not in (None, ray.get(connection.remote()))


def test_staying_is_in_one_session_and_a_shutdown_waits_for_it(
    cluster: RayCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = threading.Event()
    order: list[str] = []

    def end(_exiting_interpreter: bool) -> None:
        order.append("shut down")
        raise ZeroDivisionError  # before anything has been ended

    def shut_down() -> None:
        with pytest.raises(ZeroDivisionError):
            ray.shutdown()
        ended.set()

    monkeypatch.setattr(ray._private.worker, "disconnect", end)
    with seams.stay_connected(seams.connection()):
        threading.Thread(target=shut_down).start()
        assert not ended.wait(0.1)
        order.append("stayed")
    assert ended.wait(10)
    assert order == ["stayed", "shut down"]
    for left in (None, b"another"):
        with pytest.raises(hop.HopliteError, match="was shut down"), seams.stay_connected(left):
            pass


def test_a_driver_is_no_worker(cluster: RayCluster) -> None:
    assert seams.is_driver()
    assert not ray.get(ray.remote(num_cpus=0)(seams.is_driver).remote())


def test_task_id_names_the_call_in_an_async_actor(cluster: RayCluster) -> None:
    @ray.remote(num_cpus=0)
    class Several:
        async def task(self) -> bytes | None:
            await asyncio.sleep(0.05)
            return seams.task_id()

    actor = Several.remote()
    refs = [actor.task.remote() for _ in range(3)]
    assert [seams.return_id(task) for task in ray.get(refs)] == [ref.binary() for ref in refs]


class Noted:
    """Pickles as what the seams say while it is pickled and unpickled."""

    def __reduce__(self) -> tuple[object, ...]:
        return _noted, (seams.is_ray_pickling(),)


def _noted(in_ray: bool) -> tuple[bool, ray.ObjectRef | None]:
    return in_ray, seams.outer_ref()


def test_outer_ref_is_known_while_ray_unpickles(cluster: RayCluster) -> None:
    import pickle

    @ray.remote
    def see(noted: object, direct: object) -> list[object]:
        return [noted, direct]

    ref = ray.put(Noted())
    assert ray.get(ref) == (True, ref)
    assert ray.get(see.remote(ref, Noted())) == [(True, ref), (True, None)]
    assert pickle.loads(pickle.dumps(Noted())) == (False, None)


def test_out_of_scope_is_called_once_nobody_refers(cluster: RayCluster) -> None:
    gone: list[bytes] = []
    ref = ray.put(1)
    name = ref.binary()
    assert seams.add_out_of_scope_callback(ref, gone.append)
    assert name in seams.known_refs()
    assert seams.ref_of(name) == ref
    assert gone == []
    del ref
    assert eventually(lambda: gone == [name])


def test_ready_waits_for_the_end_of_a_task_and_leaves_no_ref(cluster: RayCluster) -> None:
    @ray.remote(num_cpus=0)
    class Waiter:
        async def ready(self, refs: list[ray.ObjectRef]) -> None:
            await seams.wait_ready(refs[0])

    @ray.remote
    def fails() -> None:
        raise ValueError

    waiter = Waiter.remote()
    ref = fails.remote()
    gone = threading.Event()
    seams.add_out_of_scope_callback(ref, lambda _: gone.set())
    ray.get(waiter.ready.remote([ref]))
    del ref
    assert gone.wait(15.0)


def test_memory_threshold_is_rays(cluster: RayCluster) -> None:
    assert 0.5 < seams.memory_threshold() <= 1.0


def test_key_values_keep_the_first(cluster: RayCluster) -> None:
    values = table.KeyValues(ray.get_runtime_context().gcs_address)
    assert values.read("seam") is None
    assert values.put_if_absent("seam", b"first") == b"first"
    assert values.put_if_absent("seam", b"second") == b"first"
    assert not values.add("seam", b"third")
    assert values.read("seam") == b"first"
    assert values.keys("sea") == ["seam"]
    values.remove("seam")
    assert values.keys("sea") == []


def test_key_values_are_read_together(cluster: RayCluster) -> None:
    values = table.KeyValues(ray.get_runtime_context().gcs_address)
    values.write("seam-1", b"one")
    values.write("seam-3", b"")
    assert values.read_all(["seam-3", "seam-2", "seam-1"]) == [b"", None, b"one"]
    assert values.read_all(["seam-2"]) == [None]
    for name in ("seam-1", "seam-3"):
        values.remove(name)


def test_view_store_takes_each_epoch_once(cluster: RayCluster) -> None:
    address = ray.get_runtime_context().gcs_address
    one, other = (table.RayViewStore(address, prefix="seam-view") for _ in range(2))
    assert one.read() == (0, b"")
    assert one.compare_and_set(1, b"a")
    assert not other.compare_and_set(1, b"b")
    assert other.read() == (1, b"a")
    for epoch in range(2, 20):
        assert other.compare_and_set(epoch, b"%d" % epoch)
    assert not one.compare_and_set(18, b"old")
    assert one.read() == (19, b"19")
    kept = table.KeyValues(address).keys("seam-view/")
    assert 1 < len(kept) < 19  # the newest few stay for readers that are late


def test_a_worker_is_alive_until_its_process_or_its_node_is_dead(cluster: RayCluster) -> None:
    @ray.remote(num_cpus=0)
    class Worker:
        def who(self) -> tuple[str, str]:
            return seams.this_worker(), ray.get_runtime_context().get_node_id()

    worker = Worker.remote()
    who, node = ray.get(worker.who.remote())
    assert seams.is_worker_alive(who, node)
    assert not seams.is_worker_alive(who, "0" * 56)
    ray.kill(worker)
    assert eventually(lambda: not seams.is_worker_alive(who, node))


def test_a_key_is_written_over(cluster: RayCluster) -> None:
    values = table.KeyValues(ray.get_runtime_context().gcs_address)
    values.write("written", b"once")
    values.write("written", b"twice")
    assert values.read("written") == b"twice"
    values.remove("written")


def test_a_program_that_nothing_has_submitted_has_no_runtime_env(
    cluster: RayCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert seams.submitted_runtime_env() == {}  # and one that was: test_launchers.py
    monkeypatch.setenv("RAY_JOB_CONFIG_JSON_ENV_VAR", '{"runtime_env": null, "metadata": {}}')
    assert seams.submitted_runtime_env() == {}
