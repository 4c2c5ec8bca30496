"""The copies of a table's values, without a store: what a put that begins again leaves behind."""

from __future__ import annotations

from typing import Any

import pytest

from hoplite_ray.errors import NodeLostError, ObjectLostError
from hoplite_ray.plugin.tables import values as values_module
from hoplite_ray.plugin.tables.janitor import Janitor
from hoplite_ray.plugin.tables.values import Values
from hoplite_ray.tables.log import value_ids

NUMBERS = (3, 4)


class Tries(Values):
    """Has the ends of its tries given; each is the nodes of the copies, or an error."""

    def __init__(self, ends: list[tuple[int, ...] | Exception]) -> None:
        super().__init__("t", Janitor("t"))
        self.ends = ends

    def _store_once(self, *_: Any) -> tuple[int, ...]:
        end = self.ends.pop(0)
        if isinstance(end, Exception):
            raise end
        return end


class Here:
    """An attachment that only deletes."""

    def __init__(self) -> None:
        self.deleted: list[bytes] = []

    def delete(self, object_id: bytes, *, timeout_s: float | None) -> None:
        self.deleted.append(object_id)


@pytest.mark.parametrize(
    ("ends", "surplus"),
    [
        ([(1, 2, 3)], []),
        ([(1, 2)], []),
        ([ObjectLostError("the node has died"), (1, 2, 3)], []),
        ([ObjectLostError("the node has died"), (1, 2)], [2]),
        ([NodeLostError("the node has died"), ObjectLostError("again"), (1,)], [1, 2]),
    ],
)
def test_a_put_that_begins_again_with_fewer_nodes_leaves_no_copy_without_a_name(
    monkeypatch: pytest.MonkeyPatch,
    ends: list[tuple[int, ...] | Exception],
    surplus: list[int],
) -> None:
    here = Here()
    monkeypatch.setattr(values_module, "attachment", lambda deadline: here)
    expected = ends[-1]
    assert Tries([*ends]).store("w", NUMBERS, [], 3, None) == expected
    ids = {number: value_ids("t", "w", number, 3) for number in NUMBERS}
    assert here.deleted == [ids[number][copy] for number in NUMBERS for copy in surplus]
