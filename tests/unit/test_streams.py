"""Leaves in the order of their bytes, in any steps; and the headers of .safetensors files."""

from __future__ import annotations

import json
import mmap
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hoplite_ray.errors import HopliteError, InvalidArgumentError
from hoplite_ray.streams.cursor import LeafCursor
from hoplite_ray.streams.filling import read_into, read_small
from hoplite_ray.streams.safetensors import DTYPES, HEADER_BYTES_MAX, SafetensorsFile
from hoplite_ray.values import codec
from hoplite_ray.values.dtypes import SAME
from hoplite_ray.values.layout import Layout, check_reducible, forget_texts
from hoplite_ray.values.trees.columns import RUNS_MAX
from tests.unit.values import values


def name_leaves(value: Any, path: tuple[Any, ...] = ()) -> dict[tuple[Any, ...], Any]:
    """Return every leaf of a value of dicts, lists and tuples, by its path."""
    if isinstance(value, dict):
        items = list(value.items())
    elif isinstance(value, list | tuple) and not hasattr(value, "_fields"):
        items = list(enumerate(value))
    elif hasattr(value, "_fields"):
        items = list(value._asdict().items())
    elif hasattr(value, "__dataclass_fields__"):
        items = [(name, getattr(value, name)) for name in value.__dataclass_fields__]
    else:
        return {} if value is None else {path: value}
    return {
        name: leaf
        for key, child in items
        for name, leaf in name_leaves(child, (*path, key)).items()
    }


def to_bytes(leaf: Any) -> Any:
    """Return what two equal leaves have in common, also where a number is a NaN."""
    return (leaf.dtype, leaf.shape, leaf.tobytes()) if isinstance(leaf, np.ndarray) else repr(leaf)


@settings(max_examples=200)
@given(values, st.booleans(), st.integers(1, 9000))
def test_every_leaf_comes_once_and_when_its_bytes_are_there(
    value: Any, ordered: bool, step: int
) -> None:
    encoded = codec.encode(value, ordered=ordered)
    whole = b"".join(encoded.data)
    memory = bytearray(b"\xa5" * len(whole))
    cursor = LeafCursor(Layout.from_bytes(encoded.layout.to_bytes()))
    taken: list[tuple[Any, Any]] = []
    for ready in [*range(0, len(whole), step), len(whole)]:
        memory[:ready] = whole[:ready]
        upto, before = cursor.upto_bytes, len(taken)
        taken += [(path, to_bytes(leaf)) for path, leaf in cursor.take(memoryview(memory), ready)]
        assert len(taken) == before or (upto is not None and upto <= ready)
        assert cursor.upto_bytes is None or cursor.upto_bytes > ready
    assert cursor.upto_bytes is None
    leaves = name_leaves(codec.decode_copy(encoded))
    assert len(taken) == len(leaves)
    assert dict(taken) == {path: to_bytes(leaf) for path, leaf in leaves.items()}


def test_arrays_of_numpy_are_read_only() -> None:
    encoded = codec.encode({"a": np.ones(3), "b": 4})
    whole = memoryview(bytearray(b"".join(encoded.data)))
    (_, array), (_, number) = LeafCursor(encoded.layout).take(whole, whole.nbytes)
    assert (array.flags.writeable, number) == (False, 4)


PAGE = mmap.PAGESIZE


def test_leaves_come_by_dtype_and_ordered_ones_as_they_were_given() -> None:
    value = {
        "a": np.ones(PAGE, "f4"),
        "b": np.ones(PAGE, "f8"),
        "c": np.ones(PAGE, "f4"),
        "step": 3,
        "none": None,
        "empty": np.ones(0, "f4"),
    }

    def names(ordered: bool) -> list[str]:
        encoded = codec.encode(value, ordered=ordered)
        whole = memoryview(b"".join(encoded.data))
        return [path[0] for path, _ in LeafCursor(encoded.layout).take(whole, whole.nbytes)]

    assert names(False) == ["empty", "a", "c", "b", "step"]
    assert names(True) == ["empty", "step", "a", "b", "c"]


def test_a_leaf_waits_for_its_last_page_because_a_tensor_may_be_written() -> None:
    encoded = codec.encode([np.ones(PAGE + 1, "u1"), np.ones(3 * PAGE, "u1")])
    whole = memoryview(b"".join(encoded.data))
    cursor = LeafCursor(encoded.layout)
    assert cursor.take(whole, 2 * PAGE - 1) == []
    assert [path for path, _ in cursor.take(whole, 2 * PAGE)] == [(0,)]
    assert cursor.upto_bytes == whole.nbytes  # the last page is not full


