"""Arrays that exist are filled from a value of the same structure, or are left as they were."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from hoplite_ray.errors import InvalidArgumentError
from hoplite_ray.values.filling import fill

torch = pytest.importorskip("torch")

_ARRAYS = hnp.arrays(
    st.sampled_from(["f4", "i8", "u1", "?"]), hnp.array_shapes(min_dims=0, max_dims=3, max_side=4)
)
_VALUES = st.recursive(
    _ARRAYS,
    lambda inner: st.one_of(
        st.dictionaries(st.text(max_size=3), inner, max_size=3),
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
    ),
    max_leaves=8,
)


def _make_zeros(value: Any) -> Any:
    if isinstance(value, dict):
        return OrderedDict((key, _make_zeros(each)) for key, each in reversed(value.items()))
    if isinstance(value, (list, tuple)):
        return [_make_zeros(each) for each in value]
    return np.zeros_like(value)


def _leaves(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [leaf for key in sorted(value) for leaf in _leaves(value[key])]
    if isinstance(value, (list, tuple)):
        return [leaf for each in value for leaf in _leaves(each)]
    return [value]


@given(_VALUES)
def test_the_target_holds_what_the_value_holds(value: Any) -> None:
    target = _make_zeros(value)
    before = _leaves(target)
    fill(target, value)
    for array, same, given_ in zip(_leaves(target), before, _leaves(value), strict=True):
        assert array is same
        np.testing.assert_array_equal(array, given_)


def test_a_module_is_filled_in_place_and_still_learns() -> None:
    module = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3))
    value = {name: torch.ones_like(each) for name, each in module.state_dict().items()}
    places = [each.data_ptr() for each in module.parameters()]
    fill(module, value)
    assert [each.data_ptr() for each in module.parameters()] == places
    assert all(each.requires_grad and bool((each == 1).all()) for each in module.parameters())
    assert int(module[1].num_batches_tracked) == 1


def test_strided_and_tied_memory_is_filled() -> None:
    whole = np.zeros((4, 6), "f4")
    tied = torch.zeros(3)
    value = [np.ones((4, 3), "f4"), {"a": torch.ones(3), "b": torch.ones(3)}]
    fill([whole[:, ::2], {"a": tied, "b": tied}], value)
    assert whole.sum() == 12 and tied.tolist() == [1, 1, 1]


def test_a_tensor_takes_the_elements_of_an_array() -> None:
    target = torch.zeros(3, dtype=torch.float64)
    fill(target, np.arange(3.0))
    assert target.tolist() == [0, 1, 2]


_READ_ONLY = np.zeros(2)
_READ_ONLY.flags.writeable = False


@pytest.mark.parametrize(
    ("target", "value", "why"),
    [
        (np.zeros(2, "f4"), np.ones(2), r"value is an array of float64 and shape \(2,\)"),
        (np.zeros(3), np.ones(2), r"`into` has an array of float64 and shape \(3,\) there"),
        (_READ_ONLY, np.ones(2), "read-only"),
        (np.zeros(2), torch.ones(2), "value is a tensor of torch.float32"),
        (torch.zeros(2, dtype=torch.bfloat16), torch.ones(2), "a tensor of torch.bfloat16"),
        ({"a": np.zeros(2)}, {"b": np.ones(2)}, r'value\["b"\] has no place in `into`'),
        ({"a": np.zeros(2), "b": np.zeros(1)}, {"a": np.ones(2)}, r'value has no \["b"\]'),
        ({"a": [np.zeros(2)]}, {"a": [np.ones(2)] * 2}, r'value\["a"\] is a list of 2'),
        ([np.zeros(2)], {"a": np.ones(2)}, "value is a dict, and `into` has a list of 1"),
        ([np.zeros(2), 3], [np.ones(2), np.ones(2)], r"value\[1\] is .* `into` has a int there"),
    ],
)
def test_what_does_not_fit_is_named_and_nothing_is_written(
    target: Any, value: Any, why: str
) -> None:
    with pytest.raises(InvalidArgumentError, match=why):
        fill(target, value)
    assert not any(each.any() for each in _leaves(target) if hasattr(each, "any"))


def test_a_tensor_without_bytes_is_refused_before_all_others() -> None:
    with torch.device("meta"):
        module = torch.nn.Linear(2, 1, bias=False)
    target = {"a": np.zeros(2), "module": module}
    with pytest.raises(
        InvalidArgumentError, match=r'value\["module"\]\["weight"\] can.t be written'
    ):
        fill(target, {"a": np.ones(2), "module": {"weight": torch.ones(1, 2)}})
    assert not target["a"].any()
