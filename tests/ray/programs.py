"""Forty-odd programs as users write them, each for plain Ray and for this package alike.

A program gets one of two libraries, `Plain` or `Hoplite`, and returns what it has computed. Arrays
go by `lib.put` and `lib.array`; all the rest is Ray's own API.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import ray
from ray.util import ActorPool

import hoplite_ray as hop

Program = Callable[[Any, Path], Any]
Floats = npt.NDArray[np.float32]

SIZE = 60_000  # float32: 240 KB, which no library sends within a message


class Plain:
    """Ray's own object store."""

    put = staticmethod(ray.put)
    get = staticmethod(ray.get)
    wait = staticmethod(ray.wait)

    @staticmethod
    def array(value: Any) -> Any:
        return value

    @staticmethod
    async def get_async(ref: Any) -> Any:
        return await ref

    @staticmethod
    def reduce(refs: Sequence[Any], op: str = "sum") -> Any:
        return _combined.remote(op, *refs)

    @staticmethod
    def gather(refs: Sequence[Any]) -> Any:
        return _listed.remote(*refs)


class Hoplite:
    """This package."""

    put = staticmethod(hop.put)
    get = staticmethod(hop.get)
    wait = staticmethod(hop.wait)
    array = staticmethod(hop.array)
    get_async = staticmethod(hop.get_async)
    reduce = staticmethod(hop.reduce)
    gather = staticmethod(hop.gather)


PROGRAMS: dict[str, Program] = {}


def program(run: Program) -> Program:
    """Collect a program by its name."""
    PROGRAMS[run.__name__] = run
    return run


def numbers(seed: int, size: int = SIZE) -> Floats:
    """Whole numbers, whose sums are exact in any order."""
    return np.random.default_rng(seed).integers(0, 1000, size).astype(np.float32)


@ray.remote(num_cpus=0)
def _combined(op: str, *arrays: Any) -> Any:
    return {"sum": np.sum, "max": np.max, "min": np.min}[op](np.stack(arrays), axis=0)


@ray.remote(num_cpus=0)
def _listed(*arrays: Any) -> list[Any]:
    return list(arrays)


@ray.remote(num_cpus=0)
def make(lib: Any, seed: int) -> Any:
    return lib.array(numbers(seed))


@ray.remote(num_cpus=0)
def doubled(lib: Any, array: Any) -> Any:
    return lib.array(np.asarray(array) * 2)


@ray.remote(num_cpus=0)
def added(lib: Any, *arrays: Any) -> Any:
    return lib.array(np.sum([np.asarray(array) for array in arrays], axis=0))


@ray.remote(num_cpus=0)
def total(array: Any) -> float:
    return float(np.asarray(array).sum())


@ray.remote(num_cpus=0)
def total_of_refs(lib: Any, refs: Any) -> float:
    listed = refs.values() if isinstance(refs, dict) else refs
    return float(sum(np.asarray(lib.get(ref)).sum() for ref in listed))


# Tasks and generators.


@program
def what_was_put_is_got(lib: Any, folder: Path) -> Any:
    return lib.get(lib.put(numbers(1)))


@program
def many_tasks_read_one_object(lib: Any, folder: Path) -> Any:
    ref = lib.put(numbers(2))
    return ray.get([total.remote(ref) for _ in range(8)])


@program
def a_chain_of_tasks(lib: Any, folder: Path) -> Any:
    ref = make.remote(lib, 3)
    for _ in range(5):
        ref = doubled.remote(lib, ref)
    return lib.get(ref)


@program
def a_diamond_of_tasks(lib: Any, folder: Path) -> Any:
    top = make.remote(lib, 4)
    return lib.get(added.remote(lib, doubled.remote(lib, top), doubled.remote(lib, top), top))


@program
def a_tree_of_tasks(lib: Any, folder: Path) -> Any:
    refs = [make.remote(lib, seed) for seed in range(8)]
    while len(refs) > 1:
        refs = [added.remote(lib, *pair) for pair in zip(refs[::2], refs[1::2], strict=True)]
    return lib.get(refs[0])


