"""The schedules of collectives, without processes: values, folding order, and bytes per link."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from hoplite_ray.errors import InvalidArgumentError
from hoplite_ray.values.layout import REDUCE_OPS
from hoplite_ray.worlds.core.arrays import Lent, to_fill, to_send
from hoplite_ray.worlds.ops import schedules
from hoplite_ray.worlds.ops.call import Flat, Steps, number_call
from hoplite_ray.worlds.ops.folds import OPS, check_fold
from hoplite_ray.worlds.ops.schedules import BLOCK_BYTES, SMALL_BYTES

SIZES = (1, 2, 3, 4, 5)
COUNTS = (0, 1, 7, SMALL_BYTES // 8, SMALL_BYTES // 8 + 1, 3 * BLOCK_BYTES // 8 + 5)


@dataclass
class Links:
    """What is under way between members, and how much each link has carried."""

    size: int
    queues: dict[tuple[int, int], deque[Flat]] = field(default_factory=lambda: defaultdict(deque))
    carried: Counter[tuple[int, int]] = field(default_factory=Counter)

    def run(self, begin: Callable[[Any, int], Steps]) -> None:
        """Let every member go on whenever all that it waits for is there."""
        members = [Member(self, rank) for rank in range(self.size)]
        running = {member.rank: begin(member, member.rank) for member in members}
        waiting: dict[int, list[Any]] = {}
        while running:
            progress = False
            for rank, steps in list(running.items()):
                if not all(
                    receive is None or receive.is_done() for receive in waiting.get(rank, ())
                ):
                    continue
                progress = True
                try:
                    waiting[rank] = list(next(steps))
                except StopIteration:
                    del running[rank]
            assert progress, f"ranks {sorted(running)} wait for ever"
        assert not any(self.queues.values()), "something was sent that nobody received"


@dataclass
class Receive:
    """A part that is to be filled by the next message of a link, in order."""

    links: Links
    link: tuple[int, int]
    part: Flat
    before: Receive | None
    was_filled: bool = False

    def is_done(self) -> bool:
        if self.was_filled:
            return True
        queue = self.links.queues[self.link]
        if (self.before is None or self.before.is_done()) and queue:
            message = queue.popleft()
            assert message.shape == self.part.shape
            self.part[:] = message
            self.was_filled = True
        return self.was_filled


class Member:
    """One member's calls of `Round`."""

    def __init__(self, links: Links, rank: int) -> None:
        self.rank = rank
        self.size = links.size
        self._links = links
        self._last: dict[int, Receive] = {}

    def send(self, to: int, part: Flat) -> None:
        self._links.queues[self.rank, to].append(part.copy())
        self._links.carried[self.rank, to] += part.nbytes

    def receive(self, source: int, part: Flat) -> Receive:
        before = self._last.get(source)
        self._last[source] = Receive(self._links, (source, self.rank), part, before)
        return self._last[source]


def given(size: int, count: int) -> list[np.ndarray[Any, Any]]:
    return [((np.arange(count) + rank) % 5 + 1).astype(np.float64) for rank in range(size)]


def lents(arrays: list[Any]) -> list[Lent]:
    return [to_fill(array) for array in arrays]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("count", COUNTS)
def test_every_member_gets_the_right_values(size: int, count: int) -> None:
    expected = given(size, count)
    for root in range(size):
        arrays = given(size, count)
        mine = lents(arrays)
        Links(size).run(lambda m, r: schedules.broadcast(m, mine[r], root))  # noqa: B023
        assert all((array == expected[root]).all() for array in arrays)
        arrays = given(size, count)
        mine = lents(arrays)
        Links(size).run(lambda m, r: schedules.reduce(m, mine[r], root, "sum"))  # noqa: B023
        for rank, array in enumerate(arrays):
            assert (array == (sum(expected) if rank == root else expected[rank])).all()


FOLDS: dict[str, Callable[[list[Any]], Any]] = {
    "sum": np.add.reduce,
    "prod": np.multiply.reduce,
    "min": np.minimum.reduce,
    "max": np.maximum.reduce,
    "mean": lambda arrays: np.add.reduce(arrays) / len(arrays),
}


def test_worlds_have_the_operations_of_the_store() -> None:
    assert {*FOLDS} == {*OPS} == {*REDUCE_OPS}


@pytest.mark.parametrize("op", FOLDS)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("count", COUNTS)
def test_every_op_folds_all_arrays(size: int, count: int, op: str) -> None:
    expected = FOLDS[op](given(size, count))
    arrays = given(size, count)
    mine = lents(arrays)
    Links(size).run(lambda m, r: schedules.all_reduce(m, mine[r], op))
    assert all((array == expected).all() for array in arrays)
    arrays = given(size, count)
    mine = lents(arrays)
    Links(size).run(lambda m, r: schedules.reduce(m, mine[r], size - 1, op))
    assert (arrays[-1] == expected).all()
    cut = [np.array_split(array, size) for array in given(size, count)]
    into = lents([np.empty_like(share) for share in cut[0]])
    Links(size).run(lambda m, r: schedules.reduce_scatter(m, cut[r], into[r], op))
    assert (np.concatenate([each.flat for each in into]) == expected).all()
    assert (np.concatenate(cut[0]) == given(size, count)[0]).all(), "what is folded stays"


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("count", [9, SMALL_BYTES, BLOCK_BYTES + 3])
def test_a_mean_of_short_floats_is_added_up_in_32_bits_and_rounded_once(
    size: int, count: int, dtype: str
) -> None:
    kind = getattr(ml_dtypes, dtype) if dtype == "bfloat16" else np.dtype(dtype)
    most = 60_000.0 if dtype == "float16" else 3e38  # no sum of two has room
    scale = most if dtype == "float16" else 1.0

    def short() -> list[Any]:
        values = [np.random.default_rng(rank).random(count, np.float32) for rank in range(size)]
        return [(each * scale).astype(kind) for each in values]

    total = short()[0].astype(np.float32)
    for each in short()[1:]:
        total += each.astype(np.float32)
    expected = (total / size).astype(kind)
    exact = count <= SMALL_BYTES // 2 or size <= 2
    arrays = short()
    mine = lents(arrays)
    Links(size).run(lambda m, r: schedules.all_reduce(m, mine[r], "mean"))
    assert all((array == expected).all() for array in arrays), "in the order of ranks"
    arrays = short()
    mine = lents(arrays)
    Links(size).run(lambda m, r: schedules.reduce(m, mine[r], 0, "mean"))
    close = np.abs(arrays[0].astype(np.float32) - expected.astype(np.float32))
    assert (close <= (0 if exact else 1) * np.spacing(expected).astype(np.float32)).all()
    cut = [np.array_split(array, size) for array in short()]
    into = lents([np.empty_like(share) for share in cut[0]])
    Links(size).run(lambda m, r: schedules.reduce_scatter(m, cut[r], into[r], "mean"))
    assert (np.concatenate([each.flat for each in into]) == expected).all()


