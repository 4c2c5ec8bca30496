"""The header of a .safetensors file: eight bytes of its length, JSON, and then the tensors' bytes.

The format is that of https://github.com/huggingface/safetensors: little-endian elements in C order,
without a hole between two tensors.
"""

from __future__ import annotations

import json
import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from hoplite_ray.errors import InvalidArgumentError
from hoplite_ray.values.dtypes import Kind, element_bytes
from hoplite_ray.values.layout import Layout
from hoplite_ray.values.specs import spec

HEADER_BYTES_MAX = 100_000_000  # the format's own limit
_LENGTH_BYTES = 8

# The format's names of dtypes -> those of numpy, torch and ml_dtypes.
DTYPES = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "I64": "int64",
    "I32": "int32",
    "I16": "int16",
    "I8": "int8",
    "U64": "uint64",
    "U32": "uint32",
    "U16": "uint16",
    "U8": "uint8",
    "BOOL": "bool",
    "C64": "complex64",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "F8_E8M0": "float8_e8m0fnu",
}


class Run(NamedTuple):
    """Bytes that stand in the file as they stand in the object."""

    in_file: int
    in_object: int
    size_bytes: int


class _Tensor(NamedTuple):
    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class SafetensorsFile:
    """An open file: the layout of its value, a dict by name in file order, and where its bytes are.

    It is a context manager, which closes the file.
    """

    path: Path
    file: BinaryIO
    layout: Layout
    runs: tuple[Run, ...]  # in the order of the bytes

    @classmethod
    def open(cls, path: str | os.PathLike[str], kind: Kind) -> SafetensorsFile:
        """Open a file and read its header.

        Raises:  InvalidArgumentError naming the file and what is wrong with it.
        """
        place = Path(path)
        try:
            file = place.open("rb", buffering=0)
        except OSError as error:
            raise _refuse(
                place, error.strerror or str(error), "give a path that this machine can read"
            ) from error
        try:
            size_bytes = os.fstat(file.fileno()).st_size
            data_begin, header = _read_header(place, file, size_bytes)
            tensors = _check_tensors(place, header, size_bytes - data_begin)
            like = {each.name: spec(each.shape, each.dtype, kind) for each in tensors}
            layout = Layout.of(like, ordered=True, takes_specs=True)
            return cls(place, file, layout, tuple(_find_runs(layout, tensors, data_begin)))
        except OSError as error:
            file.close()
            raise _refuse(place, str(error), "look at the file system") from error
        except BaseException:
            file.close()
            raise

    def close(self) -> None:
        """Close the file. Idempotent."""
        self.file.close()

    def __enter__(self) -> SafetensorsFile:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


def _refuse(path: Path, cause: str, step: str) -> InvalidArgumentError:
    return InvalidArgumentError(f"{path} can't be opened as safetensors: {cause}; {step}")


_DAMAGED = "fetch the file again, or save it with the safetensors package"


def _read_header(path: Path, file: BinaryIO, size_bytes: int) -> tuple[int, dict[str, Any]]:
    """Return where the tensors begin, and the header."""
    length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
    if size_bytes < _LENGTH_BYTES or length > size_bytes - _LENGTH_BYTES:
        raise _refuse(path, f"it ends within its header, at byte {size_bytes}", _DAMAGED)
    if length > HEADER_BYTES_MAX:
        cause = f"its header has {length} bytes, of at most {HEADER_BYTES_MAX}"
        raise _refuse(path, cause, _DAMAGED)
    text = _read_exactly(file, length)
    try:
        header = json.loads(text, object_pairs_hook=_refuse_twice)
        if not isinstance(header, dict):
            raise ValueError("it is no object")
    except (ValueError, RecursionError) as error:
        raise _refuse(path, f"its header is no JSON of tensors ({error})", _DAMAGED) from error
    return _LENGTH_BYTES + length, header


def _read_exactly(file: BinaryIO, size_bytes: int) -> bytes:
    parts = []
    while size_bytes and (part := file.read(size_bytes)):
        parts.append(part)
        size_bytes -= len(part)
    return b"".join(parts)


def _refuse_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("it has a name twice")
    return found


def _check_tensors(path: Path, header: dict[str, Any], data_bytes: int) -> list[_Tensor]:
    """Return the tensors in the order of their bytes, which fill the rest of the file."""
    tensors = [
        _check_tensor(path, name, described)
        for name, described in header.items()
        if name != "__metadata__"
    ]
    tensors.sort(key=lambda each: (each.begin, each.end))
    end = 0
    for each in tensors:
        if each.begin != end:
            cause = f"tensor {each.name!r} begins at byte {each.begin}, and not at {end}"
            raise _refuse(path, cause, _DAMAGED)
        end = each.end
    if end != data_bytes:
        cause = f"its tensors take {end} bytes, and the file has {data_bytes} for them"
        raise _refuse(path, cause, _DAMAGED)
    return tensors


def _check_tensor(path: Path, name: str, described: Any) -> _Tensor:
    try:
        known, shape = described["dtype"], described["shape"]
        begin, end = described["data_offsets"]
        numbers = [*shape, begin, end]
        if not isinstance(known, str) or any(type(each) is not int or each < 0 for each in numbers):
            raise ValueError("its fields are of other types")
    except (TypeError, KeyError, ValueError) as error:
        raise _refuse(path, f"tensor {name!r} is described wrongly ({error})", _DAMAGED) from error
    if known not in DTYPES:
        raise _refuse(
            path,
            f"tensor {name!r} is of {known}, and only {', '.join(DTYPES)} can be stored",
            "convert it, and save the file again",
        )
    dtype = DTYPES[known]
    needed = math.prod(shape) * element_bytes("torch", dtype)
    if end - begin != needed:
        cause = f"tensor {name!r} has {end - begin} bytes, and its shape takes {needed}"
        raise _refuse(path, cause, _DAMAGED)
    return _Tensor(name, dtype, tuple(shape), begin, end)


def _find_runs(layout: Layout, tensors: list[_Tensor], data_begin: int) -> list[Run]:
    """Join tensors that stand in the object as in the file: most weights are whole cache lines."""
    runs: list[Run] = []
    offsets = layout.columns.offsets
    for number, each in enumerate(tensors):
        size_bytes = each.end - each.begin
        if not size_bytes:
            continue
        run = Run(data_begin + each.begin, layout.head_bytes + offsets[number], size_bytes)
        last = runs[-1] if runs else Run(-1, -1, 0)
        shift = run.in_file - last.in_file
        if shift == run.in_object - last.in_object and shift == last.size_bytes:
            runs[-1] = last._replace(size_bytes=last.size_bytes + size_bytes)
        else:
            runs.append(run)
    return runs