@program
def many_refs_got_at_once(lib: Any, folder: Path) -> Any:
    return lib.get([make.remote(lib, seed) for seed in range(6)])


@program
def several_returns_of_one_task(lib: Any, folder: Path) -> Any:
    @ray.remote(num_cpus=0, num_returns=2)
    def halves(array: Any) -> Any:
        low, high = np.split(np.asarray(array), 2)
        return lib.array(low), lib.array(high)

    low, high = halves.remote(lib.put(numbers(5)))
    return lib.get([high, low])


@program
def keyword_arguments(lib: Any, folder: Path) -> Any:
    @ray.remote(num_cpus=0)
    def scaled(*, array: Any, by: float) -> Any:
        return lib.array(np.asarray(array) * by)

    return lib.get(scaled.remote(array=lib.put(numbers(6)), by=3))


@program
def refs_in_a_list(lib: Any, folder: Path) -> Any:
    return ray.get(total_of_refs.remote(lib, [make.remote(lib, seed) for seed in range(4)]))


@program
def refs_in_a_dict(lib: Any, folder: Path) -> Any:
    refs = {str(seed): lib.put(numbers(seed)) for seed in range(4)}
    return ray.get(total_of_refs.remote(lib, refs))


@program
def a_task_returns_a_ref(lib: Any, folder: Path) -> Any:
    @ray.remote(num_cpus=0)
    def made() -> Any:
        return [make.remote(lib, 7)]

    return lib.get(ray.get(made.remote())[0])


@program
def a_ref_outlives_the_task_that_put_it(lib: Any, folder: Path) -> Any:
    @ray.remote(num_cpus=0)
    def put() -> Any:
        return [lib.put(numbers(8))]

    @ray.remote(num_cpus=0)
    def read(refs: Any) -> Any:
        return float(lib.get(refs[0]).sum())

    return ray.get(read.remote(ray.get(put.remote())))


@program
def tasks_start_tasks(lib: Any, folder: Path) -> Any:
    @ray.remote(num_cpus=0)
    def summed(low: int, high: int) -> Any:
        if high - low == 1:
            return lib.array(numbers(low))
        middle = (low + high) // 2
        halves = lib.get([summed.remote(low, middle), summed.remote(middle, high)])
        return lib.array(np.sum(halves, axis=0))

    return lib.get(summed.remote(0, 5))


@program
def the_first_of_several_are_waited_for(lib: Any, folder: Path) -> Any:
    gate = folder / "gate"

    @ray.remote(num_cpus=0)
    def late(seed: int) -> Any:
        while not gate.exists():
            threading.Event().wait(0.01)
        return lib.array(numbers(seed))

    slow = late.remote(1)
    quick = [make.remote(lib, seed) for seed in range(2)]
    ready, others = lib.wait([slow, *quick], num_returns=2)
    told = [ready == quick, others == [slow], lib.get(ready)]
    gate.touch()
    return [*told, lib.get(slow)]


@program
def a_wait_has_its_time(lib: Any, folder: Path) -> Any:
    @ray.remote(num_cpus=0)
    def never() -> Any:
        threading.Event().wait()

    ref = never.remote()
    ready, others = lib.wait([ref], **{TIMEOUT[lib]: 0.1})
    ray.cancel(ref, force=True)
    return len(ready), len(others)


TIMEOUT = {Plain: "timeout", Hoplite: "timeout_s"}


@program
def a_task_that_raises(lib: Any, folder: Path) -> Any:
    @ray.remote(num_cpus=0)
    def wrong() -> Any:
        return lib.array(numbers(1, -1))

    return _error(lambda: lib.get(doubled.remote(lib, wrong.remote())))


