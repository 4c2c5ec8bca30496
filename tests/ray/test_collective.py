"""ray.util.collective with backend HOPLITE: as Gloo's, and members that die or err."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from itertools import count
from typing import Any

import numpy as np
import pytest
import ray
from ray.util import collective
from ray.util.collective.types import Backend, ReduceOp

import hoplite_ray as hop
from hoplite_ray.metrics.counters import NodeStats
from hoplite_ray.plugin.groups.roster import CollectiveMember as Entry
from hoplite_ray.plugin.process.attachment import attachment
from hoplite_ray.plugin.seams.table import KeyValues
from tests.ray.lifetimes import directories
from tests.ray.raycluster import LARGE, RayCluster, eventually
from tests.ray.surface_values import needs_torch

pytestmark = pytest.mark.timeout(180)  # processes that import torch start and die, and nodes

ANSWER_S = 40  # of members that are there, on a machine that is full

SIZE = 3
OPS = [ReduceOp.SUM, ReduceOp.PRODUCT, ReduceOp.MIN, ReduceOp.MAX]
_numbers = count()


class Member:
    """One process; `run` does what a user's method would."""

    def join(self, size: int, rank: int, name: str, backend: str = "HOPLITE") -> None:
        collective.init_collective_group(size, rank, Backend(backend), name)

    def run(self, name: str, verb: str, *arguments: Any) -> Any:
        own = [np.array(each) if isinstance(each, np.ndarray) else each for each in arguments]
        getattr(collective, verb)(*own, group_name=name)
        return own

    def limited(self, name: str, timeout_s: float) -> None:
        from ray.util.collective.types import BarrierOptions

        BarrierOptions.timeout_ms = timedelta(seconds=timeout_s)
        try:
            collective.barrier(name)
        finally:
            BarrierOptions.timeout_ms = timedelta(milliseconds=-1)

    def program(self, name: str, kind: str, dtype: str, length: int) -> list[list[Any]]:
        """Every operation in turn; what this member then has, of what is said to be filled."""
        rank, size = collective.get_rank(name), collective.get_collective_group_size(name)
        filled = []

        def given(seed: int) -> Any:
            return tensor(kind, dtype, length, seed)

        def out(seed: int) -> Any:
            filled.append(given(seed))
            return filled[-1]

        for op in OPS:
            collective.allreduce(out(rank), name, op)
            collective.reduce(out(rank), size - 1, name, op)
            collective.reducescatter(
                out(9), [given(each + 3 * rank) for each in range(size)], name, op
            )
        collective.broadcast(out(rank), 1, name)
        collective.allgather([out(0) for _ in range(size)], given(rank + 5), name)
        collective.barrier(name)
        if rank == 0:
            collective.send(given(7), 1, name)
            collective.recv(out(0), 1, name)
        elif rank == 1:
            collective.recv(out(0), 0, name)
            collective.send(given(8), 0, name)
        return [each.tolist() for each in filled]

    def leave(self, name: str) -> None:
        collective.destroy_collective_group(name)

    def attach(self) -> None:
        hop.delete(hop.put(np.ones(1)))

    def owned(self) -> int:
        """How much it is to delete, by its journal, of all groups that it has left."""
        return len(attachment().journal._owned)

    def pid(self) -> int:
        return os.getpid()


Process: Any = ray.remote(num_cpus=0)(Member)


def tensor(kind: str, dtype: str, length: int, seed: int) -> Any:
    """Small whole numbers, so that no order of adding them matters."""
    array = (np.arange(length) % 3 + seed % 4 + 1).astype(dtype)
    if kind == "numpy":
        return array
    import torch

    return torch.from_numpy(array)


def kept() -> list[int]:
    """Objects, bytes of arenas and waiting gets of all nodes."""
    stats = []
    for each in directories():
        control = json.loads((each / "node.json").read_text())["control"]
        stats.append(NodeStats.read(control, (each / "secret").read_bytes()))
    return [
        sum(one.objects for one in stats),
        sum(one.arena_bytes_pinned + one.arena_bytes_orphaned for one in stats),
        sum(one.waiters for one in stats),
    ]


def settled() -> list[int]:
    """Like `kept`, once it is stable: other nodes drop deleted objects a little later."""
    seen = [kept()]

    def stays() -> bool:
        time.sleep(0.3)
        seen.append(kept())
        return seen[-1] == seen[-2]

    assert eventually(stays), seen
    return seen[-1]


