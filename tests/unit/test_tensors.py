"""Torch tensors: every plain dtype and memory order comes back; all else says what to do."""

from __future__ import annotations

import warnings
from collections import OrderedDict
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from ray.util.collective import collective  # noqa: F401 - has the backend below register

from hoplite_ray.errors import HopliteError, InvalidArgumentError, WrongTypeError
from hoplite_ray.plugin.groups.collective import _array
from hoplite_ray.values import codec, dtypes
from hoplite_ray.values.layout import Layout
from hoplite_ray.worlds.core.arrays import to_send

torch: Any = pytest.importorskip("torch", reason="torch is not installed")


def there_and_back(value: Any) -> Any:
    encoded = codec.encode(value)
    return codec.decode(encoded.layout.to_bytes(), bytearray(b"".join(encoded.data)))


def assert_same(back: Any, tensor: Any) -> None:
    assert (back.dtype, back.shape) == (tensor.dtype, tensor.shape)
    assert back.is_contiguous()
    plain = tensor.resolve_conj().resolve_neg().contiguous().reshape(-1)
    assert torch.equal(back.reshape(-1).view(torch.uint8), plain.view(torch.uint8))


DTYPES = [dtype for dtype in vars(torch).values() if isinstance(dtype, torch.dtype)]
PLAIN = [name for name in dtypes._TORCH_BYTES if hasattr(torch, name)]


@pytest.mark.parametrize("name", PLAIN)
@pytest.mark.parametrize("shape", [(), (0, 3), (5, 7)], ids=str)
def test_a_tensor_of_every_dtype_comes_back(name: str, shape: tuple[int, ...]) -> None:
    dtype = getattr(torch, name)
    numbers = np.random.default_rng(0).integers(0, 2, (*shape, dtype.itemsize), np.uint8)
    tensor = torch.tensor(numbers.reshape(-1)).view(dtype).reshape(shape)
    assert_same(there_and_back(tensor), tensor)
    layout = Layout.of(tensor)
    assert (layout.dtype, layout.dtype_name, layout.shape) == (dtype, name, shape)
    assert layout.kind == "torch"
    assert layout.size_bytes == tensor.nbytes


def test_every_dtype_is_plain_or_refused() -> None:
    refused = set()
    for dtype in DTYPES:
        try:
            dtypes.torch_name(dtype)
        except ValueError:
            refused.add(dtype)
    assert {str(dtype)[6:] for dtype in {*DTYPES} - refused} == {*PLAIN}


ORDERS = {
    "transposed": torch.arange(12.0).reshape(3, 4).T,
    "every other": torch.arange(24).reshape(4, 6)[:, ::2],
    "expanded": torch.arange(3.0).expand(5, 3),
    "channels last": torch.randn(2, 3, 4, 5).contiguous(memory_format=torch.channels_last),
    "conjugated": torch.randn(3, 2, dtype=torch.complex64).conj(),
    "negative of a part": torch.randn(3, dtype=torch.complex64).conj().imag,
}


@pytest.mark.parametrize("tensor", ORDERS.values(), ids=ORDERS.keys())
def test_a_tensor_in_another_order_arrives_in_c_order(tensor: Any) -> None:
    assert_same(there_and_back(tensor), tensor)


def test_a_tensor_is_neither_copied_on_its_way_in_nor_out() -> None:
    tensor = torch.arange(12, dtype=torch.bfloat16)
    encoded = codec.encode(tensor)
    assert np.asarray(encoded.data[0]).ctypes.data == tensor.data_ptr()
    buffer = bytearray(encoded.data[0])
    back = codec.decode(encoded.layout.to_bytes(), buffer)
    back[0] = 7
    assert buffer[:2] == b"\xe0\x40"


def test_each_tensor_has_a_storage_and_a_version_of_its_own() -> None:
    """Tied weights are found by storage, and autograd finds changes by version."""
    for dtype in (torch.float32, torch.bfloat16, torch.float8_e5m2):
        one, other = there_and_back([torch.zeros(3).to(dtype), torch.zeros(5).to(dtype)])
        assert one.untyped_storage().nbytes() == one.nbytes
        assert one.untyped_storage().data_ptr() != other.untyped_storage().data_ptr()
        before = other._version
        one.copy_(torch.ones(3))
        assert other._version == before


def test_the_state_of_a_model_comes_back() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3))
    state = model.state_dict()
    back = there_and_back({"model": state, "mean": np.zeros(3), "more": [state["0.weight"]]})
    assert type(back["model"]) is OrderedDict
    assert list(back["model"]) == list(state)
    for name, tensor in state.items():
        assert_same(back["model"][name], tensor)
    assert isinstance(back["mean"], np.ndarray)
    model.load_state_dict(back["model"])


def test_bfloat16_of_torch_and_of_numpy_are_one_to_the_kernels() -> None:
    value = [torch.zeros(3, dtype=torch.bfloat16), np.zeros(3, ml_dtypes.bfloat16)]
    layout = Layout.of(value)
    assert layout.parts == [(dtypes.NATIVE["bfloat16"], 70)]
    assert Layout.of(value[0]) != Layout.of(value[1])