def _error(act: Callable[[], Any]) -> list[bool]:
    """For each of three kinds of errors: True if `act` raises one."""
    try:
        act()
    except Exception as error:
        kinds = (ValueError, ray.exceptions.RayTaskError, ray.exceptions.RayActorError)
        return [isinstance(error, kind) for kind in kinds]
    raise AssertionError("it raised nothing")


@program
def a_task_is_tried_again_after_an_error(lib: Any, folder: Path) -> Any:
    @ray.remote(num_cpus=0, max_retries=2, retry_exceptions=True)
    def second_try() -> Any:
        with (folder / "tries").open("a") as tries:
            tries.write("x")
        if (folder / "tries").stat().st_size < 2:
            raise OSError("once")
        return lib.array(numbers(9))

    return lib.get(second_try.remote()), (folder / "tries").read_text()


@program
def a_task_is_tried_again_after_its_process_died(lib: Any, folder: Path) -> Any:
    @ray.remote(num_cpus=0, max_retries=2)
    def second_try(array: Any) -> Any:
        if not (folder / "died").exists():
            (folder / "died").touch()
            os._exit(1)
        return lib.array(np.asarray(array) + 1)

    return lib.get(second_try.remote(lib.put(numbers(10))))


@program
def a_task_is_cancelled(lib: Any, folder: Path) -> Any:
    @ray.remote(num_cpus=0, max_retries=0)
    def never(array: Any) -> Any:
        (folder / "runs").touch()
        threading.Event().wait()

    ref = never.remote(lib.put(numbers(11)))
    while not (folder / "runs").exists():
        threading.Event().wait(0.01)
    ray.cancel(ref, force=True)
    return _error(lambda: lib.get(ref))


@program
def a_generator_yields_arrays(lib: Any, folder: Path) -> Any:
    return [lib.get(ref) for ref in _yielded.remote(lib, 4)]


@ray.remote(num_cpus=0)
def _yielded(lib: Any, count: int) -> Iterator[Any]:
    for seed in range(count):
        yield lib.array(numbers(seed))


@program
def what_a_generator_yields_goes_to_tasks(lib: Any, folder: Path) -> Any:
    return ray.get([total.remote(ref) for ref in _yielded.remote(lib, 5)])


@program
def a_generator_raises_in_its_middle(lib: Any, folder: Path) -> Any:
    @ray.remote(num_cpus=0)
    def broken() -> Iterator[Any]:
        yield lib.array(numbers(1))
        raise ValueError("after one")

    refs = iter(broken.remote())
    first = lib.get(next(refs))
    return first, _error(lambda: lib.get(next(refs)))


@program
def an_async_generator_of_an_actor(lib: Any, folder: Path) -> Any:
    @ray.remote(num_cpus=0)
    class Source:
        async def arrays(self, count: int) -> AsyncIterator[Any]:
            for seed in range(count):
                await asyncio.sleep(0)
                yield lib.array(numbers(seed))

    return [lib.get(ref) for ref in Source.remote().arrays.remote(3)]


# Actors.


@ray.remote(num_cpus=0)
class Keeper:
    """Keeps one array, and refs."""

    def __init__(self, lib: Any) -> None:
        self._lib = lib
        self._array: Any = np.zeros(SIZE, np.float32)
        self._refs: list[Any] = []

    def add(self, array: Any) -> Any:
        self._array = self._array + np.asarray(array)
        return self._lib.array(self._array)

    def keep(self, refs: list[Any]) -> int:
        self._refs += refs
        return len(self._refs)

    def kept(self) -> float:
        return float(sum(self._lib.get(ref).sum() for ref in self._refs))

    def pid(self) -> int:
        return os.getpid()

    @ray.method(num_returns=2)
    def parts(self) -> Any:
        return self._lib.array(self._array), float(self._array.sum())

    def end(self) -> None:
        os._exit(1)


@program
def an_actor_has_a_state(lib: Any, folder: Path) -> Any:
    keeper = Keeper.remote(lib)
    return lib.get([keeper.add.remote(lib.put(numbers(seed))) for seed in range(3)])


