"""The checkpoint engine against verl's own interface, registry, worker and manager."""

from __future__ import annotations

import asyncio
import inspect
import os
import signal
from types import SimpleNamespace
from typing import Any

import pytest
import ray

pytest.importorskip("verl", reason="the extra verl is not installed")

from verl.checkpoint_engine.base import (
    CheckpointEngine,
    CheckpointEngineManager,
    CheckpointEngineRegistry,
    CheckpointEngineWorker,
)
from verl.utils.import_utils import import_external_libs
from verl.workers.config import CheckpointEngineConfig

import hoplite_ray as hop
from tests.integrations.interfaces import (
    check_interface,
    check_tensors,
    make_tensors,
    run_fresh,
)
from tests.ray.raycluster import RayCluster, free_port

WAIT_S = 240
MODULE = "hoplite_ray.integrations.verl"

import_external_libs(MODULE)  # as each process of verl does by its configuration


def test_the_registry_finds_it_by_the_name_of_its_module() -> None:
    program = f"""
from verl.checkpoint_engine.base import CheckpointEngineRegistry
from verl.utils.import_utils import import_external_libs
import_external_libs({MODULE!r})
print(type(CheckpointEngineRegistry.new("hoplite", bucket_size=1 << 20)).__module__)
"""
    assert run_fresh(program) == MODULE


def test_it_has_the_interface_of_a_checkpoint_engine() -> None:
    engine = CheckpointEngineRegistry.get("hoplite")
    check_interface(engine, CheckpointEngine)
    assert engine.wire_format == "named_tensors"
    given = {"channel": "c", "namespace": "n", "keep": 2, "timeout_s": 5.0}
    inspect.signature(engine).bind(is_master=True, bucket_size=1 << 20, **given)  # an actor
    inspect.signature(engine).bind(bucket_size=1 << 20, **given)  # a rollout


@ray.remote(num_cpus=0)
class Rank:
    """A process of verl with the engine, as an actor's or a rollout's worker has it."""

    def __init__(self, **options: Any) -> None:
        import_external_libs(MODULE)
        self.engine = CheckpointEngineRegistry.new("hoplite", bucket_size=1 << 20, **options)

    async def call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        return getattr(self.engine, method)(*args, **kwargs)

    async def send(self, version: int, more: int = 0) -> int:
        """Send, and return how many tensors the generator was asked for."""
        read = []

        def weights() -> Any:
            for name, tensor in make_tensors(version, more):
                read.append(name)
                yield name, tensor

        await self.engine.send_weights(weights(), global_steps=version)
        return len(read)

    async def receive(self, version: int, more: int = 0) -> int:
        weights = self.engine.receive_weights(global_steps=version)
        received = {name: tensor async for name, tensor in weights}
        check_tensors(received, version, more)
        return len(received)

    async def die_while_it_receives(self) -> None:
        async for _ in self.engine.receive_weights():
            os.kill(os.getpid(), signal.SIGKILL)


def meet(actors: list[Any], rollouts: list[Any]) -> None:
    """Do what verl's manager does before each synchronisation."""
    metadata = ray.get([each.call.remote("prepare") for each in actors + rollouts], timeout=WAIT_S)
    engine = CheckpointEngineRegistry.get("hoplite")
    for ranks, told in zip(
        (actors, rollouts),
        engine.build_topology(len(actors), len(rollouts), metadata),
        strict=True,
    ):
        assert all(len(values) == len(ranks) for values in told.values())
        calls = [
            each.call.remote("init_process_group", **{key: told[key][at] for key in told})
            for at, each in enumerate(ranks)
        ]
        ray.get(calls, timeout=WAIT_S)


def finalize(ranks: list[Any]) -> None:
    ray.get([each.call.remote("finalize") for each in ranks], timeout=WAIT_S)


def test_each_synchronisation_brings_its_own_weights(cluster: RayCluster) -> None:
    place = [Rank.options(**cluster.on(node)) for node in range(3)]
    actors = [place[0].remote(is_master=True, channel="synced"), place[0].remote(channel="synced")]
    rollouts = [place[1].remote(), place[2].remote()]
    for version, more in ((1, 0), (2, 0), (3, 2), (4, 2), (5, 0)):  # other layouts in between
        meet(actors, rollouts)
        receiving = [each.receive.remote(version, more) for each in rollouts]  # they wait
        sending = [each.send.remote(version, more) for each in actors]
        counts = ray.get(sending + receiving, timeout=WAIT_S)
        assert counts == [5 + more] * 4, "each rank reads its generator to the end"
        finalize(actors + rollouts)
    late = place[1].remote()  # a rollout that joins reads the newest weights only
    meet(actors, [late])
    receiving = late.receive.remote(6)
    ray.get([each.send.remote(6) for each in actors], timeout=WAIT_S)
    assert ray.get(receiving, timeout=WAIT_S) == 5
    newest = hop.latest("synced", timeout_s=WAIT_S).value
    assert newest["step"] == 6
    check_tensors(newest["tensors"], 6)
    hop.unpublish("synced", timeout_s=WAIT_S)


