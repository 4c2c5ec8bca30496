"""Parts of values: what they take equals what numpy takes, and wrong ones say what there is."""

from __future__ import annotations

from collections import OrderedDict
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hoplite_ray import parts
from hoplite_ray.errors import InvalidArgumentError
from hoplite_ray.parts.composed import Composed, compose
from hoplite_ray.parts.fetching import Source, Steps, fetch_plan, in_rounds
from hoplite_ray.parts.indexing import list_runs, read_index
from hoplite_ray.parts.planning import RUNS_MAX, plan_part
from hoplite_ray.values import codec
from hoplite_ray.values.recipe import Attempt
from tests.unit.values import assert_same


class Pair(NamedTuple):
    """A container with fields."""

    left: Any
    right: Any


def finish(steps: Steps[Any]) -> Any:
    """Return the result of an operation on sources that are here, which asks no node."""
    try:
        next(steps)
    except StopIteration as end:
        return end.value
    raise AssertionError("it asks a node")


def take(value: Any, part: Any) -> Any:
    source = Source.of(value)
    client: Any = None
    return finish(fetch_plan(client, source, plan_part(source.columns, part)))


def read(composed: Composed, sources: dict[bytes, Any], part: Any = None) -> Any:
    def give(ref: bytes) -> Steps[Source]:
        yield from ()
        return Source.of(sources[ref])

    client: Any = None
    return finish(composed.fetch(part, client, give))


MODEL: Any = {
    "layers.0.weight": np.arange(12, dtype="f4").reshape(3, 4),
    "layers": [{"weight": np.arange(6, dtype="i8"), "bias": None}, {"weight": np.ones(2, "f2")}],
    "step": 7,
    "by": "adam",
    ("a", 1): np.zeros((2, 2)),
    "pair": Pair(np.arange(3), {"x": np.arange(4)}),
}


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("layers.0.weight", MODEL["layers.0.weight"]),  # a key with dots comes first
        ("layers.1.weight", MODEL["layers"][1]["weight"]),
        ("layers.0", MODEL["layers"][0]),
        ("layers", MODEL["layers"]),
        (("layers", 0, "weight"), MODEL["layers"][0]["weight"]),
        (("layers.0.weight",), MODEL["layers.0.weight"]),
        ((("a", 1),), MODEL[("a", 1)]),
        ("step", 7),
        ("by", "adam"),
        ("pair.right.x", MODEL["pair"].right["x"]),
        ("pair", MODEL["pair"]),
        ("layers.0.bias", None),
        ("", MODEL),
        ((), MODEL),
        (["step", "layers.1"], {"step": 7, "layers.1": MODEL["layers"][1]}),
        ([], {}),
        (
            {"layers.0.weight": np.s_[1:, ::2]},
            {"layers.0.weight": MODEL["layers.0.weight"][1:, ::2]},
        ),
        (
            {("layers", 0, "weight"): 3, "pair.left": slice(0, 0)},
            {("layers", 0, "weight"): np.array(3), "pair.left": np.arange(0)},
        ),
    ],
)
def test_a_part_is_what_its_path_leads_to(path: Any, expected: Any) -> None:
    assert_same(take(MODEL, path), expected)


def test_a_value_of_one_array_is_indexed_without_a_path() -> None:
    array = np.arange(24).reshape(2, 3, 4)
    for index in (1, -1, np.s_[:, 1], np.s_[..., 2], np.s_[1, ..., ::3], (), np.int64(1)):
        assert_same(take(array, index), np.asarray(array[index]))


def test_tied_arrays_stay_one_array() -> None:
    tied = np.arange(5)
    part = take({"a": tied, "b": {"c": tied}, "d": np.ones(3)}, ["a", "b"])
    assert part["a"] is part["b"]["c"]
    assert_same(part["a"], tied)


def test_torch_and_other_containers_keep_their_types() -> None:
    torch = pytest.importorskip("torch")
    value = OrderedDict(w=torch.arange(12, dtype=torch.bfloat16).reshape(4, 3), n=(1, "x"))
    part = take(value, {"w": np.s_[1:3, 1:]})
    assert torch.equal(part["w"], value["w"][1:3, 1:])
    assert take(value, "n") == (1, "x")


@pytest.mark.parametrize(
    ("part", "words"),
    [
        ("layer", ["no part 'layer'", "'layers.0.weight'", "and 1 more"]),
        ("layers.7", ["no part 'layers.7'"]),
        (("layers", 5), ["no part", "there is 0, 1"]),
        (([],), ["no part"]),
        ({"layers": np.s_[1:]}, ["is a list", "name an array in it"]),
        ({"layers.0.bias": 0}, ["is None"]),
        ({"step": 0}, ["is of type int"]),
        ({"layers.0.weight": np.s_[:, 5]}, ["'layers.0.weight'", "(3, 4)", "5 is out of bounds"]),
        ({"layers.0.weight": np.s_[:9]}, ["9 is out of bounds of an axis of 3"]),
        ({"layers.0.weight": np.s_[::-1]}, ["a step is at least 1"]),
        ({"layers.0.weight": np.s_[0, 0, 0]}, ["it has 3 indices"]),
        ({"layers.0.weight": np.s_[..., ...]}, ["twice"]),
        ({"layers.0.weight": [0, 1]}, ["ints, slices"]),
        ({"layers.0.weight": True}, ["out of bounds"]),
        ({"layers.0.weight": slice("a")}, ["other bounds than ints"]),
        ({"layers.0.weight": parts.split(0, 2, axis=2)}, ["no axis 2"]),
    ],
)
def test_a_part_that_is_not_there_names_what_is(part: Any, words: list[str]) -> None:
    with pytest.raises(InvalidArgumentError) as raised:
        take(MODEL, part)
    for word in words:
        assert word in str(raised.value)


