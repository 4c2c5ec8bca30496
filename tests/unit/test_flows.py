"""What two looks at a cluster say: rates, kinds of transfer, and the trees they make."""

from __future__ import annotations

from typing import Any

from hoplite_ray.cli.cluster.survey import NodeReport, Survey
from hoplite_ray.cli.live.flows import Snapshot, nodes_of, transfers_of, trees_of
from hoplite_ray.cli.live.top import tree_lines
from hoplite_ray.control import control_pb2 as pb
from hoplite_ray.control.view import View

_A = b"a" * 28


def look(at_s: float, *edges: tuple[int, int, int], received: int = 0) -> Snapshot:
    """A look at node 1 to 3: (sender, receiver, bytes so far) of a 100-byte object."""
    nodes = [
        NodeReport(
            node,
            1,
            f"10.0.0.{node}:1",
            state="serving",
            counters={"link_bytes_received": received * node, "link_bytes_sent": 0},
        )
        for node in (1, 2, 3)
    ]
    seen = Snapshot(Survey(View(), nodes), at_s=dict.fromkeys((1, 2, 3), at_s))
    for sender, receiver, landed in edges:
        row = pb.Transfer(
            object_id=_A,
            target_id=_A,
            kind="copy",
            sender=sender,
            stripe_count=1,
            landed_bytes=landed,
            size_bytes=100,
        )
        seen.transfers[_A, _A, sender, receiver, 0] = row
    return seen


def drawn(rows: list[dict[str, Any]]) -> list[tuple[int, str]]:
    """The one tree of `rows`."""
    [tree] = trees_of(rows)
    return [(depth, node) for depth, node, _ in tree["lines"]]


def test_rates_are_what_came_between_two_looks() -> None:
    before, now = look(10.0, (1, 2, 20), received=5), look(12.0, (1, 2, 60), received=11)
    [row] = transfers_of(before, now)
    assert (row["bytes_per_s"], row["landed_bytes"], row["kind"]) == (20.0, 60, "copy")
    assert [node["in_bytes_per_s"] for node in nodes_of(before, now)] == [3.0, 6.0, 9.0]


def test_an_edge_that_moved_is_drawn_where_it_is_now_without_a_rate() -> None:
    before = look(10.0, (1, 2, 20), (2, 3, 10))
    now = look(11.0, (1, 2, 60), (1, 3, 30))
    rows = transfers_of(before, now)
    assert [(row["receiver"], row["bytes_per_s"]) for row in rows] == [("2", 40.0), ("3", None)]
    assert {row["kind"] for row in rows} == {"broadcast"}
    assert drawn(transfers_of(before, before)) == [(0, "1"), (1, "2"), (2, "3")]
    assert drawn(rows) == [(0, "1"), (1, "2"), (1, "3")]


def test_a_node_that_answers_no_more_or_lives_again_has_no_rate() -> None:
    before, now = look(10.0, received=5), look(11.0, received=7)
    del now.at_s[1]
    now.seen.nodes[1].incarnation = 2
    assert [node["in_bytes_per_s"] for node in nodes_of(before, now)] == [None, None, 6.0]


def test_a_ring_of_two_moments_is_drawn_once() -> None:
    ring = look(10.0, (1, 2, 20), (2, 1, 10))
    assert drawn(transfers_of(ring, ring)) == [(0, "1"), (1, "2"), (2, "1")]


def test_a_tree_is_drawn_with_names_where_there_are_any() -> None:
    before, now = look(10.0, (1, 2, 20)), look(12.0, (1, 2, 60), (2, 3, 10))
    [tree] = trees_of(transfers_of(before, now))
    assert tree_lines(tree, {"1": "head"}) == [
        "head",
        "  └─ 2  60 %  20 B/s",
        "    └─ 3  10 %  -",
    ]