def test_a_rollout_that_dies_costs_the_others_nothing(cluster: RayCluster) -> None:
    place = [Rank.options(**cluster.on(node)) for node in range(3)]
    actors = [place[0].remote(is_master=True, channel="deaths")]
    rollouts = [place[1].remote(), place[2].remote(), place[1].remote()]
    meet(actors, rollouts)
    dying = rollouts[0].die_while_it_receives.remote()
    receiving = [each.receive.remote(1) for each in rollouts[1:]]
    ray.get(actors[0].send.remote(1), timeout=WAIT_S)
    assert ray.get(receiving, timeout=WAIT_S) == [5, 5]
    with pytest.raises(ray.exceptions.RayActorError):
        ray.get(dying, timeout=WAIT_S)
    with pytest.raises(ray.exceptions.RayActorError):  # as verl's manager does with all ranks
        meet(actors, rollouts)
    meet(actors, rollouts[1:])
    receiving = [each.receive.remote(2) for each in rollouts[1:]]
    ray.get(actors[0].send.remote(2), timeout=WAIT_S)
    assert ray.get(receiving, timeout=WAIT_S) == [5, 5]
    hop.unpublish("deaths", timeout_s=WAIT_S)


def test_a_master_that_was_restarted_is_heard_and_its_old_weights_are_not(
    cluster: RayCluster,
) -> None:
    place = [Rank.options(**cluster.on(node)) for node in range(2)]
    rollout = place[1].remote()
    for version in (1, 2):
        master = place[0].remote(is_master=True, channel="restarted")
        meet([master], [rollout])
        receiving = rollout.receive.remote(version)
        ray.get(master.send.remote(version), timeout=WAIT_S)
        assert ray.get(receiving, timeout=WAIT_S) == 5
        ray.kill(master)
    hop.unpublish("restarted", timeout_s=WAIT_S)


class Adapter:
    """verl's end of an inference engine, which checks what it gets."""

    replica_rank = 0
    is_leader_rank = True

    async def update_weights(self, weights: Any, global_steps: int, wire_format: str) -> None:
        assert wire_format == "named_tensors"
        check_tensors({name: tensor async for name, tensor in weights}, global_steps)


class Replica:
    """A replica of one worker: verl's own, with the engine of its configuration."""

    def __init__(self, config: Any, place: dict[str, Any]) -> None:
        alone = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
        variables = {**alone, "MASTER_PORT": str(free_port())}
        rollout = SimpleNamespace(name="vllm", mode="async", checkpoint_engine=config)
        make = ray.remote(CheckpointEngineWorker).options(
            runtime_env={"env_vars": variables}, **place
        )
        self.workers = [make.remote(rollout, None, server_adapter=Adapter())]

    async def abort_all_requests(self, reject_request: bool = False) -> None: ...
    async def release_kv_cache(self) -> None: ...
    async def resume_kv_cache(self) -> None: ...
    async def resume_generation(self) -> None: ...


class Actors:
    """The worker group of the actors, as far as the manager knows it."""

    def __init__(self, ranks: list[Any]) -> None:
        self._ranks = ranks
        self.world_size = len(ranks)

    def execute_checkpoint_engine(self, method: list[str], **told: list[Any]) -> list[Any]:
        return [
            rank.call.remote(method[at], **{key: values[at] for key, values in told.items()})
            for at, rank in enumerate(self._ranks)
        ]

    def update_weights(self, global_steps: int, mode: str) -> list[Any]:
        return [rank.send.remote(global_steps) for rank in self._ranks]


def test_verls_manager_raises_for_a_dead_replica_until_that_is_removed(
    cluster: RayCluster,
) -> None:
    config = CheckpointEngineConfig(
        backend="hoplite",
        custom_backend_module=MODULE,
        engine_kwargs={"hoplite": {"channel": "managed", "timeout_s": WAIT_S}},
    )
    rank = Rank.options(**cluster.on(0))
    given = {"timeout_s": WAIT_S, "channel": "managed"}
    actors = Actors([rank.remote(is_master=True, **given), rank.remote(**given)])
    replicas = [Replica(config, cluster.on(node)) for node in (1, 2)]
    manager = CheckpointEngineManager(config, actors, list(replicas))
    for step in (1, 2):
        assert manager.update_weights(global_steps=step) == {}
    ray.kill(replicas[0].workers[0])
    with pytest.raises(ray.exceptions.RayActorError):
        manager.update_weights(global_steps=3)
    manager.remove_replicas(replicas[:1])
    manager.update_weights(global_steps=4)
    manager.add_replicas([Replica(config, cluster.on(1))])
    manager.update_weights(global_steps=5)
    assert hop.latest("managed", timeout_s=WAIT_S).value["step"] == 5
    hop.unpublish("managed", timeout_s=WAIT_S)


def test_wrong_uses_are_named() -> None:
    engine = CheckpointEngineRegistry.new("hoplite", bucket_size=1, is_master=True)
    with pytest.raises(hop.InvalidArgumentError, match="the first actor is no master"):
        engine.build_topology(1, 1, [{}, {}])
    with pytest.raises(hop.HopliteError, match="no synchronisation is under way"):
        asyncio.run(engine.send_weights(make_tensors(1)))