def test_too_many_ranges_are_refused() -> None:
    array = np.zeros((RUNS_MAX + 1, 3, 4), "u1")
    assert take(array, np.s_[:, :2]).shape == (RUNS_MAX + 1, 2, 4)
    with pytest.raises(InvalidArgumentError, match=f"{2 * RUNS_MAX + 2} ranges of bytes"):
        take(array, np.s_[:, ::2, ::2])


@st.composite
def draw_index(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[Any, ...]]:
    """Draw a shape and an index into it."""
    shape = tuple(draw(st.lists(st.integers(0, 7), min_size=1, max_size=4)))
    index = tuple(draw(axis_index(length)) for length in shape)
    return shape, index[: draw(st.integers(0, len(index)))]


def axis_index(length: int) -> st.SearchStrategy[Any]:
    bounds = st.one_of(st.none(), st.integers(-length, length))
    slices = st.builds(slice, bounds, bounds, st.one_of(st.none(), st.integers(1, 4)))
    return slices if length == 0 else st.one_of(slices, st.integers(-length, length - 1))


@given(draw_index(), st.sampled_from(["u1", "f4", "c16"]))
def test_an_index_takes_what_numpy_takes(
    given_index: tuple[tuple[int, ...], tuple[Any, ...]], dtype: str
) -> None:
    shape, index = given_index
    array = np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(dtype)
    assert_same(take({"a": np.ones(3, "i2"), "w": array}, {"w": index})["w"], array[index])


@given(draw_index())
def test_the_ranges_of_an_index_are_as_few_as_may_be(
    given_index: tuple[tuple[int, ...], tuple[Any, ...]],
) -> None:
    shape, index = given_index
    axes = read_index(index, shape, "value")
    counts = [axis.count for axis in axes]
    runs = list_runs(axes, shape, 4, 0, 0)
    assert len(runs) <= np.prod([count for count in counts if count > 1][:-1], dtype=int)
    assert sum(run.run_bytes * run.many for run in runs) == 4 * np.prod(counts, dtype=int)


def test_whole_layers_are_one_range() -> None:
    value = {f"h.{n}": {"w": np.zeros((5, 5), "f4"), "b": np.zeros(3, "f4")} for n in range(40)}
    plan = plan_part(Source.of(value).columns, parts.take_share(list(value), 1, 4))
    assert len(plan.runs) == 1


def test_names_of_parts_differ_with_source_and_part() -> None:
    columns = Source.of({"w": np.zeros((4, 4))}).columns
    sources = [(b"a" * 28, 1), (b"a" * 28, 2), (b"b" * 28, 1)]
    names = {
        plan_part(columns, {"w": index}).name(Attempt(*source))
        for index in (np.s_[:2], np.s_[2:], np.s_[:, :2])
        for source in sources
    }
    assert len(names) == 9
    assert all(len(name) == 28 for name in names)


@st.composite
def draw_shardings(draw: st.DrawFn) -> tuple[tuple[int, int], Any, Any]:
    """Draw a shape, the cuts of its writers and those of its readers along both axes."""
    shape = draw(st.integers(1, 12)), draw(st.integers(1, 12))
    cuts = [
        tuple(sorted({0, length, *draw(st.lists(st.integers(0, length), max_size=3))}))
        for length in (*shape, *shape)
    ]
    return shape, cuts[:2], cuts[2:]


def boxes(cuts: Any) -> list[tuple[slice, slice]]:
    rows, columns = ([slice(*pair) for pair in pairwise(each)] for each in cuts)
    return [(row, column) for row in rows for column in columns]


@settings(max_examples=1000, deadline=None)
@given(draw_shardings(), st.booleans())
def test_any_sharding_is_read_in_any_other(
    drawn: tuple[tuple[int, int], Any, Any], in_dicts: bool
) -> None:
    shape, written, wanted = drawn
    array = np.arange(shape[0] * shape[1], dtype="f4").reshape(shape)
    pairs = [(box, bytes([number]) * 28) for number, box in enumerate(boxes(written))]
    sources: dict[bytes, Any] = {ref: array[box] for box, ref in pairs}
    if in_dicts and len(written[0]) + len(written[1]) > 4:
        composed = compose({"w": pairs, "again": [(np.s_[:2], b"x" * 28)]})
        sources[b"x" * 28] = np.ones(2)
        for box in boxes(wanted):
            assert_same(read(composed, sources, {"w": box})["w"], array[box])
        assert_same(read(composed, sources, "again"), np.ones(2))
        assert_same(read(composed, sources), {"w": array, "again": np.ones(2)})
        return
    composed = compose(pairs)
    for box in boxes(wanted):
        assert_same(read(composed, sources, box), array[box])
    assert_same(read(composed, sources), array)


