"""hop.Array as Ray pickles it, without Ray: what a result of handles costs."""

from __future__ import annotations

import pickle
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import ray

from hoplite_ray.plugin.handle import array as arrays
from hoplite_ray.plugin.handle import fetching
from hoplite_ray.plugin.handle.array import PADDED_BYTES, Array, PutHandle
from hoplite_ray.plugin.handle.messages import Gathered
from hoplite_ray.plugin.process.known_puts import KnownPut, KnownPuts
from hoplite_ray.plugin.seams import core as seams
from hoplite_ray.plugin.surface import api
from hoplite_ray.values.layout import Layout

TASK = bytes(24)


@pytest.fixture
def _in_a_task(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process pickles as Ray does in the task TASK."""
    monkeypatch.setattr(seams, "is_ray_pickling", lambda: True)
    monkeypatch.setattr(seams, "task_id", lambda: TASK)


def made(count: int) -> list[Array]:
    """Handles of values that are large enough for padding."""
    layout = Layout.of(np.zeros(arrays.SMALL_BYTES_MAX + 1, np.uint8))
    return [Array(bytes(27) + bytes([n]), 1, layout, None, made_by=TASK) for n in range(count)]


@pytest.mark.usefixtures("_in_a_task")
def test_a_result_of_many_handles_is_padded_once() -> None:
    """Case review_07."""
    one, fifty = (len(pickle.dumps(made(count))) for count in (1, 50))
    assert one > PADDED_BYTES
    assert (fifty - one) / 49 < 200


@pytest.mark.usefixtures("_in_a_task")
def test_a_handle_of_very_many_leaves_is_small() -> None:
    layout = Layout.of({f"model.layers.{n}.weight": np.zeros(3) for n in range(40_000)})
    for handle in (Array(bytes(28), 1, layout, None), PutHandle(1, layout)):
        assert len(pickle.dumps(handle)) < 4096
    again = pickle.loads(pickle.dumps(Array(bytes(28), 1, layout, None)))
    assert repr(again).startswith("<hoplite_ray.Array dict of 40000 leaves ")
    assert again.nbytes == layout.size_bytes


@pytest.mark.parametrize(
    ("module", "name", "arguments", "value"),
    [
        ("hoplite_ray.plugin.array", "_taken", "(I5\nt", 5),
        ("hoplite_ray.plugin.collecting", "Gathered", "((lt", Gathered()),
    ],
)
def test_pickles_on_disk_are_read_by_the_names_in_them(
    module: str, name: str, arguments: str, value: object
) -> None:
    found = pickle.loads(f"c{module}\n{name}\n{arguments}R.".encode())
    assert (type(found), found) == (type(value), value)


def test_a_get_of_many_asks_the_node_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[list[bytes], bool]] = []

    def begin_gets(object_ids: list[bytes], *, exist: bool) -> list[Any]:
        asked.append((object_ids, exist))
        return [SimpleNamespace(of=each) for each in object_ids]

    known = ray.ObjectRef(bytes(range(28)))
    store = SimpleNamespace(begin_gets=begin_gets)
    here = SimpleNamespace(store_by=lambda deadline: store, known_puts=KnownPuts())
    here.known_puts.add(known.binary(), KnownPut(1))
    monkeypatch.setattr(api, "is_attached", lambda: True)
    for module in (api, fetching):
        monkeypatch.setattr(module, "attachment", lambda deadline: here)
    first, second, third = made(3)
    later, pending_one = (ray.ObjectRef(bytes([n]) * 28) for n in (1, 2))
    begun = api.begin_fetches([first, known, later, pending_one], None)
    assert asked == [([first._object_id, known.binary()], True)]
    assert [each.pending.of for each in begun[:2]] == asked[0][0]
    assert begun[2:] == [later, pending_one]
    filled = api.fill_in([begun[0], later], {later: Gathered([second, third])}, None)
    assert asked[1:] == [([second._object_id, third._object_id], True)]
    assert filled[0] is begun[0]
    assert [each.pending.of for each in filled[1]] == asked[1][0]
