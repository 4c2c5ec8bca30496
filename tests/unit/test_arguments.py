"""What users may pass as a limit, and what an await of very many refs costs, without Ray."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest
import ray

import hoplite_ray as hop
from hoplite_ray.errors import WrongTypeError
from hoplite_ray.plugin.handle.array import Array
from hoplite_ray.plugin.seams import core as seams
from hoplite_ray.plugin.surface import arguments, awaiting
from hoplite_ray.plugin.surface.arguments import source_refs
from hoplite_ray.values.layout import Layout


class Ref:
    """Counts how often it is compared."""

    compared = 0

    def __eq__(self, other: object) -> bool:
        Ref.compared += 1
        return self is other

    __hash__ = object.__hash__


@pytest.fixture
def refs_put(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What is put as Ray's own objects in this process."""
    put: list[Any] = []

    def as_ref(value: Any) -> ray.ObjectRef:
        put.append(value)
        return ray.ObjectRef(bytes([len(put)]) * 28, skip_adding_local_ref=True)

    monkeypatch.setattr(ray, "put", as_ref)
    monkeypatch.setattr(arguments, "need_ray", lambda: None)
    return put


def handle() -> Array:
    return Array(bytes(28), 1, Layout.of(np.zeros(3)), None)


def test_sources_are_refs_and_arrays_mixed(refs_put: list[Any]) -> None:
    ref = ray.ObjectRef(b"r" * 28, skip_adding_local_ref=True)
    array = handle()
    sources = source_refs([array, ref], "reduce")
    assert sources == [array._as_ref(), ref]
    assert source_refs((ref, array, array), "gather") == [ref, array._as_ref(), array._as_ref()]
    assert len(refs_put) == 1 and refs_put[0] is array


def test_an_array_has_one_ref(refs_put: list[Any]) -> None:
    array = handle()
    assert hop.put(array) == array._as_ref() == hop.put(array, timeout_s=1)
    assert hop.put(handle()) != array._as_ref()


def test_a_source_that_is_neither_makes_no_ref(refs_put: list[Any]) -> None:
    with pytest.raises(WrongTypeError, match="source 1 is int; gather takes refs and Arrays"):
        source_refs([handle(), 1], "gather")  # type: ignore[list-item]
    assert refs_put == []


def test_a_wait_for_many_looks_at_each_once(monkeypatch: pytest.MonkeyPatch) -> None:
    refs: list[Any] = [Ref() for _ in range(200)]
    ends = {ref: asyncio.Event() for ref in refs}
    waits: list[int] = []
    real_wait = asyncio.wait

    async def ready(ref: Any) -> None:
        await ends[ref].wait()

    async def counted(futures: Any, **options: Any) -> Any:
        waits.append(len(list(futures)))
        return await real_wait(futures, **options)

    async def program() -> tuple[list[Any], list[Any]]:
        waiting = asyncio.create_task(awaiting.wait_async(refs, num_returns=100, timeout_s=15))
        for ref in refs[:100]:
            ends[ref].set()
            for _ in range(4):
                await asyncio.sleep(0)
        return await waiting

    monkeypatch.setattr(seams, "wait_ready", ready)
    monkeypatch.setattr(awaiting, "wait", lambda refs, **limits: ([], refs))
    monkeypatch.setattr(asyncio, "wait", counted)
    ready_ones, pending = asyncio.run(program())
    assert [each is ref for each, ref in zip(ready_ones + pending, refs, strict=True)] == [
        True
    ] * 200
    assert len(ready_ones) == 100
    assert sum(waits) <= len(refs)
    assert Ref.compared <= len(refs)


def test_a_wait_for_many_ends_at_its_limit_and_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ended: list[str] = []

    async def ready(ref: str) -> None:
        try:
            await asyncio.sleep(0 if ref == "there" else 1000)
        finally:
            ended.append(ref)

    monkeypatch.setattr(seams, "wait_ready", ready)
    monkeypatch.setattr(awaiting, "wait", lambda refs, **limits: ([], refs))

    async def program() -> Any:
        refs: Any = ["first", "there", "last"]
        found = await awaiting.wait_async(refs, num_returns=2, timeout_s=0.05)
        await asyncio.sleep(0)
        return found

    assert asyncio.run(program()) == (["there"], ["first", "last"])
    assert sorted(ended) == ["first", "last", "there"]


def test_the_first_failure_ends_the_other_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[str] = []

    async def value(ref: str, *_: Any) -> None:
        try:
            await asyncio.sleep(0 if ref == "bad" else 1000)
            raise KeyError(ref)
        finally:
            ended.append(ref)

    monkeypatch.setattr(awaiting, "_ray_value", value)
    monkeypatch.setattr(awaiting, "need_ray", lambda: None)
    monkeypatch.setattr(awaiting, "find_unfinished", lambda refs: refs)

    async def program() -> None:
        refs: Any = ["first", "bad", "last"]
        with pytest.raises(KeyError, match="bad"):
            await awaiting._ray_values(refs, None, None)
        assert sorted(ended) == ["bad", "first", "last"]

    asyncio.run(program())
