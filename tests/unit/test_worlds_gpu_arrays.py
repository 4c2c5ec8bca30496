"""Arrays on GPUs as worlds take them, and what is said where there is no GPU."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from hoplite_ray.errors import InvalidArgumentError, WorldError, WrongTypeError
from hoplite_ray.worlds.gpu.ability import Ability
from hoplite_ray.worlds.gpu.arrays import (
    empty_like,
    is_on_gpu,
    lend_interface,
    lend_torch,
    stream_of,
)
from hoplite_ray.worlds.gpu.nccl import Gpu, check_fold, find_ability
from hoplite_ray.worlds.ops.transfers import Offer


class Cupys:
    """As an array of cupy's looks; on memory of the CPU."""

    def __init__(self, shape: Any, dtype: Any = "f4", **said: Any) -> None:
        self.inside = np.zeros(shape, dtype)
        self.shape, self.dtype = self.inside.shape, self.inside.dtype
        self.said = said

    def __getitem__(self, at: int) -> Any:
        return self.inside[at]

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        said = {"shape": self.shape, "typestr": self.dtype.str, "version": 2}
        return {**said, "data": (self.inside.ctypes.data, False), **self.said}


def test_the_interface_says_all_that_is_needed() -> None:
    array = Cupys((2, 3), "f8", stream=7, strides=(24, 8))
    assert is_on_gpu(array)
    lent = lend_interface(array, True)
    assert (lent.dtype, lent.shape, lent.count, lent.size_bytes) == ("float64", (2, 3), 6, 48)
    assert (lent.address, lent.stream) == (array.inside.ctypes.data, 7)
    assert lend_interface(Cupys((4, 1, 3), strides=(12, 99, 4)), True).count == 12
    nothing = lend_interface(Cupys((0, 3), strides=(1, 1), data=(0, False)), True)
    assert (nothing.size_bytes, nothing.stream) == (0, None)


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"strides": (4, 8)}, "contiguous in C order"),
        ({"data": (64, True)}, "must be writable"),
        ({"mask": object()}, "the mask of a masked array"),
        ({"typestr": "|O8"}, "holds Python objects"),
    ],
)
def test_what_can_not_be_filled_is_refused(said: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidArgumentError, match=words):
        lend_interface(Cupys((2, 2), **said), True)


def test_torchs_tensors_are_taken_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    stream = SimpleNamespace(cuda_stream=5)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: stream)
    tensor = torch.zeros(2, 3, dtype=torch.bfloat16)
    assert not is_on_gpu(tensor)
    lent = lend_torch(tensor)
    assert (lent.dtype, lent.shape, lent.size_bytes, lent.stream) == ("bfloat16", (2, 3), 12, 5)
    assert lent.address == tensor.data_ptr()
    assert [each.shape for each in empty_like(tensor, 4)] == [(2, 3)] * 4
    with pytest.raises(InvalidArgumentError, match=r"give its \.contiguous\(\)"):
        lend_torch(tensor.t())


def test_new_arrays_are_of_the_library_of_the_given_one(monkeypatch: pytest.MonkeyPatch) -> None:
    cupy = SimpleNamespace(ndarray=Cupys, empty=Cupys)
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    assert [each.shape for each in empty_like(Cupys(5), 3)] == [(5,)] * 3
    monkeypatch.delitem(sys.modules, "cupy")
    with pytest.raises(InvalidArgumentError, match="no Cupys can be made here; give out="):
        empty_like(Cupys(5), 3)


def test_arrays_of_one_call_have_one_stream() -> None:
    def lent(stream: int | None) -> Any:
        return lend_interface(Cupys(1, stream=stream), False)

    assert stream_of([lent(None), lent(3), lent(3)]) == 3
    assert stream_of([lent(None)]) is None
    with pytest.raises(InvalidArgumentError, match="on different streams"):
        stream_of([lent(1), lent(2)])


def test_a_world_without_nccl_says_why() -> None:
    gpu = Gpu("rank 1: this process uses no GPU")
    with pytest.raises(WrongTypeError, match="CPU only: rank 1: this process uses no GPU; send"):
        gpu.lend(Cupys(1), is_filled=False)
    with pytest.raises(WrongTypeError, match="ndarray is not on a GPU"):
        gpu.lend(np.zeros(1), is_filled=False)


def test_nccl_folds_what_it_knows() -> None:
    check_fold("sum", lend_interface(Cupys(1), True))
    with pytest.raises(InvalidArgumentError, match="NCCL can't fold <c16"):
        check_fold("sum", lend_interface(Cupys(1, "c16"), True))


def test_an_offer_has_its_number_and_size() -> None:
    offer = Offer("float32@gpu", (3,), np.array([9, 12], np.uint64))
    assert (offer.dtype, offer.number, offer.size_bytes) == ("float32", 9, 12)
    with pytest.raises(InvalidArgumentError, match="8 B can't be an offer"):
        Offer("float32@gpu", (3,), bytes(8))


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOPLITE_RAY_CUDA_LIBRARY", "/nowhere/libcuda.so.1")
    monkeypatch.setattr("hoplite_ray.worlds.gpu.nccl._nccl", None)
    with pytest.raises(WorldError, match=r"can't be had: no GPU: the CUDA driver can't be loaded"):
        find_ability("nccl")
    assert find_ability("auto") == (Ability(0, "this process uses no GPU", is_needed=False), 0)
    assert find_ability("tcp")[0].lacks == "it was joined with transport='tcp'"
