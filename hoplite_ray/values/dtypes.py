"""Dtypes by name, as layouts carry them: what each is to numpy, to torch and to the native core.

A name is numpy's own ("float32"), or that of a dtype which only torch or ml_dtypes have
("bfloat16"), or for other plain bytes numpy's type string (">f4", "<U3", "<M8[s]"), or for a
structure the JSON text of its description.
"""

from __future__ import annotations

import importlib
import json
from functools import lru_cache
from typing import Any, Literal

import numpy as np

from hoplite_ray.errors import HopliteError, InvalidArgumentError

Kind = Literal["numpy", "torch"]
LeafKind = Literal["numpy", "torch", "python"]

OPAQUE = 0
SAME = 14  # bytes that are equal in all sources of a reduce, which copies them

# The dtypes that the kernels combine, by the numbers of native/plan/messages/dtypes.h. Every other
# dtype is opaque bytes.
NATIVE = {
    "float32": 1,
    "float64": 2,
    "int64": 3,
    "bfloat16": 4,
    "float16": 5,
    "int8": 6,
    "int16": 7,
    "int32": 8,
    "uint8": 9,
    "uint16": 10,
    "uint32": 11,
    "uint64": 12,
    "bool": 13,
}

# Bytes per element of what numpy itself does not know, so that a layout can be read without torch.
_EXTRA_BYTES = {
    "bfloat16": 2,
    "complex32": 4,
    "float8_e3m4": 1,
    "float8_e4m3": 1,
    "float8_e4m3b11fnuz": 1,
    "float8_e4m3fn": 1,
    "float8_e4m3fnuz": 1,
    "float8_e5m2": 1,
    "float8_e5m2fnuz": 1,
    "float8_e8m0fnu": 1,
}
_TORCH_BYTES = {
    **{name: np.dtype(name).itemsize for name in NATIVE if name not in _EXTRA_BYTES},
    **_EXTRA_BYTES,
    "complex64": 8,
    "complex128": 16,
}


# Values of Python's own that are leaves: the native dtype of their bytes, and bytes of an element.
# An int is of 64 bits. The bytes of str are UTF-8.
PLAIN = {
    "bool": (NATIVE["bool"], 1),
    "int": (NATIVE["int64"], 8),
    "float": (NATIVE["float64"], 8),
    "complex": (OPAQUE, 16),
    "str": (OPAQUE, 1),
    "bytes": (OPAQUE, 1),
}
TEXTS = ("str", "bytes")


def native_number(kind: LeafKind, name: str) -> int:
    """Return the number by which the native core knows the elements."""
    return PLAIN[name][0] if kind == "python" else NATIVE.get(name, OPAQUE)


def import_optional(module: str) -> Any:
    """Import a module that is no dependency of this package.

    Raises:  HopliteError saying how to install it.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise HopliteError(
            f"this object needs {module}, which can't be imported here ({error}); "
            f"pip install {module}"
        ) from error


@lru_cache(maxsize=1024)
def numpy_name(dtype: np.dtype[Any]) -> str:
    """Name a numpy dtype.

    Raises:  ValueError with the reason if it is not one of plain bytes.
    """
    if dtype.kind == "T":
        raise ValueError("is text of any length, not bytes; convert it with np.array(it.tolist())")
    if dtype.hasobject:
        raise ValueError("holds Python objects, not bytes; convert it with .astype()")
    if dtype.isbuiltin == 2:  # registered by another package; its type string says only its size
        if dtype.type.__module__ == "ml_dtypes" and dtype.name in _EXTRA_BYTES:
            return dtype.name
        raise ValueError("is not one of numpy's; convert it with .astype()")
    if dtype.names is not None:
        descr = np.lib.format.dtype_to_descr(dtype)
        name = json.dumps(descr, separators=(",", ":"))
        if isinstance(descr, str) or numpy_dtype(name) != dtype:
            raise ValueError("is a structure that has no plain description; copy its fields")
        return name
    return dtype.name if dtype.name in NATIVE and dtype.isnative else dtype.str


@lru_cache(maxsize=1024)
def numpy_dtype(name: str) -> np.dtype[Any]:
    """Return the numpy dtype of this name.

    Raises:  ValueError, TypeError or another of Python's for what is no name; HopliteError if it
             is ml_dtypes' and that is not installed.
    """
    if name in _EXTRA_BYTES:
        name_or_type = getattr(import_optional("ml_dtypes"), name)
    elif name.startswith("["):
        name_or_type = np.lib.format.descr_to_dtype(_with_tuples(json.loads(name)))
    else:
        name_or_type = name
    dtype: np.dtype[Any] = np.dtype(name_or_type)
    return dtype


def torch_name(dtype: Any) -> str:
    """Name a torch dtype.

    Raises:  ValueError with the reason if its elements are not whole bytes, or it is quantised.
    """
    name = str(dtype).removeprefix("torch.")
    if name not in _TORCH_BYTES:
        raise ValueError("is not one of whole numbers of bytes; take its .view(torch.uint8)")
    return name


def memory_step(tensor: Any, verb: str) -> str:
    """Return the next step for a tensor that is not in the CPU's memory, for a caller's `verb`."""
    if tensor.is_meta:
        return "it has no bytes: give its module memory by .to_empty(device='cpu'), and load it"
    return f"{verb} its .cpu()"


def torch_dtype(name: str) -> Any:
    """Return the torch dtype of this name.

    Raises:  HopliteError if torch is not installed, or this one does not have it.
    """
    dtype = getattr(import_optional("torch"), name, None)
    if dtype is None:
        raise HopliteError(f"this object holds torch.{name}, which this torch lacks; update torch")
    return dtype


def name_of(kind: Kind, dtype: Any) -> str:
    """Return the name of a dtype that a user gives: by name, or as numpy's or torch's object.

    Raises:  ValueError or TypeError if it is none.
    """
    if kind == "torch":
        return torch_name(dtype)
    if kind != "numpy":
        raise ValueError(f"kind {kind!r} is unknown")
    is_extra = isinstance(dtype, str) and dtype in _EXTRA_BYTES
    return dtype if is_extra else numpy_name(np.dtype(dtype))


@lru_cache(maxsize=1024)
def element_bytes(kind: LeafKind, name: str) -> int:
    """Return the bytes of one element; needs neither torch nor ml_dtypes.

    Raises:  InvalidArgumentError if it is no name that numpy_name or torch_name gives.
    """
    if kind == "python" and name in PLAIN:
        return PLAIN[name][1]
    if kind == "torch" and name in _TORCH_BYTES:
        return _TORCH_BYTES[name]
    if name in _EXTRA_BYTES and kind != "python":
        return _EXTRA_BYTES[name]
    if kind == "numpy":
        try:
            dtype = numpy_dtype(name)
            if numpy_name(dtype) == name:
                return dtype.itemsize
        except Exception:  # numpy has many ways to refuse a hostile name
            pass
    raise InvalidArgumentError(f"{name[:60]!r} is no dtype of {kind}")


def _with_tuples(descr: Any) -> Any:
    """Give a dtype description back the tuples that JSON has turned into lists."""
    if not isinstance(descr, list):
        return descr
    return [
        (tuple(name) if isinstance(name, list) else name, _with_tuples(kind), *map(tuple, shape))
        for name, kind, *shape in descr
    ]
