"""The nodes that hold an object, by what the members say; and a node that can't be asked."""

from __future__ import annotations

from pathlib import Path

import pytest

from hoplite_ray.control import control_pb2 as pb
from hoplite_ray.control.holders import IDS_MAX, Holder, collect_holders, find_holders
from hoplite_ray.control.view import Member
from hoplite_ray.errors import InvalidArgumentError, NodeLostError

FIRST, SECOND = (Member(n, 1, f"10.0.0.{n}:1", (f"10.0.0.{n}:7", "10.1.0.1:7")) for n in (1, 2))


def row(object_id: bytes, state: str) -> pb.Object:
    return pb.Object(object_id=object_id, state=state)


@pytest.mark.parametrize(
    ("state", "is_complete"),
    [
        ("whole", True),
        ("spilled", True),
        ("partial", False),
        ("writing", False),
        ("wanted", None),
        ("of a later release", None),
    ],
)
def test_a_state_of_an_object_makes_a_holder(state: str, is_complete: bool | None) -> None:
    found = collect_holders([b"a"], {FIRST: [row(b"a", state)]})
    expected = [] if is_complete is None else [Holder(1, "10.0.0.1:7", is_complete)]
    assert found == {b"a": expected}


def test_complete_holders_come_first_and_unknown_objects_have_none() -> None:
    answers = {
        FIRST: [row(b"a", "partial"), row(b"c", "whole")],
        SECOND: [row(b"a", "whole"), row(b"not asked for", "whole")],
    }
    found = collect_holders([b"a", b"b", b"c"], answers)
    assert list(found) == [b"a", b"b", b"c"]
    assert [each.node_id for each in found[b"a"]] == [2, 1]
    assert found[b"b"] == [] and [each.node_id for each in found[b"c"]] == [1]


def test_too_many_objects_are_refused() -> None:
    ids = [b"%28d" % number for number in range(IDS_MAX + 1)]
    with pytest.raises(InvalidArgumentError, match="10001 objects are too many to locate at once"):
        find_holders(Path("/nowhere"), ids, 1.0)


def test_a_directory_without_a_node_is_named(tmp_path: Path) -> None:
    with pytest.raises(NodeLostError, match=f"{tmp_path} tells of no node"):
        find_holders(tmp_path, [bytes(28)], 1.0)
