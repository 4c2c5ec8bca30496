"""The weight-transfer engine against vLLM's own interface, factories, plug-ins and reloading."""

from __future__ import annotations

import os
import signal
from functools import cached_property
from types import SimpleNamespace
from typing import Any

import pytest
import ray
import torch

pytest.importorskip("vllm", reason="the extra vllm is not installed")

from vllm.distributed.weight_transfer import base
from vllm.distributed.weight_transfer.factory import (
    WeightTransferEngineFactory,
    WeightTransferTrainerFactory,
)

import hoplite_ray as hop
from hoplite_ray.integrations import vllm_plugin
from tests.integrations.interfaces import check_interface, run_fresh
from tests.ray.raycluster import RayCluster

WAIT_S = 240


def test_vllm_finds_it_by_its_entry_point_in_a_fresh_process() -> None:
    program = """
from vllm.plugins import load_general_plugins
load_general_plugins()
from vllm.distributed.weight_transfer.factory import *
engine = WeightTransferEngineFactory._registry["hoplite"]()
trainer = WeightTransferTrainerFactory._registry["hoplite"]()
print(engine.__name__, trainer.__name__)
"""
    assert run_fresh(program) == "HopliteWeightTransferEngine HopliteTrainerEngine"


def test_it_has_the_interfaces_of_engines_and_clients() -> None:
    from hoplite_ray.integrations import vllm as ours

    check_interface(ours.HopliteWeightTransferEngine, base.WeightTransferEngine)
    check_interface(ours.HopliteTrainerEngine, base.TrainerWeightTransferEngine)
    assert isinstance(ours.ElasticRayClient([]), base.VLLMWeightSyncClient)
    assert ours.HopliteTrainerInitInfo(rank=0).is_sender
    assert not ours.HopliteTrainerInitInfo(rank=1).is_sender


class Model(torch.nn.Module):
    """A model as vLLM's are: its `load_weights` takes names and tensors."""

    def __init__(self, value: int = 0) -> None:
        super().__init__()
        self.first = torch.nn.Linear(64, 500, dtype=torch.bfloat16)
        self.second = torch.nn.Linear(500, 3)
        with torch.no_grad():
            for number, each in enumerate(self.parameters()):
                each.fill_(value * 8 + number)

    def load_weights(self, weights: Any) -> set[str]:
        mine = dict(self.named_parameters())
        loaded = set()
        for name, tensor in weights:
            loader = getattr(mine[name], "weight_loader", lambda param, new: param.data.copy_(new))
            loader(mine[name], tensor)
            loaded.add(name)
        return loaded


def make_worker(model: torch.nn.Module) -> Any:
    """Make an engine as vLLM's worker does."""
    vllm_plugin.register()
    vllm_config = SimpleNamespace(
        parallel_config=None, model_config=SimpleNamespace(dtype=torch.bfloat16)
    )
    return WeightTransferEngineFactory.create_engine(
        SimpleNamespace(backend="hoplite"), vllm_config, torch.device("cpu"), model
    )


@ray.remote(num_cpus=0)
class Engine:
    """The part of vLLM's `AsyncLLM` and of its worker that weights pass through."""

    def __init__(self) -> None:
        from vllm.model_executor.model_loader.reload import record_metadata_for_reloading

        self.model = Model()
        record_metadata_for_reloading(self.model)
        self.engine = make_worker(self.model)
        self.dies = False

    def init_weight_transfer_engine(self, request: Any) -> None:
        self.engine.init_transfer_engine(self.engine.parse_init_info(request.init_info))

    def start_weight_update(self) -> None:
        self.engine.start_weight_update()

    def update_weights(self, request: Any) -> None:
        if self.dies:
            os.kill(os.getpid(), signal.SIGKILL)
        self.engine.update_weights(request.update_info)

    def finish_weight_update(self) -> None:
        self.engine.finish_weight_update()

    def die_in_the_next_update(self) -> None:
        self.dies = True

    def check(self, value: int) -> bool:
        wanted = Model(value).state_dict()
        return all(torch.equal(wanted[name], each) for name, each in self.model.named_parameters())


@ray.remote(num_cpus=0)
class Trainer:
    """A rank of a trainer whose module has the version's value."""

    def __init__(self, rank: int, client: Any, channel: str) -> None:
        from hoplite_ray.integrations.vllm import HopliteTrainerInitInfo

        vllm_plugin.register()
        self.model = Model()
        self.client = client
        self.engine = WeightTransferTrainerFactory.trainer_init(
            HopliteTrainerInitInfo(channel, rank=rank),
            client=client,
            source=base.ModuleSource(self.model),
        )

    def send(self, value: int) -> int:
        self.model.load_state_dict(Model(value).state_dict())
        self.engine.send_weights()
        return len(getattr(self.client, "handles", []))

    def add(self, handle: Any) -> None:
        self.client.add(handle)

    def end(self) -> None:
        self.engine.shutdown()


