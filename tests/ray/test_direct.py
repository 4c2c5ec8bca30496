"""Ray Direct Transport over the store: each holder of a ref can read it, and nothing is left."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import ray

import hoplite_ray as hop
from hoplite_ray.plugin.process.attachment import attachment
from tests.ray.direct_actors import (
    Actors,
    DiesOnce,
    Event,
    MakesAsync,
    Producer,
    Produces,
    awaited,
    expected,
    object_of,
    put,
    read,
    read_after,
    read_nested,
    told,
    value_of,
)
from tests.ray.raycluster import LARGE, RayCluster, eventually, is_gone
from tests.ray.surface_values import needs_torch

TRANSPORTS = ["hoplite_numpy", pytest.param("hoplite", marks=needs_torch)]
both = pytest.mark.parametrize("transport", TRANSPORTS)


def kill(actor: Any) -> None:
    os.kill(ray.get(actor.pid.remote()), signal.SIGKILL)

    def is_dead() -> bool:
        try:
            ray.get(actor.pid.remote())
        except ray.exceptions.ActorDiedError:
            return True
        except ray.exceptions.ActorUnavailableError:
            pass  # whoever calls waits a second until Ray has heard of the death
        return False

    assert eventually(is_dead)


def made(producer: Any, transport: str, *arguments: Any) -> Any:
    return producer.make.options(tensor_transport=transport).remote(transport, *arguments)


@pytest.fixture(scope="module")
def actors(cluster: RayCluster) -> Actors:
    return Actors.start(cluster)


@pytest.fixture
def mortal(cluster: RayCluster) -> Any:
    """A producer that may be killed."""
    return Producer.options(**cluster.on(1)).remote()


@pytest.fixture(scope="module")
def restarted(cluster: RayCluster) -> Any:
    """A producer that Ray restarts once; only one test may kill it."""
    return DiesOnce.options(**cluster.on(1)).remote()


def kept(*actors: Any) -> list[int]:
    """How many tensors Ray has kept in each."""
    return ray.get([each.tensors_kept.remote() for each in actors])


READERS: dict[str, Callable[[Actors, Any], Any]] = {
    "ray.get": lambda actors, ref: told(ray.get(ref)),
    "hop.get": lambda actors, ref: told(hop.get(ref)),
    "await": lambda actors, ref: told(asyncio.run(awaited(ref))),
    "hop.get_async": lambda actors, ref: told(asyncio.run(hop.get_async(ref))),
    "a task": lambda actors, ref: ray.get(read.options(**actors.elsewhere).remote(ref)),
    "a task, by keyword": lambda actors, ref: ray.get(
        read.options(**actors.elsewhere).remote(value=ref)
    ),
    "a task, nested": lambda actors, ref: ray.get(
        read_nested.options(**actors.elsewhere).remote([ref])
    ),
    "an actor": lambda actors, ref: ray.get(actors.reader.read.remote(ref)),
    "an actor, by keyword": lambda actors, ref: ray.get(actors.reader.read.remote(value=ref)),
    "an actor, nested": lambda actors, ref: ray.get(actors.reader.read_nested.remote([ref])),
    "an enabled actor": lambda actors, ref: ray.get(actors.enabled.read.remote(ref)),
    "an enabled actor, by keyword": lambda actors, ref: ray.get(
        actors.enabled.read.remote(value=ref)
    ),
    "an async actor": lambda actors, ref: ray.get(actors.awaiting.read.remote(ref)),
    "an async actor, nested": lambda actors, ref: ray.get(actors.awaiting.awaits.remote([ref])),
    "an async actor, by get_async": lambda actors, ref: ray.get(actors.awaiting.gets.remote([ref])),
}


@both
@pytest.mark.parametrize("reader", READERS)
def test_a_result_is_read_by(actors: Actors, transport: str, reader: str) -> None:
    ref = made(actors.producer, transport)
    assert READERS[reader](actors, ref) == expected(transport)
    assert READERS["ray.get"](actors, ref) == expected(transport)  # which nobody has written to


def test_many_read_one_result_and_nothing_is_left(cluster: RayCluster, actors: Actors) -> None:
    readers = [actors.reader, actors.enabled]
    before = kept(actors.producer, *readers)
    ref = made(actors.producer, "hoplite_numpy")
    calls = [reader.read.remote(ref) for reader in readers]
    calls += [reader.read.remote(value=ref) for reader in readers]
    calls += [read.options(**cluster.on(node)).remote(ref) for node in range(3)]
    assert ray.get(calls) == [expected("hoplite_numpy")] * len(calls)
    object_id = object_of(ref)
    assert not is_gone(object_id)
    del ref
    assert eventually(lambda: is_gone(object_id))
    assert eventually(lambda: max(np.subtract(kept(actors.producer, *readers), before)) <= 0)


def test_a_result_whose_ref_is_dropped_is_there_for_who_was_given_it(actors: Actors) -> None:
    producer, busy, event = actors.producer, actors.reader, Event.remote()
    assert eventually(lambda: kept(producer) == [0])  # of earlier tests
    waits = busy.wait.remote(event)
    set_later = event.wait.remote()
    calls = [
        busy.read.remote(made(producer, "hoplite_numpy")),
        busy.read.remote(value=made(producer, "hoplite_numpy")),
        read_after.options(**actors.elsewhere).remote([set_later], made(producer, "hoplite_numpy")),
    ]
    assert eventually(lambda: kept(producer)[0] >= 2)
    ray.get(event.set.remote())
    assert ray.get(calls) == [expected("hoplite_numpy")] * 3
    ray.get(waits)
    del calls
    assert eventually(lambda: kept(producer) == [0])


@both
@pytest.mark.parametrize("where", ["driver", "task", "actor"])
def test_a_put_is_read_and_goes_with_its_ref(actors: Actors, transport: str, where: str) -> None:
    if where == "driver":
        refs = [ray.put(value_of(transport), _tensor_transport=transport)]
    elif where == "task":
        refs = ray.get(put.options(**actors.elsewhere).remote(transport))
    else:
        refs = ray.get(actors.producer.put.remote(transport))
    for reader in ("ray.get", "a task", "an actor, nested"):
        assert READERS[reader](actors, refs[0]) == expected(transport)
    object_id = object_of(refs[0])
    assert not is_gone(object_id)
    del refs
    assert eventually(lambda: is_gone(object_id))


def test_a_result_outlives_its_producer_and_still_goes_with_its_ref(
    actors: Actors, mortal: Any
) -> None:
    ref = made(mortal, "hoplite_numpy")
    ray.wait([ref])
    reader = actors.reader
    ray.get(reader.keep.remote([ref]))
    kill(mortal)
    for name in ("ray.get", "await", "a task", "an actor, nested"):
        assert READERS[name](actors, ref) == expected("hoplite_numpy")
    object_id = object_of(ref)
    del ref
    assert ray.get(reader.read_kept.remote()) == expected("hoplite_numpy")
    ray.get(reader.drop.remote())
    assert eventually(lambda: is_gone(object_id))


def test_a_result_goes_when_its_owner_dies(actors: Actors, mortal: Any) -> None:
    (ref,), object_id = ray.get(mortal.call.remote(actors.producer, "hoplite_numpy"))
    assert not is_gone(object_id)
    kill(mortal)
    assert eventually(lambda: is_gone(object_id))
    with pytest.raises(ray.exceptions.ObjectLostError):  # or OwnerDiedError, which is one
        hop.get(ref)


@pytest.mark.parametrize("reader", READERS)
def test_what_is_lost_is_said_at_once_to(actors: Actors, reader: str) -> None:
    ref = made(actors.producer, "hoplite_numpy")
    attachment().delete(object_of(ref))
    assert eventually(lambda: is_gone(object_of(ref)))
    with pytest.raises(ray.exceptions.RayError, match="was deleted"):
        READERS[reader](actors, ref)


def test_what_can_not_be_put_is_told_to_the_caller_and_kept_by_nobody(restarted: Any) -> None:
    assert eventually(lambda: kept(restarted) == [0])  # of earlier tests
    with pytest.raises(hop.InvalidArgumentError, match="dtype object"):
        ray.get(restarted.fails.remote())
    assert kept(restarted) == [0]
    kept_here = Produces().tensors_kept
    before = kept_here()
    with pytest.raises(hop.InvalidArgumentError, match="dtype object"):
        ray.put(np.array([object()]), _tensor_transport="hoplite_numpy")
    assert kept_here() <= before


def test_a_result_without_arrays_is_read_by_all(restarted: Any) -> None:
    @ray.remote(num_cpus=0)
    def same(value: Any) -> Any:
        return value

    ref = restarted.says.remote()
    said = ("nothing to carry", 1)
    assert ray.get(ref) == said
    assert ray.get(same.remote(ref)) == said
    assert asyncio.run(awaited(ref)) == said


def test_arrays_that_nobody_carries_are_pickled_as_before(cluster: RayCluster) -> None:
    ray.put(np.ones(3), _tensor_transport="hoplite_numpy")
    read_back = ray.get(ray.put(np.ones(LARGE)))
    assert not read_back.flags.writeable  # it is a view of Ray's own memory


def test_a_producer_that_dies_in_a_call_is_restarted_and_makes_it(
    cluster: RayCluster, restarted: Any
) -> None:
    ref = restarted.make.remote(f"{attachment().place.directory}/died")
    assert ray.get(read.options(**cluster.on(2)).remote(ref)) == expected("hoplite_numpy", 2.0)
    assert told(ray.get(ref)) == expected("hoplite_numpy", 2.0)


def test_several_are_fetched_at_once(actors: Actors) -> None:
    refs = [made(actors.producer, "hoplite_numpy", scale) for scale in range(20)]
    assert [each["w"][0] for each in ray.get(refs)] == list(range(20))


def test_coroutines_that_end_together_make_their_own_results(cluster: RayCluster) -> None:
    maker, event = MakesAsync.options(**cluster.on(1)).remote(), Event.remote()
    refs = [maker.make.remote(scale, event) for scale in range(8)]
    sums = [read.options(**cluster.on(2)).remote(ref) for ref in refs]
    ray.get(event.set.remote())
    assert ray.get(sums) == [expected("hoplite_numpy", scale) for scale in range(8)]


@needs_torch
def test_a_result_is_fetched_into_tensors_that_are_there(actors: Actors) -> None:
    import torch

    ref = made(actors.producer, "hoplite", 7.0)
    targets = [torch.zeros(LARGE), torch.zeros(3, dtype=torch.int64), torch.zeros(2)]
    ray.wait([ref])
    ray.experimental.set_target_for_ref(ref, targets)
    value = ray.get(ref)
    assert value["w"] is targets[0]
    assert [each.sum() for each in targets] == [7 * LARGE, 3, 2]


def test_a_fetch_is_taken_back_by_abort_and_by_its_time_limit(cluster: RayCluster) -> None:
    from hoplite_ray.plugin.direct.transport import Carried, NumpyTransport

    ref = ray.put(value_of("hoplite_numpy"), _tensor_transport="hoplite_numpy")
    transport = NumpyTransport()
    nothing = transport.get_communicator_metadata(None, None)
    later = Carried([], "cpu", object_of(ref), incarnation=(1 << 32) - 1)  # which never comes
    fetches = [transport.fetch_multiple_tensors(ref.hex(), later, nothing) for _ in range(2)]
    with pytest.raises(TimeoutError):
        transport.wait_fetch_complete(fetches[0], timeout=0.1)
    transport.abort_transport(ref.hex(), nothing)
    with pytest.raises(hop.RequestCancelledError):
        transport.wait_fetch_complete(fetches[1])