def test_shards_of_state_dicts_follow_one_another() -> None:
    whole = {"w": np.arange(24.0).reshape(6, 4), "b": np.arange(6)}
    refs = [bytes([rank]) * 28 for rank in range(3)]
    sources = {
        ref: {name: np.array_split(array, 3)[rank] for name, array in whole.items()}
        for rank, ref in enumerate(refs)
    }
    composed = compose({name: parts.shards(refs, path=name) for name in whole})
    assert composed.refs == refs
    assert_same(read(composed, sources), whole)
    assert_same(read(composed, sources, ["b"]), {"b": whole["b"]})
    index = np.s_[1:5:2, -1]
    assert_same(read(composed, sources, {"w": index})["w"], whole["w"][index])
    columns = read(composed, sources, {"w": parts.split(1, 4, axis=1)})["w"]
    assert_same(columns, whole["w"][:, 1:2])


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"w": [(np.s_[:2], b"a" * 28), (np.s_[1:3], b"b" * 28)]}, ["overlap"]),
        ({"w": [(np.s_[:2], b"a" * 28), (np.s_[3:5], b"b" * 28)]}, ["leave gaps", "4 of the 5"]),
        ({"w": [(np.s_[:3], b"a" * 28)]}, ["shape (2,)", "does not fit its place"]),
        ({"w": [(np.s_[::2], b"a" * 28)]}, ["does not fit its place"]),
        ({"w": parts.shards([b"a" * 28, b"c" * 28])}, ["shard 1", "(2, 2)"]),
        ({"w": parts.shards([b"a" * 28, b"d" * 28])}, ["numpy int64", "numpy float32"]),
        ({"w": parts.shards([b"a" * 28], axis=1)}, ["no axis 1"]),
        ({"w": parts.shards([b"a" * 28], path="x")}, ["no part 'x'"]),
    ],
)
def test_wrong_shards_are_named(arrays: Any, words: list[str]) -> None:
    sources = {
        b"a" * 28: np.zeros(2, int),
        b"b" * 28: np.zeros(2, int),
        b"c" * 28: np.zeros((2, 2), int),
        b"d" * 28: np.zeros(2, "f4"),
    }
    with pytest.raises(InvalidArgumentError) as raised:
        read(compose(arrays), sources)
    for word in words:
        assert word in str(raised.value)


@pytest.mark.parametrize("arrays", [{}, {"w": []}, {"w": [1]}, {"w": [(1, 2, 3)]}])
def test_what_describes_no_array_is_refused(arrays: Any) -> None:
    with pytest.raises(InvalidArgumentError):
        compose(arrays)


def test_parts_of_a_composed_value_are_named_by_its_paths() -> None:
    composed = compose({"w": [(np.s_[:2], b"a" * 28)]})
    with pytest.raises(InvalidArgumentError, match="no part 'v'; there is 'w'"):
        read(composed, {b"a" * 28: np.zeros(2)}, "v")
    with pytest.raises(InvalidArgumentError, match="is no index"):
        read(compose([(np.s_[:2], b"a" * 28)]), {b"a" * 28: np.zeros(2)}, "v")


@pytest.mark.parametrize("wrong", [(-1, 2), (2, 2), (0, 0), (True, 2), ("0", 2)])
def test_ranks_that_there_are_not_are_refused(wrong: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="rank"):
        parts.split(*wrong)
    with pytest.raises(InvalidArgumentError, match="rank"):
        parts.take_share([1, 2, 3], *wrong)


@given(st.integers(0, 50), st.integers(1, 9))
def test_shares_are_those_of_array_split(length: int, count: int) -> None:
    items = list(range(length))
    shares = [parts.take_share(items, rank, count) for rank in range(count)]
    assert shares == [each.tolist() for each in np.array_split(np.array(items, int), count)]


def test_operations_beside_each_other_share_their_rounds() -> None:
    def count(upto: int) -> Steps[int]:
        for _ in range(upto):
            step: Any = [upto]
            yield step
        return upto

    steps = in_rounds([count(2), count(0), count(3)])
    rounds: list[Any] = []
    answer: Any = None
    while True:
        try:
            step = steps.send(answer)
        except StopIteration as end:
            assert end.value == [2, 0, 3]
            break
        rounds.append(list(step))
        answer = step
    assert rounds == [[2, 3], [2, 3], [3]]


def test_a_part_of_encoded_bytes_needs_no_second_encoding() -> None:
    encoded = codec.encode({"w": np.arange(4)})
    assert_same(take(encoded, "w"), np.arange(4))