@program
def an_actor_feeds_another(lib: Any, folder: Path) -> Any:
    one, two = Keeper.remote(lib), Keeper.remote(lib)
    for seed in range(3):
        last = two.add.remote(one.add.remote(make.remote(lib, seed)))
    return lib.get(last)


@program
def an_actor_keeps_a_ref_that_its_maker_drops(lib: Any, folder: Path) -> Any:
    keeper = Keeper.remote(lib)
    ref = lib.put(numbers(12))
    kept = ray.get(keeper.keep.remote([ref]))
    del ref
    return kept, ray.get(keeper.kept.remote())


@program
def several_returns_of_a_method(lib: Any, folder: Path) -> Any:
    keeper = Keeper.remote(lib)
    keeper.add.remote(lib.put(numbers(13)))
    array, number = keeper.parts.remote()
    return lib.get(array), ray.get(number)


@program
def an_actor_is_passed_to_tasks(lib: Any, folder: Path) -> Any:
    @ray.remote(num_cpus=0)
    def use(keeper: Any, array: Any) -> None:
        ray.get(keeper.add.remote(array))

    keeper = Keeper.remote(lib)
    ray.get([use.remote(keeper, lib.put(numbers(seed))) for seed in range(4)])
    return lib.get(keeper.add.remote(lib.put(numbers(14))))


@program
def a_named_actor(lib: Any, folder: Path) -> Any:
    name = f"keeper-{lib.__name__}"
    keeper = Keeper.options(name=name).remote(lib)
    ray.get(keeper.pid.remote())
    return lib.get(ray.get_actor(name).add.remote(lib.put(numbers(15))))


@program
def an_actor_is_restarted_and_has_forgotten(lib: Any, folder: Path) -> Any:
    keeper = Keeper.options(max_restarts=1, max_task_retries=1).remote(lib)
    before, pid = lib.get(keeper.add.remote(lib.put(numbers(16)))), ray.get(keeper.pid.remote())
    ray.kill(keeper, no_restart=False)
    while ray.get(keeper.pid.remote()) == pid:  # a kill is still on its way
        threading.Event().wait(0.01)
    return before, lib.get(keeper.add.remote(lib.put(numbers(17))))


@program
def a_dead_actor_says_so(lib: Any, folder: Path) -> Any:
    keeper = Keeper.remote(lib)
    keeper.end.remote()
    return _error(lambda: lib.get(keeper.add.remote(lib.put(numbers(18)))))


@program
def a_pool_of_actors(lib: Any, folder: Path) -> Any:
    pool = ActorPool([Keeper.remote(lib) for _ in range(2)])
    refs = [lib.put(numbers(seed)) for seed in range(6)]
    kept = list(pool.map_unordered(lambda actor, ref: actor.keep.remote([ref]), refs))
    return sorted(kept)[0], len(kept)


@program
def an_async_actor_awaits_refs(lib: Any, folder: Path) -> Any:
    @ray.remote(num_cpus=0)
    class Reader:
        async def total(self, refs: list[Any]) -> float:
            values = await asyncio.gather(*(lib.get_async(ref) for ref in refs))
            return float(sum(value.sum() for value in values))

    refs = [make.remote(lib, seed) for seed in range(4)]
    return ray.get(Reader.remote().total.remote(refs))


@program
def many_calls_of_an_async_actor_at_once(lib: Any, folder: Path) -> Any:
    @ray.remote(num_cpus=0, max_concurrency=16)
    class Doubler:
        async def doubled(self, array: Any) -> Any:
            await asyncio.sleep(0)
            return lib.array(np.asarray(array) * 2)

    doubler = Doubler.remote()
    return lib.get([doubler.doubled.remote(lib.put(numbers(seed))) for seed in range(12)])


