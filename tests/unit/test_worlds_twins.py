"""One rule for worlds, the store's: a verb blocks, and its `_async` twin is awaited."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from hoplite_ray.worlds import EventStream, World, WorldManager
from tests.unit.test_worlds_fake import crew, in_a_loop

COLLECTIVES = (
    *("broadcast", "all_reduce", "reduce", "reduce_scatter", "all_gather"),
    *("gather", "scatter", "barrier"),
)
VERBS = {
    World: ("send", "recv", *COLLECTIVES, "leave"),
    WorldManager: ("join", "leave", "close"),
    EventStream: ("next",),
}
AT_ONCE = {  # these wait for nothing
    World: ("alloc", "abort", "begin_leave", "events", "is_of"),
    WorldManager: ("abort", "end", "events", "world", "leave_unwaited"),
    EventStream: ("close", "tell"),
}
PAIRS = [(kind, verb) for kind, verbs in VERBS.items() for verb in verbs]


@pytest.mark.parametrize(("kind", "verb"), PAIRS)
def test_every_verb_has_an_awaitable_twin(kind: Any, verb: str) -> None:
    blocks, awaited = getattr(kind, verb), getattr(kind, f"{verb}_async")
    assert not inspect.iscoroutinefunction(blocks) and inspect.iscoroutinefunction(awaited)
    assert inspect.signature(blocks).parameters == inspect.signature(awaited).parameters
    assert inspect.getdoc(awaited).startswith(f"Like `{verb}`, but awaitable; cancelling it ")


@pytest.mark.parametrize("kind", VERBS)
def test_no_verb_is_left_out(kind: Any) -> None:
    methods = {name for name, _ in inspect.getmembers(kind, callable) if name[0] != "_"}
    twins = {f"{verb}_async" for verb in VERBS[kind]}
    assert methods == {*VERBS[kind], *twins, *AT_ONCE[kind]}


@in_a_loop
async def test_the_old_name_of_the_blocking_verbs_warns() -> None:
    async with crew(1) as made:
        world = made.worlds[0]
        with pytest.warns(DeprecationWarning, match="call the world's verbs") as warned:
            world.blocking.barrier()
        assert warned[0].filename == __file__
    with WorldManager() as manager, pytest.warns(DeprecationWarning, match="the manager's verbs"):
        assert manager.blocking is manager
