"""Arrays that have several names in a value, such as tied weights: each is one leaf."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import numpy as np


class Ties:
    """The arrays so far, by their memory, so that one under two names is one leaf."""

    __slots__ = ("_bases", "_by_address", "_by_memory", "_owners", "_tensors")

    def __init__(self) -> None:
        self._tensors: dict[int, tuple[int, Any, int]] = {}  # the first at each address
        self._by_memory: dict[Hashable, int] = {}  # tensors where several are at one address
        self._owners: dict[int, tuple[int, Any, int]] = {}  # arrays that have their memory, by id
        self._bases: set[int] = set()  # ids of the owners of other arrays' memory
        self._by_address: dict[Hashable, int] = {}  # arrays with the memory of others

    def find_tensor(self, value: Any, address: int, number: int, new: int) -> int | None:
        """Return the leaf that is the same tensor; None after this one is known as `new`."""
        if not address:  # it has no elements
            return None
        first = self._tensors.setdefault(address, (new, value, number))
        if first[0] == new:
            return None
        self._by_memory.setdefault(_name_tensor(first[1], first[2]), first[0])
        known = self._by_memory.setdefault(_name_tensor(value, number), new)
        return None if known == new else known

    def find_array(self, value: Any, number: int, new: int) -> int | None:
        """Like `find_tensor`, for an array. An address takes long, so owners go by id."""
        if not value.size or not isinstance(value, np.ndarray):
            return None
        base = value.base
        if base is None:
            first = self._owners.setdefault(id(value), (new, value, number))
            if first[0] != new:
                return first[0]
            if id(value) not in self._bases:
                return None
        else:
            self._bases.add(id(base))
            if (owner := self._owners.get(id(base))) is not None:
                self._by_address.setdefault(_name_array(owner[1], owner[2]), owner[0])
        known = self._by_address.setdefault(_name_array(value, number), new)
        if known == new:
            return None
        if base is None:
            self._owners[id(value)] = known, value, number
        return known


def _name_tensor(value: Any, number: int) -> Hashable:
    shape, strides = tuple(value.shape), value.stride()
    return value.data_ptr(), number, shape, strides, value.is_conj(), value.is_neg()


def _name_array(value: Any, number: int) -> Hashable:
    return value.__array_interface__["data"][0], number, value.shape, value.strides