def check_all(engines: list[Any], value: int) -> None:
    assert all(ray.get([each.check.remote(value) for each in engines], timeout=WAIT_S))


def test_each_version_is_in_every_model_and_the_dead_and_the_late_cost_nothing(
    cluster: RayCluster,
) -> None:
    from hoplite_ray.integrations.vllm import ElasticRayClient

    place = [Engine.options(**cluster.on(node)) for node in range(3)]
    engines = [place[1].remote(), place[2].remote(), place[1].remote()]
    trainer = Trainer.options(**cluster.on(0)).remote(0, ElasticRayClient(engines), "elastic")
    other = Trainer.options(**cluster.on(0)).remote(1, None, "elastic")
    for value in (1, 2):
        counts = ray.get([trainer.send.remote(value), other.send.remote(value)], timeout=WAIT_S)
        assert counts[0] == 3
        check_all(engines, value)
    ray.get(engines[0].die_in_the_next_update.remote(), timeout=WAIT_S)
    assert ray.get(trainer.send.remote(3), timeout=WAIT_S) == 2, "the dead one is forgotten"
    check_all(engines[1:], 3)
    late = place[2].remote()
    ray.get(trainer.add.remote(late), timeout=WAIT_S)
    check_all([late], 3)
    assert ray.get(trainer.send.remote(4), timeout=WAIT_S) == 3
    check_all([*engines[1:], late], 4)
    ray.get(trainer.end.remote(), timeout=WAIT_S)


def test_with_vllms_own_client_the_dead_end_an_update_and_the_others_have_the_version(
    cluster: RayCluster,
) -> None:
    from vllm.distributed.weight_transfer.clients import RayVLLMWeightSyncClient

    engines = [Engine.options(**cluster.on(node)).remote() for node in (1, 2)]
    client = RayVLLMWeightSyncClient(engines)
    trainer = Trainer.options(**cluster.on(0)).remote(0, client, "own client")
    ray.get(trainer.send.remote(1), timeout=WAIT_S)
    check_all(engines, 1)
    ray.get(engines[0].die_in_the_next_update.remote(), timeout=WAIT_S)
    with pytest.raises(ray.exceptions.RayActorError):
        ray.get(trainer.send.remote(2), timeout=WAIT_S)
    ray.get(engines[1].finish_weight_update.remote(), timeout=WAIT_S)
    check_all(engines[1:], 2)
    ray.get(trainer.end.remote(), timeout=WAIT_S)


class Recorder:
    """A client that keeps what the trainer tells the engines."""

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        self.init_info = init_info

    def start_weight_update(self) -> None: ...

    def update_weights(self, update_info: Any) -> None:
        self.update_info = update_info

    def finish_weight_update(self, weight_version: str | None = None) -> None: ...


def test_a_worker_that_ray_has_not_started_joins_the_trainers_cluster(cluster: RayCluster) -> None:
    from hoplite_ray.integrations.vllm import HopliteTrainerInitInfo

    vllm_plugin.register()
    client = Recorder()
    engine = WeightTransferTrainerFactory.trainer_init(
        HopliteTrainerInitInfo("joined", rank=0), client=client, source=base.ModuleSource(Model(7))
    )
    engine.send_weights()
    program = f"""
import torch
from vllm.model_executor.model_loader.reload import record_metadata_for_reloading
from tests.integrations.test_vllm import Model, make_worker
record_metadata_for_reloading(model := Model())
worker = make_worker(model)
worker.init_transfer_engine(worker.parse_init_info({client.init_info!r}))
worker.start_weight_update()
worker.update_weights({client.update_info!r})
worker.finish_weight_update()
wanted = Model(7).state_dict()
print(all(torch.equal(wanted[name], each) for name, each in model.named_parameters()))
"""
    assert client.update_info == {"version": 1}
    assert run_fresh(program) == "True"
    engine.shutdown()


class Partial(base.WeightSource):
    """A source whose second tensor another rank owns."""

    @cached_property
    def metadata(self) -> list[base.ParamMeta]:
        return [
            base.ParamMeta("mine", torch.float32, (2,), owners=(0,)),
            base.ParamMeta("theirs", torch.float32, (2,), owners=(1,)),
        ]

    def iter_full(self) -> Any:
        yield "mine", torch.zeros(2)


def test_wrong_uses_are_named() -> None:
    from hoplite_ray.integrations.vllm import HopliteTrainerInitInfo

    vllm_plugin.register()
    make = WeightTransferTrainerFactory.trainer_init
    info = HopliteTrainerInitInfo(rank=0)
    with pytest.raises(ValueError, match="sends a WeightSource"):
        make(info, client=None)
    with pytest.raises(ValueError, match="does not own 'theirs'"):
        make(info, client=None, source=Partial())
    worker = make_worker(Model())
    with pytest.raises(ValueError, match="Invalid init_info"):
        worker.parse_init_info({"chanel": "c"})
    with pytest.raises(hop.HopliteError, match="init_transfer_engine comes before"):
        worker.update_weights({"version": 1})
