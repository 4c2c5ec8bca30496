"""The replica of a query with Arrays: its node has most of their bytes, unless it is full."""

from __future__ import annotations

import itertools
import random
import threading
from collections import Counter, defaultdict
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hoplite_ray.plugin.handle.array import SMALL_BYTES_MAX, Array
from hoplite_ray.plugin.seams import core as seams
from hoplite_ray.serve import pipeline, stage
from hoplite_ray.serve.edge.frames import Packed
from hoplite_ray.serve.routing.affinity import Calls
from hoplite_ray.serve.routing.handoff import Stored
from hoplite_ray.serve.routing.keys import KeyedAnswer, KeyRule, NearRule
from hoplite_ray.serve.routing.nearness import Arrays, Nearness, Part, rank_near
from hoplite_ray.serve.stages.compute import Compute
from hoplite_ray.serve.stages.deploy import find_keys
from hoplite_ray.values.layout import Layout

IDLE = Calls(0, 0)
NODES = {"a1": "a", "a2": "a", "b1": "b", "c1": "c", "lost": ""}
FULL = 2 * 8  # calls to a replica whose stage has max_batch=8, while the others have none
LARGE = Layout.of(np.zeros(SMALL_BYTES_MAX + 1, np.uint8))


def idle(*replicas: str) -> dict[str, Calls]:
    return dict.fromkeys(replicas or NODES, IDLE)


def new_sender(**options: Any) -> Nearness:
    return Nearness(**{"max_batch": 8, "nodes": NODES, "draw": random.Random(0).random, **options})


def arrays(**sizes: int) -> Arrays:
    """Return Arrays by their names, which begin with the nodes where they were made."""
    return tuple(Part(name.encode(), size, name[0]) for name, size in sizes.items())


Held = st.dictionaries(st.sampled_from([*NODES]), st.integers(0, 9), min_size=1)
SomeCalls = st.builds(Calls, st.integers(0, 5), st.integers(0, 3))


@given(held=Held, data=st.data())
def test_the_rank_of_each_replica(held: dict[str, int], data: st.DataObject) -> None:
    calls = {each: data.draw(SomeCalls) for each in held}
    full = data.draw(st.sets(st.sampled_from([*held])))
    ranked = rank_near(held, calls, full, lambda: 0.0)
    assert sorted(ranked) == sorted(held)
    for one, other in itertools.pairwise(ranked):
        assert (one in full) <= (other in full), "a replica with room beats a full one"
        if (one in full) == (other in full):
            assert one in full or held[one] >= held[other]
            if one in full or held[one] == held[other]:
                assert sum(calls[one]) <= sum(calls[other])


def test_chance_decides_among_equals_only() -> None:
    held, draw = {"a1": 1, "a2": 1, "b1": 0}, random.Random(0).random
    first = Counter(rank_near(held, idle(*held), (), draw)[0] for _ in range(200))
    assert first.keys() == {"a1", "a2"} and min(first.values()) > 50


@pytest.mark.parametrize(
    ("made", "chosen"),
    [
        ({"a": 1}, {"a1", "a2"}),
        ({"b": 1}, {"b1"}),
        ({"a": 5, "b": 6}, {"b1"}),
        ({"a": 5, "b": 6, "a_other": 2}, {"a1", "a2"}),
        ({"d": 9, "c": 1}, {"c1"}),
        ({"d": 9}, {*NODES}),
    ],
)
def test_the_node_with_the_most_bytes_is_taken(made: dict[str, int], chosen: set[str]) -> None:
    query = arrays(**made)
    assert {new_sender(draw=random.Random(n).random).choose(query, idle()) for n in range(40)} == (
        chosen
    )


def test_an_array_of_no_known_origin_counts_nowhere() -> None:
    query = Part(b"unknown", 100, None), Part(b"known", 1, "c")
    assert new_sender().choose(query, idle()) == "c1"