class Own(torch.Tensor):  # type: ignore[misc]
    pass


def quantised() -> Any:
    with warnings.catch_warnings(action="ignore"):  # a later torch will not have them
        return torch.quantize_per_tensor(torch.zeros(2), 0.1, 0, torch.qint8)


def nested(layout: Any) -> Any:
    with warnings.catch_warnings(action="ignore"):  # they are a prototype of torch's
        return torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)], layout=layout)


REFUSED = {
    "requires grad": ({"w": torch.zeros(2, requires_grad=True)}, r'^value\["w"\] .*\.detach\(\)'),
    "parameter": (torch.nn.Parameter(torch.zeros(2)), r"requires grad; put its \.detach\(\)"),
    "meta": (torch.zeros(2, device="meta"), r"on meta; it has no bytes: .* \.to_empty\(device="),
    "lazy": (torch.nn.UninitializedParameter(), r"without bytes yet; call its module once before"),
    "sparse": (torch.eye(3).to_sparse(), r"layout torch\.sparse_coo; put its \.to_dense\(\)"),
    "nested": (nested(torch.strided), r"a nested tensor; put its \.unbind\(\)"),
    "jagged": (nested(torch.jagged), r"a nested tensor; put its \.unbind\(\)"),
    "quantised": (quantised(), r"a quantised tensor; put its \.dequantize\(\)"),
    "subclass": (torch.zeros(2).as_subclass(Own), r"Own, not a plain tensor"),
    "half bytes": (torch.empty(2, dtype=torch.uint4), r"take its \.view\(torch\.uint8\)"),
}


@pytest.mark.parametrize(("value", "why"), REFUSED.values(), ids=REFUSED.keys())
def test_what_is_no_plain_tensor_on_the_cpu_says_what_to_do(value: Any, why: str) -> None:
    """Case 19."""
    with pytest.raises(InvalidArgumentError, match=why):
        codec.encode(value)


ADVICE = {
    "requires grad": lambda: torch.zeros(2, requires_grad=True).detach(),
    "sparse": lambda: torch.eye(3).to_sparse().to_dense(),
    "nested": lambda: nested(torch.strided).unbind(),
    "jagged": lambda: nested(torch.jagged).unbind(),
    "quantised": lambda: [quantised().dequantize(), quantised().int_repr()],
    "half bytes": lambda: torch.zeros(2, dtype=torch.uint8).view(torch.uint4).view(torch.uint8),
    "meta": lambda: torch.nn.Linear(2, 3, device="meta").to_empty(device="cpu").state_dict(),
}


@pytest.mark.parametrize("follow", ADVICE.values(), ids=ADVICE.keys())
def test_the_advice_of_a_refusal_can_be_taken(follow: Any) -> None:
    """Case 19."""
    codec.encode(follow())


@pytest.mark.parametrize("take", [codec.encode, to_send, _array])
def test_a_tensor_on_meta_has_no_bytes_to_copy(take: Any) -> None:
    """Case 19."""
    with pytest.raises(
        (InvalidArgumentError, WrongTypeError), match="it has no bytes: "
    ) as refusal:
        take(torch.zeros(2, device="meta"))
    assert ".cpu()" not in str(refusal.value)


def test_tied_weights_of_a_model_are_stored_once_and_arrive_tied() -> None:
    """Case 03."""
    model = torch.nn.ModuleDict(
        {"embed": torch.nn.Embedding(50, 8), "head": torch.nn.Linear(8, 50)}
    )
    model["head"].weight = model["embed"].weight
    state = model.state_dict()  # whose tensors are two objects of one memory
    assert state["head.weight"] is not state["embed.weight"]
    assert Layout.of(state).size_bytes < 1.5 * state["embed.weight"].nbytes
    back = there_and_back(state)
    assert back["head.weight"] is back["embed.weight"]
    assert_same(back["head.weight"], state["head.weight"])


@pytest.mark.parametrize("view", [torch.conj, torch.t, lambda it: it.conj().imag], ids=str)
def test_views_of_one_memory_with_other_elements_stay_apart(view: Any) -> None:
    tensor = torch.complex(torch.arange(4.0), torch.ones(4)).reshape(2, 2)
    back = there_and_back([tensor, view(tensor)])
    assert_same(back[0], tensor)
    assert_same(back[1], view(tensor))


def test_a_frozen_parameter_is_a_tensor() -> None:
    parameter = torch.nn.Parameter(torch.ones(2), requires_grad=False)
    back = there_and_back(parameter)
    assert type(back) is torch.Tensor
    assert_same(back, parameter.detach())


def test_a_dtype_that_this_torch_lacks_is_named() -> None:
    layout = Layout.from_bytes(b'[[["torch","float8_e3m4"]],[0,2]]')
    with pytest.raises(HopliteError, match=r"torch\.float8_e3m4, which this torch lacks"):
        codec.decode(layout.to_bytes(), bytes(2))