class Crew(list[Any]):
    """A member on each Ray node, each in a process that lives on for the next test."""

    def __init__(self, cluster: RayCluster) -> None:
        super().__init__([None] * SIZE)
        self._cluster = cluster
        self.fill()

    def fill(self) -> None:
        """Begin those that are not there; processes that import torch take a while."""
        for rank in range(SIZE):
            if self[rank] is None:
                self[rank] = Process.options(**self._cluster.on(rank)).remote()
        ray.get([one.attach.remote() for one in self], timeout=75)
        self._pids = ray.get([one.pid.remote() for one in self])

    def kill(self, rank: int) -> list[Any]:
        """End that member; returns the others."""
        os.kill(self._pids[rank], signal.SIGKILL)
        self[rank] = None
        return [one for one in self if one is not None]


@contextmanager
def nothing_left() -> Iterator[None]:
    """The body leaves nothing in the store or in Ray's table."""
    began = kept()
    yield
    assert eventually(lambda: max(np.subtract(kept(), began)) <= 0), f"{kept()}, after {began}"
    assert KeyValues(ray.get_runtime_context().gcs_address).keys("collective/") == []


@pytest.fixture(scope="module")
def lasting(cluster: RayCluster) -> Crew:
    return Crew(cluster)


@pytest.fixture
def members(lasting: Crew) -> Iterator[Crew]:
    lasting.fill()
    with nothing_left():
        yield lasting


def joined(members: list[Any], backend: str = "HOPLITE") -> str:
    name = f"test {next(_numbers)}"
    ray.get(
        [each.join.remote(len(members), rank, name, backend) for rank, each in enumerate(members)]
    )
    return name


def each(members: list[Any], verb: str, *arguments: Any) -> list[Any]:
    calls = [member.__getattr__(verb).remote(*arguments) for member in members]
    return ray.get(calls, timeout=ANSWER_S)


@pytest.mark.parametrize(
    ("kind", "dtype", "length"),
    [
        ("numpy", "float32", LARGE),
        ("numpy", "int64", 5),
        pytest.param("torch", "int32", LARGE, marks=needs_torch),
        pytest.param("torch", "float16", 1, marks=needs_torch),
    ],
)
@needs_torch
def test_a_program_has_the_results_that_it_has_with_gloo(
    members: Crew, cluster: RayCluster, kind: str, dtype: str, length: int
) -> None:
    ours, gloos = joined(members), joined(members, "GLOO")
    got = each(members, "program", ours, kind, dtype, length)
    assert got == each(members, "program", gloos, kind, dtype, length)
    each(members, "leave", ours)


def test_nothing_is_left_after_an_operation(members: Crew) -> None:
    name = joined(members)
    before = settled()
    for _ in range(2):
        each(members, "program", name, "numpy", "float32", LARGE)
    assert eventually(lambda: kept() == before), f"{kept()}, before {before}"
    each(members, "leave", name)
    assert each(members, "owned") == [0] * SIZE  # else their stewards could never leave


def test_it_is_registered_where_the_flag_is(members: Crew) -> None:
    assert collective.collective.is_backend_available("HOPLITE")
    assert str(Backend("hoplite")) == "HOPLITE"


def test_the_driver_makes_groups_too_and_a_name_is_used_again(members: Crew) -> None:
    for _ in range(2):
        collective.create_collective_group(
            members, SIZE, list(range(SIZE)), Backend("hoplite"), "made"
        )
        assert [
            one[0].tolist() for one in each(members, "run", "made", "allreduce", np.ones(2))
        ] == [[3, 3]] * SIZE
        each(members, "leave", "made")
        assert eventually(lambda: "info_made" not in ray.util.list_named_actors())


@needs_torch
def test_numpy_and_torch_meet_and_bfloat16_is_taken(members: Crew) -> None:
    import torch

    name = joined(members)
    given = [np.full(4, 2, "f4"), torch.ones(4), torch.ones(4)]
    refs = [
        member.run.remote(name, "allreduce", tensor)
        for member, tensor in zip(members, given, strict=True)
    ]
    assert [one[0].tolist() for one in ray.get(refs)] == [[4] * 4] * SIZE
    (one, *_) = each(members, "run", name, "allreduce", torch.ones(4, dtype=torch.bfloat16))
    assert one[0].dtype == torch.bfloat16 and one[0].tolist() == [3] * 4
    each(members, "leave", name)


