"""The parts of the tests of Ray Direct Transport: values, producers and readers."""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass
from typing import Any

import numpy as np
import ray

import hoplite_ray as hop
from tests.ray.raycluster import LARGE, RayCluster, eventually


def value_of(transport: str, scale: float = 1.0) -> dict[str, Any]:
    """Two arrays of what the transport carries, and something that it does not."""
    value = {"w": np.full(LARGE, scale, np.float32), "small": np.arange(3), "name": "layer"}
    if transport == "hoplite_numpy":
        return value
    import torch

    tensors = {key: torch.from_numpy(value[key]) for key in ("w", "small")}
    return {**value, **tensors, "needs_grad": torch.ones(2, requires_grad=True)}


def object_of(ref: Any) -> bytes:
    """The id in the store; Ray tells a ref's owner some time after the result is there."""
    manager = ray._private.worker.global_worker.rdt_manager

    def is_told() -> bool:
        return manager.get_rdt_metadata(ref.hex()).tensor_transport_meta is not None

    assert eventually(is_told)
    return bytes(manager.get_rdt_metadata(ref.hex()).tensor_transport_meta.object_id)


def told(value: Any) -> tuple[str, float, list[int], str]:
    """Describe what arrived; writing into it must change nothing elsewhere."""
    summed = float(value["w"].sum())
    value["w"][:] = 0
    return type(value["w"]).__name__, summed, value["small"].tolist(), value["name"]


def expected(transport: str, scale: float = 1.0) -> tuple[str, float, list[int], str]:
    kind = "ndarray" if transport == "hoplite_numpy" else "Tensor"
    return kind, LARGE * scale, [0, 1, 2], "layer"


class Produces:
    def make(self, transport: str, scale: float = 1.0) -> Any:
        return value_of(transport, scale)

    def put(self, transport: str) -> list[Any]:
        return [ray.put(value_of(transport), _tensor_transport=transport)]

    def call(self, other: Any, transport: str) -> tuple[list[Any], bytes]:
        """A ref that this actor owns, of what another one has made; and the object's id."""
        self.owned = other.make.options(tensor_transport=transport).remote(transport)
        return [self.owned], object_of(self.owned)

    def tensors_kept(self) -> int:
        store = ray._private.worker.global_worker.rdt_manager.rdt_store
        return int(store.get_num_objects())

    def pid(self) -> int:
        return os.getpid()


class Reads:
    def wait(self, event: Any) -> None:
        ray.get(event.wait.remote())

    def read(self, value: Any) -> Any:
        return told(value)

    def read_nested(self, refs: list[Any]) -> Any:
        return told(ray.get(refs[0]))

    def keep(self, refs: list[Any]) -> None:
        self.refs = refs

    def read_kept(self) -> Any:
        return told(ray.get(self.refs[0]))

    def drop(self) -> None:
        self.refs = []

    def tensors_kept(self) -> int:
        store = ray._private.worker.global_worker.rdt_manager.rdt_store
        return int(store.get_num_objects())


class ReadsAsync:
    async def read(self, value: Any) -> Any:
        return told(value)

    async def awaits(self, refs: list[Any]) -> Any:
        return told(await refs[0])

    async def gets(self, refs: list[Any]) -> Any:
        return told(await hop.get_async(refs[0]))


Producer = ray.remote(num_cpus=0, enable_tensor_transport=True)(Produces)
Reader = ray.remote(num_cpus=0)(Reads)
EnabledReader = ray.remote(num_cpus=0, enable_tensor_transport=True)(Reads)
AsyncReader = ray.remote(num_cpus=0)(ReadsAsync)
read = ray.remote(num_cpus=0)(told)


@ray.remote(num_cpus=0)
class MakesAsync:
    @ray.method(tensor_transport="hoplite_numpy")
    async def make(self, scale: float, event: Any) -> Any:
        await event.wait.remote()
        return value_of("hoplite_numpy", scale)


@ray.remote(num_cpus=0)
class Event:
    def __init__(self) -> None:
        self.event = asyncio.Event()

    async def wait(self) -> None:
        await self.event.wait()

    async def set(self) -> None:
        self.event.set()


@ray.remote(num_cpus=0, max_restarts=1, max_task_retries=1)
class DiesOnce:
    @ray.method(tensor_transport="hoplite_numpy")
    def make(self, file: str) -> Any:
        try:
            os.close(os.open(file, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return value_of("hoplite_numpy", 2.0)
        os._exit(1)

    @ray.method(tensor_transport="hoplite_numpy")
    def fails(self) -> Any:
        return {"w": np.array([object()])}

    @ray.method(tensor_transport="hoplite_numpy")
    def says(self) -> Any:
        return "nothing to carry", np.float32(1)

    def tensors_kept(self) -> int:
        return Produces.tensors_kept(self)  # type: ignore[arg-type]


@ray.remote(num_cpus=0)
def put(transport: str) -> list[Any]:
    return [ray.put(value_of(transport), _tensor_transport=transport)]


@ray.remote(num_cpus=0)
def read_after(refs: list[Any], value: Any) -> Any:
    ray.get(refs)
    return told(value)


@ray.remote(num_cpus=0)
def read_nested(refs: list[Any]) -> Any:
    return told(ray.get(refs[0]))


async def awaited(awaitable: Any) -> Any:
    return await awaitable


@dataclass
class Actors:
    """A producer on one Ray node, and readers on another."""

    producer: Any
    reader: Any
    enabled: Any
    awaiting: Any
    elsewhere: dict[str, Any]

    @classmethod
    def start(cls, cluster: RayCluster) -> Actors:
        there = cluster.on(2)
        return cls(
            Producer.options(**cluster.on(1)).remote(),
            *(kind.options(**there).remote() for kind in (Reader, EnabledReader, AsyncReader)),
            there,
        )
