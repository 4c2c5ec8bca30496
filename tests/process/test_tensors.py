"""Torch tensors over three nodes: they come back as tensors, and reduce as numpy's arrays do."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hoplite_ray.errors import InvalidArgumentError, LayoutMismatchError
from hoplite_ray.store import new_id
from tests.process.nodes import WAIT_S, Nodes

torch: Any = pytest.importorskip("torch", reason="torch is not installed")


@pytest.mark.parametrize("size", [4, 100_000])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "int64", "uint8"])
def test_tensors_are_reduced_into_a_tensor(three: Nodes, dtype: str, size: int) -> None:
    kind = getattr(torch, dtype)
    tensors = [torch.arange(size).remainder(50).to(kind) + index for index in range(3)]
    ids = [three.put(index, tensor) for index, tensor in enumerate(tensors)]
    target = new_id()
    three[0].reduce(target, ids, op="max", timeout_s=WAIT_S)
    for rank in range(3):
        result = three.get(rank, target)
        assert result.dtype is kind
        assert torch.equal(result, tensors[2])
        result[0] = 77
    assert torch.equal(three.get(1, target), tensors[2])  # no other reader sees the 77


def test_sums_of_bfloat16_are_rounded_once(three: Nodes) -> None:
    tensors = [torch.full((1000,), 1.0, dtype=torch.bfloat16)]
    tensors += [torch.full((1000,), 1 / 256, dtype=torch.bfloat16)] * 4  # each alone is lost in 1
    ids = [three.put(index % 3, tensor) for index, tensor in enumerate(tensors)]
    target = new_id()
    three[1].reduce(target, ids, timeout_s=WAIT_S)
    assert torch.equal(three.get(2, target), torch.full((1000,), 1 + 4 / 256, dtype=torch.bfloat16))


@pytest.mark.parametrize("width", [3, 300])
def test_the_mean_of_models_is_a_model(three: Nodes, width: int) -> None:
    models = [torch.nn.Linear(width, width) for _ in range(3)]
    ids = [three.put(index, model.state_dict()) for index, model in enumerate(models)]
    target = new_id()
    three[0].all_reduce(target, ids, op="mean", timeout_s=WAIT_S)
    for rank in range(3):
        state = three.get(rank, target)
        models[rank].load_state_dict(state)
    expected = torch.stack([three.get(0, each)["weight"] for each in ids]).mean(0)
    assert all(torch.allclose(model.weight, expected) for model in models)


def test_what_the_store_cannot_take_says_what_to_do(three: Nodes) -> None:
    with pytest.raises(InvalidArgumentError, match=r'value\["weight"\] .* put its \.detach\(\)'):
        three[0].put(new_id(), dict(torch.nn.Linear(2, 2).named_parameters()))
    ids = [three.put(0, torch.zeros(3)), three.put(1, np.zeros(3, np.float32))]
    with pytest.raises(LayoutMismatchError):
        three[2].reduce(new_id(), ids, timeout_s=WAIT_S)


def test_a_module_on_another_node_is_filled(three: Nodes) -> None:
    model, other = (torch.nn.Linear(300, 300) for _ in range(2))
    object_id = three.put(0, model.state_dict())
    places = [each.data_ptr() for each in other.parameters()]
    assert three[1].get(object_id, into=other, timeout_s=WAIT_S) is other
    assert [each.data_ptr() for each in other.parameters()] == places
    assert torch.equal(other.weight, model.weight) and torch.equal(other.bias, model.bias)
    wrong = torch.nn.Linear(300, 300, dtype=torch.float64)
    before = wrong.weight.detach().clone()
    with pytest.raises(InvalidArgumentError, match=r'value\["weight"\] is a tensor of .*float32'):
        three[1].get(object_id, into=wrong, timeout_s=WAIT_S)
    assert torch.equal(wrong.weight, before)