def test_an_array_of_two_names_comes_for_both() -> None:
    tied = np.ones(8)
    encoded = codec.encode({"first": tied, "second": [tied]})
    whole = memoryview(b"".join(encoded.data))
    (one, other) = LeafCursor(encoded.layout).take(whole, whole.nbytes)
    assert (one[0], other[0]) == (("first",), ("second", 0))
    assert one[1] is other[1]


def test_the_text_of_a_long_layout_is_all_that_the_first_leaf_waits_for() -> None:
    value = {f"layer.{n}.of.a.model.with.long.names": np.full(PAGE, n, "f4") for n in range(60)}
    encoded = codec.encode(value)
    whole = memoryview(b"".join(encoded.data))
    layout = Layout.from_bytes(encoded.layout.to_bytes())
    forget_texts()
    cursor = LeafCursor(layout)
    assert (cursor.upto_bytes, layout.parts[0][0]) == (layout.head_bytes, SAME)
    assert 0 < layout.head_bytes < 2048
    assert cursor.take(whole, layout.head_bytes) == []
    assert cursor.upto_bytes == 5 * PAGE
    assert len(cursor.take(whole, 5 * PAGE)) == 1


@given(values)
def test_an_ordered_value_comes_back_as_it_was(value: Any) -> None:
    encoded = codec.encode(value, ordered=True)
    back = codec.decode(encoded.layout.to_bytes(), bytearray(b"".join(encoded.data)))
    leaves = name_leaves(codec.decode_copy(codec.encode(value)))
    others = {path: to_bytes(leaf) for path, leaf in name_leaves(back).items()}
    assert others == {path: to_bytes(leaf) for path, leaf in leaves.items()}
    assert Layout.from_bytes(encoded.layout.to_bytes()) == encoded.layout


@pytest.mark.parametrize("runs", [2, RUNS_MAX, RUNS_MAX + 1])
def test_an_ordered_value_is_reduced_if_its_dtypes_are_few_runs(runs: int) -> None:
    value = [np.ones(32, ("f4", "f8")[n % 2]) for n in range(runs)]
    layout = Layout.of(value, ordered=True)
    assert len(layout.parts) == (runs if runs <= RUNS_MAX else 1)
    if runs <= RUNS_MAX:
        check_reducible(layout, "sum")
    else:
        with pytest.raises(InvalidArgumentError, match="changes more than 15 times; put it with"):
            check_reducible(layout, "sum")
    check_reducible(Layout.of(value), "sum")


# ---- .safetensors ----


def write(path: Path, header: Any, data: bytes, *, length: int | None = None) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text) if length is None else length) + text + data)
    return path


def tensor(dtype: str, shape: list[int], begin: int, end: int) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def read(path: Path, kind: Any = "numpy") -> Any:
    with SafetensorsFile.open(path, kind) as source:
        return codec.decode_copy(read_small(source))


def test_a_file_is_a_dict_in_file_order(tmp_path: Path) -> None:
    data = np.arange(5, dtype="f4").tobytes() + b"\1" + np.arange(3, dtype="<i2").tobytes()
    header = {
        "__metadata__": {"format": "pt"},
        "last": tensor("I16", [3, 1], 21, 27),
        "first": tensor("F32", [5], 0, 20),
        "flag": tensor("BOOL", [], 20, 21),
        "none": tensor("F64", [0, 7], 27, 27),
    }
    value = read(write(tmp_path / "a.safetensors", header, data))
    assert list(value) == ["first", "flag", "last", "none"]
    assert value["first"].tolist() == [0, 1, 2, 3, 4]
    assert (value["flag"].item(), value["last"].tolist()) == (True, [[0], [1], [2]])
    assert value["none"].shape == (0, 7)


def test_a_file_without_tensors_is_an_empty_dict(tmp_path: Path) -> None:
    assert read(write(tmp_path / "none.safetensors", {"__metadata__": {}}, b"")) == {}


def test_tensors_of_whole_cache_lines_are_read_at_once(tmp_path: Path) -> None:
    header = {f"{n}": tensor("BF16", [64], 128 * n, 128 * n + 128) for n in range(9)}
    header["odd"] = tensor("U8", [3], 1152, 1155)
    header["next"] = tensor("U8", [64], 1155, 1219)
    path = write(tmp_path / "a.safetensors", header, bytes(1219))
    with SafetensorsFile.open(path, "torch") as source:
        assert [run.size_bytes for run in source.runs] == [1155, 64]