@pytest.mark.parametrize("size", SIZES)
def test_a_member_sends_no_more_of_a_reduce_scatter_than_the_others_need(size: int) -> None:
    cut = [np.array_split(array, size) for array in given(size, 1 << 20)]
    into = lents([np.empty_like(share) for share in cut[0]])
    links = Links(size)
    links.run(lambda m, r: schedules.reduce_scatter(m, cut[r], into[r], "sum"))
    for rank in range(size):
        sent = sum(links.carried[rank, other] for other in range(size))
        assert sent == (8 << 20) - cut[0][rank].nbytes


def test_each_call_has_a_number_of_its_own() -> None:
    calls = [
        *((name, "sum", root) for name in ("broadcast", "gather", "scatter") for root in range(8)),
        *(("reduce", op, root) for op in OPS for root in range(8)),
        *((name, op, 0) for name in ("all_reduce", "reduce_scatter") for op in OPS),
        *((name, "sum", 0) for name in ("all_gather", "barrier")),
    ]
    made = {number_call(*call) for call in calls}
    assert len(made) == len(calls) and max(made) < 256
    assert all(number % 8 for number in made), "these are the numbers of transfers"


@pytest.mark.parametrize("size", SIZES)
def test_gathers_scatters_and_barriers(size: int) -> None:
    expected, mine = given(size, 9), lents(given(size, 9))
    outs = [[np.zeros(9) for _ in range(size)] for _ in range(size)]
    into = [lents(out) for out in outs]
    Links(size).run(lambda m, r: schedules.all_gather(m, mine[r], into[r]))
    assert all((np.array(out) == np.array(expected)).all() for out in outs)
    outs = [[np.zeros(9) for _ in range(size)] for _ in range(size)]
    into = [lents(out) for out in outs]
    Links(size).run(lambda m, r: schedules.gather(m, mine[r], into[r], size - 1))
    assert (np.array(outs[-1]) == np.array(expected)).all()
    arrays = [np.zeros(9) for _ in range(size)]
    targets = lents(arrays)
    Links(size).run(lambda m, r: schedules.scatter(m, mine if r == 0 else [], targets[r], 0))
    assert (np.array(arrays) == np.array(expected)).all()
    Links(size).run(lambda m, r: schedules.barrier(m))


@pytest.mark.parametrize("count", [10, 50_000])
@pytest.mark.parametrize("size", [2, 3, 5])
def test_sums_have_the_same_bits_everywhere(size: int, count: int) -> None:
    arrays = [np.random.default_rng(rank).random(count, np.float32) for rank in range(size)]
    mine = lents(arrays)
    Links(size).run(lambda m, r: schedules.all_reduce(m, mine[r], "sum"))
    assert len({array.tobytes() for array in arrays}) == 1


def test_no_link_carries_a_large_array_more_often_than_it_must() -> None:
    size, count = 4, 1 << 20
    whole = count * 8
    begins: list[tuple[Callable[[Any, Lent], Steps], int]] = [
        (lambda m, mine: schedules.broadcast(m, mine, 1), whole),
        (lambda m, mine: schedules.reduce(m, mine, 1, "max"), whole),
        (lambda m, mine: schedules.all_reduce(m, mine, "max"), 2 * (size - 1) * whole // size),
        (lambda m, mine: schedules.all_reduce(m, mine, "mean"), 2 * (size - 1) * whole // size),
    ]
    for begin, most in begins:
        arrays = lents(given(size, count))
        links = Links(size)
        links.run(lambda m, r: begin(m, arrays[r]))  # noqa: B023
        assert max(links.carried.values()) == most
        assert len(links.carried) <= size  # a line, or a ring


@pytest.mark.parametrize(
    ("op", "dtype", "words"),
    [
        ("median", "float32", "op='median' is unknown; use one of sum, prod, min, max, mean"),
        ("mean", "int32", "op='mean' can't fold int32; use 'sum' and divide, or convert it"),
        ("mean", "bool", "op='mean' can't fold bool"),
        ("sum", "M8[s]", "op='sum' can't fold .* gather the arrays instead"),
    ],
)
def test_an_op_or_dtype_that_can_not_be_is_refused(op: str, dtype: str, words: str) -> None:
    with pytest.raises(InvalidArgumentError, match=words):
        check_fold(op, to_send(np.zeros(1, dtype)))