@pytest.mark.parametrize(
    ("verb", "victim"),
    [
        ("allreduce", 0),
        pytest.param("allreduce", 1, marks=pytest.mark.slow),
        ("barrier", 2),
    ],
)
def test_survivors_of_a_killed_member_hear_who_it_was(
    members: Crew, verb: str, victim: int
) -> None:
    name = joined(members)
    each(members, "run", name, "barrier")
    arguments = [np.ones(LARGE)] if verb == "allreduce" else []
    begun = [
        one.run.remote(name, verb, *arguments) for rank, one in enumerate(members) if rank != victim
    ]
    survivors = members.kill(victim)
    for _ in range(2):  # in the operation, and in the next
        for ref in begun:
            with pytest.raises(
                hop.CollectiveError, match=rf"group '{name}' has failed: .*rank {victim} is dead"
            ):
                ray.get(ref, timeout=ANSWER_S)
        begun = [one.run.remote(name, "barrier") for one in survivors]
    each(survivors, "leave", name)
    again = joined(survivors)
    each(survivors, "run", again, "barrier")
    each(survivors, "leave", again)


def test_survivors_of_a_node_hear_who_was_on_it(members: Crew, cluster: RayCluster) -> None:
    node, first = cluster.add_node("lost", num_cpus=1), members[0]
    try:
        second = Process.options(num_cpus=0, resources={"lost": 0.001}).remote()
        name = joined([first, second])
        begun = first.run.remote(name, "allreduce", np.ones(LARGE))
    finally:  # the tests after this one count the nodes
        cluster.crash_node(node)
    with pytest.raises(hop.CollectiveError, match="rank 1 is dead"):
        ray.get(begun, timeout=60)
    ray.get(first.leave.remote(name))


def test_a_member_may_leave_at_once_after_its_last_operation(members: Crew) -> None:
    for _ in range(10):
        name = joined(members)
        begun = [one.run.remote(name, "broadcast", np.ones(3)) for one in members]
        left = [one.leave.remote(name) for one in members]
        ray.get(begun + left, timeout=ANSWER_S)


def test_a_mismatch_is_told_to_all(members: Crew) -> None:
    name = joined(members)
    given = [np.ones(3), np.ones(3), np.ones(3, "f4")]
    begun = [
        one.run.remote(name, "broadcast", array) for one, array in zip(members, given, strict=True)
    ]
    with pytest.raises(hop.LayoutMismatchError, match=r"is float64\[3\], the .* is float32\[3\]"):
        ray.get(begun[2])
    with pytest.raises(hop.CollectiveError, match=r"broadcast 1 failed at rank 2: .*float32\[3\]"):
        ray.get(begun[0])
    each(members, "leave", name)


def test_who_does_not_come_is_named_after_the_option_timeout_ms(members: Crew) -> None:
    name = joined(members)
    with pytest.raises(
        hop.GetTimeoutError, match=r"barrier 1 of .* after 0.3 s at rank 0.*rank 1, 2"
    ):
        ray.get(members[0].limited.remote(name, 0.3))
    with pytest.raises(hop.CollectiveError, match="barrier 1 failed at rank 0"):
        ray.get(members[1].run.remote(name, "barrier"))
    each(members, "leave", name)


@pytest.mark.parametrize(
    ("verb", "arguments", "error", "text"),
    [
        ("allreduce_multigpu", [[np.ones(1)]], RuntimeError, "Multigpu calls requires NCCL"),
        ("allreduce", [np.array([object()])], hop.InvalidArgumentError, "holds Python objects"),
        ("broadcast", [np.ones(1), 7], ValueError, "must be less than world size"),
        ("send", [np.ones(1), 0], RuntimeError, "is self"),
        ("allgather", [[np.ones(1)], np.ones(1)], RuntimeError, "equal to world_size"),
    ],
)
def test_a_mistake_is_said_at_once_and_the_group_goes_on(
    members: Crew, verb: str, arguments: list[Any], error: type[Exception], text: str
) -> None:
    name = joined(members)
    with pytest.raises(error, match=text):
        ray.get(members[0].run.remote(name, verb, *arguments))
    each(members, "run", name, "barrier")
    each(members, "leave", name)


def test_members_that_disagree_on_their_number_hear_so(members: Crew) -> None:
    first, second, third = members
    begun = first.join.remote(3, 0, "of many"), second.join.remote(2, 1, "of many")
    with pytest.raises(hop.InvalidArgumentError, match="has 3 members for rank 0 and 2 for rank 1"):
        ray.get(begun[1])
    members.kill(0)
    values = KeyValues(ray.get_runtime_context().gcs_address)
    (key,) = values.keys("collective/")  # which only the next group of that name replaces
    entry, _ = json.loads(values.read(key) or b"")
    assert eventually(lambda: not Entry(**entry).is_alive)
    later = second.join.remote(2, 1, "of many")
    assert ray.wait([later], timeout=1)[0] == []  # it sees the dead one's entry
    ray.get([third.join.remote(2, 0, "of many"), later], timeout=30)
    each([second, third], "leave", "of many")
