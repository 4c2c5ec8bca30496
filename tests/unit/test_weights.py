"""Weights without a cluster: what a name may be, what is read-only, and when a fetch begins."""

from __future__ import annotations

import io
import pickle
from concurrent.futures import Future
from typing import Any

import numpy as np
import pytest
from hypothesis import given

import hoplite_ray as hop
from hoplite_ray.plugin.tables import weights as weights_module
from hoplite_ray.serve import stage
from hoplite_ray.serve.stages import declare
from hoplite_ray.tables.log import KEY_BYTES_MAX, Entry
from hoplite_ray.tables.versions import Version, Versions
from hoplite_ray.values.codec import decode_copy, encode, freeze_arrays
from hoplite_ray.values.trees.tree import map_leaves
from tests.unit.values import assert_same, values

KEEP_US = 1_000


def find_arrays(value: Any) -> list[np.ndarray]:
    found: list[np.ndarray] = []
    map_leaves(value, found.append)
    return found


@given(values)
def test_a_value_comes_back_read_only(value: Any) -> None:
    back = decode_copy(encode(value))
    assert_same(back, value)
    before = [array.tobytes() for array in find_arrays(back)]
    freeze_arrays(back)
    for array, data in zip(find_arrays(back), before, strict=True):
        assert not array.flags.writeable
        assert array.tobytes() == data


def test_a_name_is_needed_outside_of_a_stage_that_names_its_weights() -> None:
    with pytest.raises(hop.InvalidArgumentError, match=r"needs a name here: .*weights='encoder'"):
        hop.weights()


@pytest.mark.parametrize("name", ["", 7, "x" * (KEY_BYTES_MAX + 1)])
def test_what_is_no_name_is_refused(name: Any) -> None:
    with pytest.raises(hop.InvalidArgumentError, match="is no key of a table"):
        hop.weights(name)


@pytest.fixture
def note_beginnings(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names whose fetch has begun early; none is fetched."""
    names: list[str] = []
    monkeypatch.setattr(declare, "is_in_replica", lambda: True)
    monkeypatch.setattr(declare, "begin_early", names.append)
    return names


class Model:
    """A class whose import is seen, in place of one by the import system."""

    imported_after: tuple[str, ...] | None = None

    def __call__(self, queries: list[Any]) -> list[Any]:
        return queries


class Importing(pickle.Unpickler):
    """Notes which fetches have begun when it comes to the user's class."""

    begun: list[str]

    def find_class(self, module: str, name: str, /) -> Any:
        if name == Model.__name__:
            Model.imported_after = (*self.begun,)
        return super().find_class(module, name)


def test_a_stage_begins_its_fetch_before_its_class_is_imported(note_beginnings: list[str]) -> None:
    made = stage(weights="encoder", max_batch=4)(Model).bind().after("other")
    unpickler = Importing(io.BytesIO(pickle.dumps(made)))
    unpickler.begun = note_beginnings
    assert unpickler.load() == made
    assert Model.imported_after == ("encoder",)
    again = pickle.loads(pickle.dumps(pickle.loads(pickle.dumps(made))))
    assert again == made
    assert note_beginnings == 3 * ["encoder"], "also when it is pickled again"


def test_a_stage_without_weights_begins_nothing(note_beginnings: list[str]) -> None:
    made = stage(Model)
    assert pickle.loads(pickle.dumps(made)) == made
    assert note_beginnings == []


def test_elsewhere_than_in_a_replica_nothing_begins(
    note_beginnings: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(declare, "is_in_replica", lambda: False)
    pickle.loads(pickle.dumps(stage(weights="encoder")(Model)))
    assert note_beginnings == []


def test_options_keep_or_change_the_weights() -> None:
    made = stage(weights="encoder")(Model)
    assert made.options(max_batch=2).weights == "encoder"
    assert made.options(weights="other").weights == "other"


@pytest.mark.parametrize(
    ("name", "error", "why"),
    [
        (7, TypeError, r"stage Model: weights=7 is no name; publish"),
        ("", ValueError, r"stage Model: weights='' is no name of 1 to 1024 bytes"),
        ("ü" * 513, ValueError, r"of 1 to 1024 bytes"),
    ],
)
def test_weights_that_are_no_name_are_refused_at_the_stage(
    name: Any, error: type[Exception], why: str
) -> None:
    with pytest.raises(error, match=why):
        stage(weights=name)(Model)


@pytest.fixture
def note_fetches(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of fetches that threads have begun; each ends at once with its name."""
    names: list[str] = []

    def fetch(name: str, future: Future[Any]) -> None:
        names.append(name)
        future.set_result(f"value of {name}")

    monkeypatch.setattr(weights_module, "_fetch_early", fetch)
    monkeypatch.setattr(weights_module, "_declared", None)
    monkeypatch.setattr(weights_module, "_early", {})
    return names


def take(name: str) -> Any:
    """Return what a call of `weights` waits for first, if a fetch has begun early."""
    steps = weights_module._take(name)
    step = next(steps)
    assert isinstance(step, Future)
    return step.result(10)


def test_the_first_call_takes_the_fetch_that_has_begun(note_fetches: list[str]) -> None:
    weights_module.begin_early("encoder")
    with weights_module.declare("encoder"):
        assert weights_module._choose(None) == "encoder"
        assert take("encoder") == "value of encoder"
        assert not weights_module._early
    assert note_fetches == ["encoder"], "it began once"
    assert weights_module._choose(None) == "encoder", "also after the constructor"


@pytest.mark.parametrize(
    "error", [hop.GetTimeoutError("no weights 'encoder'"), hop.ControlError("no answer")]
)
def test_a_call_fetches_for_itself_if_the_early_fetch_has_failed(
    note_fetches: list[str], monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def read(ops: Any, name: str, limit: float) -> Any:
        return f"value of {name}"
        yield

    monkeypatch.setattr(weights_module, "_open", lambda: None)
    monkeypatch.setattr(weights_module, "_read", read)
    failed: Future[Any] = Future()
    failed.set_exception(error)
    weights_module._early["encoder"] = failed
    steps = weights_module._take("encoder")
    assert next(steps) is failed
    with pytest.raises(StopIteration) as end:
        steps.throw(error)
    assert end.value.value == "value of encoder"


def test_a_call_waits_for_the_early_fetch_as_long_as_its_own_limit(
    note_fetches: list[str],
) -> None:
    weights_module._early["encoder"] = Future()
    steps = weights_module._take("encoder")
    next(steps)
    with pytest.raises(hop.GetTimeoutError, match="'encoder' have not come in time"):
        steps.throw(hop.GetTimeoutError("the caller's"))


def test_a_fetch_that_no_call_takes_is_dropped(note_fetches: list[str]) -> None:
    with weights_module.declare("encoder"):
        assert weights_module._early
    assert not weights_module._early


def version(number: int, time_us: int) -> Version:
    return Version(number, time_us, "writer", number, 1, (1,))


def test_a_drop_is_due_when_a_record_would_drop_and_no_more_afterwards() -> None:
    versions = Versions(1, KEEP_US)
    versions.add("a", version(1, 0))
    assert not versions.is_drop_due(10 * KEEP_US), "the newest is never dropped"
    versions.add("a", version(2, 500))
    assert not versions.is_drop_due(500 + KEEP_US - 1)
    assert versions.is_drop_due(500 + KEEP_US)
    dropped = versions.drop_old((Entry("b", 0),), 500 + KEEP_US)
    assert [each.number for each in dropped] == [1]
    assert not versions.is_drop_due(500 + KEEP_US)
