"""Every kind of value along every way that Ray has for a value."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import ray

import hoplite_ray as hop
from tests.ray.raycluster import LARGE, RayCluster
from tests.ray.surface_values import KINDS, assert_same, needs_torch, value_of


@ray.remote(num_cpus=0)
class Maker:
    """Makes and reads values; one process, so that torch is imported once."""

    def make(self, kind: str, scale: int = 1) -> hop.Array:
        return hop.array(value_of(kind, scale))

    def pair(self, kind: str) -> tuple[hop.Array, hop.Array]:
        return hop.array(value_of(kind)), hop.array(value_of(kind, 2))

    def stream(self, kind: str) -> Iterator[hop.Array]:
        for scale in (1, 2, 3):
            yield hop.array(value_of(kind, scale))

    def put(self, kind: str) -> list[ray.ObjectRef]:
        self.kept = hop.put(value_of(kind))
        return [self.kept]

    def is_whole(
        self, kind: str, array: hop.Array, *, nested: dict[str, Any], keyword: hop.Array
    ) -> bool:
        several = [hop.get(array), hop.get(nested["ref"]), hop.get(keyword), hop.get(nested["a"])]
        for each in several:
            assert_same(each, value_of(kind))
        return all(isinstance(each, hop.Array) for each in (array, keyword, nested["a"]))


@ray.remote(num_cpus=0)
class AsyncMaker:
    async def make(self, kind: str) -> hop.Array:
        return await hop.array_async(value_of(kind))

    async def is_whole(self, kind: str, array: hop.Array, *, nested: list[Any]) -> bool:
        values = [await array, *await hop.get_async(nested)]
        for each in values:
            assert_same(each, value_of(kind))
        return True


@pytest.fixture(scope="module")
def maker(cluster: RayCluster) -> Any:
    return Maker.options(**cluster.on(1)).remote()


@pytest.fixture(scope="module")
def reader(cluster: RayCluster) -> Any:
    return Maker.options(**cluster.on(2)).remote()


@pytest.mark.parametrize("kind", KINDS)
def test_a_value_comes_back_from_every_way_through_ray(maker: Any, reader: Any, kind: str) -> None:
    put = hop.put(value_of(kind))
    assert_same(hop.get(put, timeout_s=60), value_of(kind))
    made = maker.make.remote(kind)
    (nested,) = ray.get(maker.put.remote(kind))
    for ref in (put, made, nested):
        assert_same(hop.get(ref, timeout_s=60), value_of(kind))
    whole = reader.is_whole.remote(
        kind, made, nested={"ref": nested, "a": ray.get(put)}, keyword=put
    )
    assert ray.get(whole, timeout=60)


@pytest.mark.parametrize("kind", KINDS)
def test_several_returns_and_streams(maker: Any, kind: str) -> None:
    first, second = maker.pair.options(num_returns=2).remote(kind)
    assert_same(hop.get([second, first]), [value_of(kind, 2), value_of(kind)])
    streamed = maker.stream.options(num_returns="streaming").remote(kind)
    for scale, ref in zip((1, 2, 3), streamed, strict=True):
        assert_same(hop.get(ref), value_of(kind, scale))


@pytest.mark.parametrize("kind", ["dict", pytest.param("state", marks=needs_torch)])
def test_async_actors_make_and_await(cluster: RayCluster, kind: str) -> None:
    actor = AsyncMaker.options(**cluster.on(0)).remote()
    made = [actor.make.remote(kind) for _ in range(3)]
    whole = actor.is_whole.remote(kind, made[0], nested=[made[1], hop.put(value_of(kind))])
    assert ray.get(whole, timeout=80)
    assert_same(hop.get(made[2]), value_of(kind))


def test_tasks_take_and_return_containers(cluster: RayCluster) -> None:
    @ray.remote(num_cpus=0)
    def doubled(parameters: hop.Array) -> hop.Array:
        return hop.array({name: 2 * parameters[name] for name in parameters})

    parameters = hop.put({"w": np.ones((3, 4)), "b": np.arange(LARGE)})
    received = hop.get(doubled.options(**cluster.on(2)).remote(parameters), timeout_s=60)
    assert received["w"].tolist() == [[2.0] * 4] * 3
    np.testing.assert_array_equal(received["b"], 2 * np.arange(LARGE))


def test_every_dtype_comes_back(cluster: RayCluster) -> None:
    names = [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]
    value = {name: np.arange(9).astype(name) for name in [*names, "float16", "bool", "<U3", ">i4"]}
    assert_same(hop.get(hop.put(value)), value)


def test_a_put_of_an_array_is_another_ref_of_the_same_object(cluster: RayCluster) -> None:
    array = hop.array(np.arange(LARGE))
    ref = hop.put(array)
    assert ray.get(ref)._object_id == array._object_id
    assert hop.array(array) is array
    del array
    assert hop.get(ref)[-1] == LARGE - 1


def test_the_twins_do_the_same_in_a_plain_program(cluster: RayCluster) -> None:
    async def program() -> None:
        ref = await hop.put_async({"w": np.arange(LARGE)})
        array = await hop.array_async(np.ones(3))
        ready, pending = await hop.wait_async([ref], timeout_s=30)
        assert (ready, pending) == ([ref], [])
        received = await hop.get_async([ref, array], timeout_s=30)
        assert received[0]["w"][-1] == LARGE - 1
        assert received[1].tolist() == [1, 1, 1]
        assert (await array).tolist() == [1, 1, 1]
        total = hop.reduce([await hop.put_async(array), await hop.put_async(np.ones(3))])
        assert (await hop.get_async(total)).tolist() == [2, 2, 2]
        again = hop.reduce([ref, ref])
        assert await hop.sources_async(again, timeout_s=30) == [ref, ref]
        await hop.delete_async([ref])
        with pytest.raises(hop.ObjectLostError):
            await hop.get_async(ref, timeout_s=30)

    asyncio.run(program())


def test_a_get_fills_memory_that_is_there(maker: Any) -> None:
    ref, array = maker.make.remote("dict"), hop.put(np.ones(4))
    wanted = value_of("dict")
    into = {
        "layers": [np.zeros(7, np.uint8), [np.zeros(3)]],
        "w": np.zeros(LARGE, np.float16),
    }
    w = into["w"]
    assert hop.get(ref, into=into, timeout_s=60) is into and into["w"] is w
    np.testing.assert_array_equal(into["w"], wanted["w"])
    np.testing.assert_array_equal(into["layers"][1][0], wanted["layers"][1][0])
    mine = np.zeros(4)
    assert asyncio.run(hop.get_async(array, into=mine, timeout_s=60)) is mine and mine.sum() == 4
    with pytest.raises(hop.InvalidArgumentError, match="`into` takes the value of one ref"):
        hop.get([array], into=[mine])


@pytest.mark.parametrize("is_async", [False, True], ids=("call", "twin"))
def test_a_container_of_arrays_becomes_one_object(
    cluster: RayCluster, maker: Any, is_async: bool
) -> None:
    """The Arrays are of another node, of this one, small, and of an `empty` that is written."""
    far = ray.get(maker.make.remote("numpy"))
    written = hop.empty(LARGE)
    written[...] = 2
    given = {"far": far, "near": [hop.array(np.arange(LARGE)), hop.array(7.5)], "new": written}
    put = asyncio.run(hop.put_async(given)) if is_async else hop.put(given)
    whole = {"far": value_of("numpy"), "near": [np.arange(LARGE), 7.5]}
    del far, given
    received = hop.get(put, timeout_s=60)
    assert np.all(received.pop("new") == 2)
    assert received["near"].pop() == whole["near"].pop()
    assert_same(received, whole)
    with pytest.raises(TypeError, match="immutable"):
        written[0] = 3


def test_arrays_in_an_argument_and_in_a_result_travel_as_handles(
    cluster: RayCluster, maker: Any
) -> None:
    @ray.remote(num_cpus=0)
    def pass_on(arrays: dict[str, hop.Array]) -> dict[str, hop.Array]:
        return arrays | {"more": hop.array(np.ones(LARGE))}

    given = {name: hop.array(np.full(LARGE, fill)) for name, fill in (("a", 1), ("b", 2))}
    back = ray.get(pass_on.options(**cluster.on(1)).remote(given), timeout=60)
    assert all(isinstance(each, hop.Array) for each in back.values())
    ids = {name: each._object_id for name, each in given.items()}
    assert {name: back[name]._object_id for name in given} == ids  # no byte was put again
    values = hop.get([*back.values()], timeout_s=60)
    assert [value[-1] for value in values] == [1, 2, 1]