def test_a_node_to_which_an_array_was_sent_has_it_from_then_on() -> None:
    sender, query = new_sender(), arrays(d=9)
    first = sender.choose(query, idle("b1", "c1"))
    assert [sender.choose(query, idle("b1", "c1")) for _ in range(20)] == [first] * 20
    other = "c1" if first == "b1" else "b1"
    lighter, heavier = (Part(b"%d" % size, size, NODES[other]) for size in (8, 10))
    assert sender.choose((*query, lighter), idle("b1", "c1")) == first
    assert sender.choose((*query, heavier), idle("b1", "c1")) == other


@given(
    queries=st.lists(
        st.lists(st.integers(0, 7), min_size=1, max_size=3, unique=True), min_size=1, max_size=30
    ),
    seed=st.integers(0, 99),
)
@settings(max_examples=60)
def test_no_replica_would_have_fetched_less_while_all_are_free(
    queries: list[list[int]], seed: int
) -> None:
    """The test keeps its own account of the nodes that have each Array: eight, of 1 to 128."""
    sender = new_sender(draw=random.Random(seed).random)
    parts = [Part(bytes([n]), 2**n, "abcd"[n % 4]) for n in range(8)]
    copies: dict[str | None, set[Part]] = defaultdict(set)
    for part in parts:
        copies[part.origin].add(part)
    for query in queries:
        wanted = tuple(parts[n] for n in query)

        def count_fetched(replica: str, wanted: Arrays = wanted) -> int:
            has = copies[NODES[replica]] if NODES[replica] else ()
            return sum(part.size_bytes for part in wanted if part not in has)

        chosen = sender.choose(wanted, idle())
        assert count_fetched(chosen) == min(map(count_fetched, NODES))
        if NODES[chosen]:
            copies[NODES[chosen]] |= {*wanted}


def test_with_a_replica_where_each_array_is_made_nothing_is_fetched() -> None:
    sender = new_sender()
    for number in range(100):
        node = "abc"[number % 3]
        assert NODES[sender.choose((Part(b"%d" % number, 9, node),), idle())] == node


@pytest.mark.parametrize(
    ("own", "others", "is_near"),
    [
        (Calls(FULL - 1, 0), IDLE, True),
        (Calls(FULL, 0), IDLE, False),
        (Calls(FULL + 8, 0), Calls(5, 0), True),
        (Calls(FULL + 10, 0), Calls(5, 0), False),
        (Calls(0, 1), IDLE, True),
        (Calls(0, 2), IDLE, False),
    ],
)
def test_a_full_or_silent_replica_beats_nearness(own: Calls, others: Calls, is_near: bool) -> None:
    """The bound is that of keys (test_serve_affinity.py)."""
    calls = {**dict.fromkeys(("a1", "c1"), others), "b1": own}
    assert (new_sender().choose(arrays(b=1), calls) == "b1") is is_near


def test_among_replicas_that_are_not_full_the_most_bytes_win_again() -> None:
    calls = {"a1": IDLE, "b1": Calls(50, 0), "c1": Calls(9, 0)}
    assert new_sender().rank(arrays(b=9, c=5), calls) == ("c1", "a1", "b1")


def test_among_full_replicas_the_one_with_the_fewest_calls_is_taken() -> None:
    calls = {"a1": Calls(90, 2), "b1": Calls(10, 4), "c1": Calls(40, 2)}
    assert new_sender(max_batch=1).rank(arrays(a=1), calls) == ("b1", "c1", "a1")


def test_a_silent_replica_is_asked_now_and_then_while_nothing_is_open_there() -> None:
    sender = new_sender(max_batch=64)
    calls = {**idle("a1", "c1"), "b1": Calls(0, 5)}
    parts = [(Part(b"%d" % n, 1, "b"),) for n in range(40)]
    chosen = [sender.choose(each, calls) for each in parts]
    assert [number for number, each in enumerate(chosen) if each == "b1"] == [16, 33]
    calls["b1"] = Calls(1, 5)
    assert "b1" not in {sender.choose(each, calls) for each in parts}


def test_a_sender_remembers_so_many_arrays_and_the_least_recent_one_goes() -> None:
    sender, there = new_sender(arrays_max=3), idle("b1", "c1")
    query = {n: (Part(bytes([n]), 1, "d"),) for n in range(5)}
    first = {n: sender.choose(query[n], there) for n in range(3)}
    assert sender.choose(query[0], there) == first[0]
    sender.choose(query[3], there)  # in place of 1
    assert len(sender) == 3
    assert [sender.choose(query[n], there) for n in (0, 2)] == [first[0], first[2]]


