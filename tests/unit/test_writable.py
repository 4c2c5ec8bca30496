"""What is written in place is sealed by its caller's limit, though its node does not answer."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from hoplite_ray.errors import GetTimeoutError, NodeLostError
from hoplite_ray.pending import Pending
from hoplite_ray.plugin.handle.array import Array
from hoplite_ray.plugin.handle.writable import Writable
from hoplite_ray.plugin.seams import core as seams
from hoplite_ray.plugin.surface import api, arguments, awaiting, putting
from hoplite_ray.unsealed import Unsealed
from hoplite_ray.values.codec import Template
from hoplite_ray.values.deadlines import deadline_in
from hoplite_ray.values.layout import Layout

SHORT_S = 0.05
LONG_S = 3600.0
LAYOUT = Layout.of_array(4, "float32", "numpy")
OBJECT_ID = b"\1" * 28


class Node:
    """Answers no seal; `limits_s` are those of the calls that have waited for it."""

    def __init__(self, failure: Exception | None = None) -> None:
        self.connection = seams.connection()
        self.limits_s: list[float | None] = []
        self._failure = failure

    def store_by(self, deadline: float | None) -> Any:
        return self

    def begin_empty(self, *what: Any, **how: Any) -> Unsealed:
        pending: Any = SimpleNamespace(result=self._never)

        def begin_seal() -> Pending[None]:
            if self._failure is not None:
                raise self._failure
            return pending  # type: ignore[no-any-return]

        return Unsealed(Template(LAYOUT, []), bytearray(LAYOUT.size_bytes), begin_seal)

    def put(self, *what: Any, timeout_s: float | None, **how: Any) -> None:
        self._never(timeout_s)

    def _never(self, timeout_s: float | None) -> None:
        self.limits_s.append(timeout_s)
        assert timeout_s is not None, "this waits for ever"
        raise GetTimeoutError("the node has not answered")


def written(node: Any) -> Array:
    """What `hop.empty` has returned."""
    writing = Writable(node, OBJECT_ID, 1, Template(LAYOUT, []), timeout_s=SHORT_S)
    return Array(OBJECT_ID, 1, LAYOUT, None, writing=writing)


VERBS: dict[str, Any] = {
    "put": lambda array: putting.put(array, timeout_s=SHORT_S),
    "array": lambda array: api.array(array, timeout_s=SHORT_S),
    "get": lambda array: array._find_bytes(deadline_in(SHORT_S)),
    "put_async": lambda array: asyncio.run(awaiting.put_async(array, timeout_s=SHORT_S)),
    "array_async": lambda array: asyncio.run(awaiting.array_async(array, timeout_s=SHORT_S)),
}


@pytest.mark.parametrize("verb", VERBS.values(), ids=VERBS)
@pytest.mark.parametrize("failure", [None, NodeLostError("gone")], ids=["stopped", "gone"])
def test_what_seals_takes_its_limit(
    monkeypatch: pytest.MonkeyPatch, verb: Any, failure: Exception | None
) -> None:
    """Both for a node that does not answer, and for one whose next life has not begun."""
    monkeypatch.setattr(arguments, "need_ray", lambda: None)
    monkeypatch.setattr("ray.put", lambda value: pytest.fail("what is not sealed is pickled"))
    node = Node(failure)
    array = written(node)
    for tries in (1, 2):  # what is given up may be repeated
        with pytest.raises(GetTimeoutError):
            verb(array)
        assert "not sealed" in repr(array)
        assert len(node.limits_s) == tries
    assert all(limit_s is not None and limit_s <= SHORT_S for limit_s in node.limits_s)


def test_a_seal_of_another_thread_is_waited_for_by_the_limit() -> None:
    asked, ends = threading.Event(), threading.Event()
    node = Node()

    def held(timeout_s: float | None) -> None:
        asked.set()
        ends.wait(LONG_S)

    node._never = held  # type: ignore[method-assign]
    array = written(node)
    other = threading.Thread(target=array._seal, args=(deadline_in(LONG_S),), daemon=True)
    other.start()
    try:
        assert asked.wait(LONG_S)
        with pytest.raises(GetTimeoutError, match="another thread"):
            api.array(array, timeout_s=SHORT_S)
    finally:
        ends.set()
        other.join()