@program
def a_threaded_actor(lib: Any, folder: Path) -> Any:
    @ray.remote(num_cpus=0, max_concurrency=4)
    class Adder:
        def __init__(self) -> None:
            self._lock, self._sum = threading.Lock(), 0.0

        def add(self, array: Any) -> float:
            with self._lock:
                self._sum += float(np.asarray(array).sum())
                return self._sum

    adder = Adder.remote()
    return max(ray.get([adder.add.remote(make.remote(lib, seed)) for seed in range(8)]))


# Values.


@program
def a_dict_of_arrays(lib: Any, folder: Path) -> Any:
    return lib.get(lib.put({"w": numbers(19), "b": np.arange(3), "deep": [numbers(20)]}))


@program
def a_tuple_of_arrays_from_a_task(lib: Any, folder: Path) -> Any:
    @ray.remote(num_cpus=0)
    def pair() -> Any:
        return lib.array((numbers(21), np.arange(5)))

    return lib.get(pair.remote())


@program
def empty_and_tiny_arrays(lib: Any, folder: Path) -> Any:
    values = [np.zeros((0, 3)), np.array(4.5), np.arange(1), np.ones((1, 1, 1), bool)]
    return lib.get([lib.put(value) for value in values])


@program
def every_common_dtype(lib: Any, folder: Path) -> Any:
    names = ["?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16"]
    return lib.get([lib.put(np.arange(2000).astype(name)) for name in names])


@program
def arrays_in_odd_orders(lib: Any, folder: Path) -> Any:
    grid = np.arange(600).reshape(20, 30)
    return lib.get([lib.put(each) for each in (grid.T, grid[::2, ::3], grid[::-1])])


# Collectives.


@program
def a_sum_of_what_tasks_return(lib: Any, folder: Path) -> Any:
    return lib.get(lib.reduce([make.remote(lib, seed) for seed in range(6)]))


@program
def the_greatest_goes_to_a_task(lib: Any, folder: Path) -> Any:
    return ray.get(total.remote(lib.reduce([lib.put(numbers(s)) for s in range(4)], op="max")))


@program
def a_list_of_what_tasks_return(lib: Any, folder: Path) -> Any:
    return [
        np.asarray(each) for each in lib.get(lib.gather([make.remote(lib, s) for s in range(5)]))
    ]


# Libraries on top of Ray.


@program
def ray_data_maps_with_an_array_that_all_tasks_read(lib: Any, folder: Path) -> Any:
    import ray.data  # here, or every worker would import it

    weights = lib.put(numbers(22, 10))

    def weighed(batch: dict[str, Any]) -> dict[str, Any]:
        return {"y": batch["id"] * float(lib.get(weights).sum())}

    rows = ray.data.range(100, override_num_blocks=4).map_batches(weighed).take_all()
    return sorted(float(row["y"]) for row in rows)


@program
def ray_serve_answers_with_arrays(lib: Any, folder: Path) -> Any:
    from ray import serve

    @serve.deployment(num_replicas=2, ray_actor_options={"num_cpus": 0})
    class Scale:
        def __init__(self, by: Any) -> None:
            self._by = np.asarray(lib.get(by[0]))
            self._answers: list[Any] = []  # Ray alone may lose them: docs/explain/known-issues.md

        async def __call__(self, refs: list[Any]) -> Any:
            self._answers.append(lib.put(self._by * await lib.get_async(refs[0])))
            return self._answers[-1:]

    @serve.deployment(ray_actor_options={"num_cpus": 0})
    class Front:
        def __init__(self, scale: Any) -> None:
            self._scale = scale

        async def __call__(self, refs: list[Any]) -> Any:
            return await self._scale.remote(await self._scale.remote(refs))

    name, application = lib.__name__, Front.bind(Scale.bind([lib.put(numbers(23))]))
    front = serve.run(application, name=name, route_prefix=f"/{name}")
    values = [lib.get(*front.remote([lib.put(numbers(s))]).result(timeout_s=40)) for s in range(3)]
    serve.delete(name)  # a failed one stays until it was seen who was where
    return values