def test_an_array_at_its_origin_takes_no_room() -> None:
    sender = new_sender()
    sender.choose(arrays(a=1, b=1), idle("a1"))
    assert len(sender) == 1, "the copy of b on the node a"


# The Arrays of a query, and the choosers that learn of them.


@pytest.fixture
def origins(monkeypatch: pytest.MonkeyPatch) -> dict[Any, str]:
    """The owners' nodes, by anchor, in place of Ray's core."""
    known: dict[Any, str] = {}
    monkeypatch.setattr(seams, "owner_node_id", known.get)
    return known


def handle(name: bytes, anchor: Any) -> Array:
    return Array(name.ljust(28), 1, LARGE, anchor)


@pytest.mark.parametrize("wrap", [lambda value: value, Packed], ids=["a query", "an answer"])
def test_the_arrays_of_a_value(origins: dict[Any, str], wrap: Any) -> None:
    origins["one"] = "a"
    small = Array(bytes(28), 1, Layout.of(np.zeros(1)), None, data=bytes(8))
    one, other = handle(b"one", "one"), handle(b"other", "other")
    value = {"a": [one, other], "again": handle(b"one", "one"), "small": small, "b": np.ones(9)}
    size = LARGE.size_bytes
    assert NearRule("next", 8).derive(wrap(value)) == (
        Part(b"one".ljust(28), size, "a"),
        Part(b"other".ljust(28), size, None),
    )
    assert NearRule("next", 8).derive(wrap({"small": small, "b": np.ones(9)})) is None


def test_a_value_in_the_store_is_one_array(origins: dict[Any, str]) -> None:
    origins["stored"] = "a"
    stored = Stored(b"stored", ["its value"], handle(b"stored", "stored"))
    assert NearRule("next", 8).derive(stored) == (Part(b"stored".ljust(28), LARGE.size_bytes, "a"),)


def test_what_can_not_be_sent_has_no_arrays_and_the_call_says_why() -> None:
    assert NearRule("next", 8).derive([threading.Lock()]) is None


class Answers:
    def __call__(self, queries: list[Any]) -> list[Any]:
        return queries


def test_an_answer_goes_out_with_its_arrays_and_its_keys(origins: dict[Any, str]) -> None:
    origins["one"] = "a"
    rules = {"near": NearRule("near", 8), "keyed": KeyRule("keyed", lambda each: each[0], 8)}
    compute = Compute(stage(Answers), "before", Answers(), "an answer", {"": rules})
    answer = compute._pack(["key", handle(b"one", "one")], "")
    compute.close()
    assert isinstance(answer, KeyedAnswer)
    assert answer.keys["near"] == (Part(b"one".ljust(28), LARGE.size_bytes, "a"),)
    assert isinstance(answer.keys["keyed"], bytes)


def test_a_stage_says_how_its_replicas_are_chosen() -> None:
    near, keyed = stage(near="data", max_batch=4)(Answers), stage(key=len)(Answers)
    assert near.options(late="drop").near == near.bind().near == "data"
    assert stage(Answers).options(near="data").near == "data" and keyed.near is None
    rules = find_keys({"near": near, "keyed": keyed, "plain": stage(Answers)})
    assert rules == {"near": NearRule("near", 4), "keyed": KeyRule("keyed", len, 32)}
    bound = pipeline(near=near, plain=stage(Answers).after("near"))._bound_deployment
    assert bound.init_kwargs["keys"] == {"near": NearRule("near", 4)}


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"near": "me"}, r"stage Answers: near='me' is none of \['data'\]"),
        ({"near": True}, r"stage Answers: near=True is none of \['data'\]"),
        (
            {"near": "data", "key": len},
            "stage Answers: key= and near= both choose the replica of a query; give one of them",
        ),
    ],
)
def test_mistakes_are_told_at_the_decoration(options: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        stage(**options)(Answers)
    with pytest.raises(ValueError, match=why):
        stage(Answers).options(**options)
