"""Arrays that are read column by column are the same leaves as those that are read one by one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hoplite_ray.errors import InvalidArgumentError
from hoplite_ray.values import codec
from hoplite_ray.values.trees import tree
from hoplite_ray.values.trees.alike import read_alike
from hoplite_ray.values.trees.tree import Parts

torch = pytest.importorskip("torch")

MEMORY = [np.arange(8, dtype=dtype) for dtype in ("f4", "i8", "f4")]
TENSORS = [torch.arange(8, dtype=dtype) for dtype in (torch.float32, torch.bfloat16)]
ARRAYS = [
    *MEMORY,
    *(each[2:6] for each in MEMORY),  # views of them
    np.zeros(0, "f4"),
    np.asfortranarray(np.ones((2, 3))),
    np.array(7, "i2"),
]
OF_TORCH = [*TENSORS, TENSORS[0][2:6], TENSORS[0].view(2, 4).T, torch.zeros(0), torch.tensor(7)]
LISTS = st.lists(
    st.one_of(
        st.lists(st.sampled_from(ARRAYS), max_size=5),
        st.lists(st.sampled_from(OF_TORCH), max_size=5),
        st.lists(st.sampled_from([*ARRAYS, *OF_TORCH, 3, None]), max_size=5),
    ),
    max_size=4,
)


def read(value: Any, alike_min: int) -> tuple[Parts, bytes, bytes]:
    """Return the parts of a value, its layout and its bytes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tree, "ALIKE_MIN", alike_min)
        encoded = codec.encode(value)
        return Parts(value), encoded.layout.to_bytes(), b"".join(encoded.data)


@given(LISTS)
def test_the_leaves_are_those_of_one_by_one(lists: list[Any]) -> None:
    one_by_one, layout, data = read(lists, 1 << 30)
    alike, *encoded = read(lists, 1)
    assert alike.signature == one_by_one.signature
    assert alike.addresses == one_by_one.addresses
    assert [*map(id, alike.arrays)] == [*map(id, one_by_one.arrays)]
    assert encoded == [layout, data]


@pytest.mark.parametrize(
    "values",
    [
        [np.ones(3), 1],
        [np.ones(3)[:2]] * 2,
        [MEMORY[0]] * 2,
        [torch.ones(3), torch.ones(3, requires_grad=True)],
        [torch.ones(2, dtype=torch.complex64).conj()],
        [torch.zeros(0)],
        [torch.ones(3, device="meta")],
        [torch.eye(2).to_sparse()],
        [np.ones(3), torch.ones(3)],
    ],
)
def test_what_needs_a_closer_look_is_left(values: list[Any]) -> None:
    assert read_alike(values) is None


@pytest.mark.parametrize(
    ("odd", "why"),
    [
        (np.array([object()]), r"value\[40\] is an array whose dtype object holds Python objects"),
        (torch.ones(2, requires_grad=True), r"value\[40\] is a tensor that requires grad"),
        (torch.ones(2, device="meta"), r"value\[40\] is a tensor on meta; it has no bytes"),
    ],
)
def test_one_that_can_not_be_put_among_many_is_named(odd: Any, why: str) -> None:
    kind = np.ones if isinstance(odd, np.ndarray) else torch.ones
    with pytest.raises(InvalidArgumentError, match=why):
        Parts([*(kind(2) for _ in range(40)), odd])