GOOD = tensor("U8", [4], 0, 4)
BAD: dict[str, tuple[Any, bytes, str]] = {
    "nothing": (b"", b"", "its header is no JSON"),
    "no json": (b"{", b"", "its header is no JSON"),
    "deep json": (b"[" * 100_000, b"", "its header is no JSON"),
    "a list": ([], b"", "its header is no JSON of tensors"),
    "a name twice": (b'{"a":1,"a":1}', b"", "it has a name twice"),
    "no tensor": ({"a": 5}, b"", "tensor 'a' is described wrongly"),
    "no offsets": ({"a": {"dtype": "U8", "shape": [4]}}, b"", "tensor 'a' is described wrongly"),
    "a shape of text": ({"a": {**GOOD, "shape": "4"}}, b"abcd", "described wrongly"),
    "a negative": ({"a": tensor("U8", [-4], 0, 4)}, b"abcd", "described wrongly"),
    "a dtype": ({"a": tensor("F4", [8], 0, 4)}, b"abcd", "is of F4, and only F64, F32"),
    "a size": ({"a": tensor("F32", [4], 0, 4)}, b"abcd", "has 4 bytes, and its shape takes 16"),
    "a hole": ({"a": GOOD, "b": tensor("U8", [1], 5, 6)}, b"abcdef", "'b' begins at byte 5"),
    "an overlap": ({"a": GOOD, "b": tensor("U8", [2], 3, 5)}, b"abcde", "'b' begins at byte 3"),
    "cut off": ({"a": GOOD}, b"abc", "its tensors take 4 bytes, and the file has 3"),
    "bytes behind": ({"a": GOOD}, b"abcde", "its tensors take 4 bytes, and the file has 5"),
}


@pytest.mark.parametrize(("header", "data", "why"), BAD.values(), ids=BAD.keys())
def test_a_damaged_file_is_refused_by_name(
    tmp_path: Path, header: Any, data: bytes, why: str
) -> None:
    path = write(tmp_path / "bad.safetensors", header, data)
    with pytest.raises(InvalidArgumentError, match=why) as raised:
        SafetensorsFile.open(path, "numpy")
    assert str(path) in str(raised.value)
    assert "; " in str(raised.value)


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda path: path.with_name("missing"), "No such file"),
        (lambda path: path.parent, "Is a directory"),
        (lambda path: write(path, {}, b"", length=500), "it ends within its header"),
        (lambda path: path.write_bytes(b"abc") and path, "it ends within its header, at byte 3"),
    ],
)
def test_a_path_without_a_file_is_refused(
    tmp_path: Path, make: Callable[[Path], Path], why: str
) -> None:
    with pytest.raises(InvalidArgumentError, match=why):
        SafetensorsFile.open(make(tmp_path / "a.safetensors"), "numpy")


def test_a_header_beyond_the_limit_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "huge.safetensors"
    path.write_bytes(struct.pack("<Q", HEADER_BYTES_MAX + 1))
    with path.open("r+b") as file:
        file.truncate(HEADER_BYTES_MAX + 100)  # a sparse file
    with pytest.raises(InvalidArgumentError, match="of at most 100000000"):
        SafetensorsFile.open(path, "numpy")


def test_a_file_that_is_cut_while_it_is_read_says_so(tmp_path: Path) -> None:
    path = write(tmp_path / "cut.safetensors", {"a": GOOD}, b"abcd")
    with SafetensorsFile.open(path, "numpy") as source:
        with path.open("r+b") as file:
            file.truncate(path.stat().st_size - 2)
        memory = memoryview(bytearray(4))
        with pytest.raises(HopliteError, match="was cut off while it was read; write the file"):
            read_into(source, memory, lambda upto_bytes: None)
    assert bytes(memory[:2]) == b"ab"


@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_every_dtype_comes_as_the_safetensors_package_reads_it(tmp_path: Path, kind: Any) -> None:
    torch = pytest.importorskip("torch")
    from safetensors import safe_open
    from safetensors.torch import save_file

    known = [each for each in DTYPES.values() if hasattr(torch, each)]
    raw = torch.arange(64, dtype=torch.uint8)
    tensors = {each: raw.clone().view(getattr(torch, each)).reshape(2, -1) for each in known}
    tensors["bool"] = torch.tensor([True, False])
    path = tmp_path / "all.safetensors"
    save_file(tensors, path, metadata={"by": "a test"})
    value = read(path, kind)
    with safe_open(path, "pt") as theirs:
        assert sorted(value) == sorted(theirs.keys())
        for name in theirs.keys():
            expected = theirs.get_tensor(name)
            mine = value[name]
            assert tuple(mine.shape) == tuple(expected.shape)
            their_bytes = expected.contiguous().view(torch.uint8).numpy().tobytes()
            assert to_raw(mine) == their_bytes


def to_raw(leaf: Any) -> bytes:
    if isinstance(leaf, np.ndarray):
        return leaf.tobytes()
    import torch

    raw: bytes = leaf.contiguous().view(torch.uint8).numpy().tobytes()
    return raw
