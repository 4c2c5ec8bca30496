"""Arrays that have several names in a value, such as tied weights: each is one leaf."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, TypeAlias

import numpy as np

from hoplite_ray.values.trees.alike import Alike

_Distinct: TypeAlias = tuple[Sequence[Any], Sequence[int], int]  # with the first leaf's number


class Ties:
    """The arrays so far, by their memory, so that one under two names is one leaf."""

    __slots__ = (
        "_bases",
        "_by_address",
        "_by_memory",
        "_distinct",
        "_names",
        "_owners",
        "_tensors",
    )

    def __init__(self) -> None:
        self._tensors: dict[int, tuple[int, Any, int]] = {}  # the first at each address
        self._by_memory: dict[Hashable, int] = {}  # tensors where several are at one address
        self._owners: dict[int, tuple[int, Any, int]] = {}  # arrays that have their memory, by id
        self._bases: set[int] = set()  # ids of the owners of other arrays' memory
        self._by_address: dict[Hashable, int] = {}  # arrays with the memory of others
        self._distinct: list[_Distinct] = []  # those that the tables above have not
        self._names: set[int] = set()  # of their memory

    def has_no_tie(self, owners: set[int]) -> bool:
        """Return whether no array so far has memory of these names (`Alike.owners`)."""
        known = (self._names, self._owners.keys(), self._bases, self._tensors.keys())
        return all(owners.isdisjoint(each) for each in known)

    def add_distinct(
        self, alike: Alike, values: Sequence[Any], numbers: Sequence[int], first: int
    ) -> None:
        """Know these as leaves from `first` on. REQUIRES: `has_no_tie`."""
        self._names |= alike.owners
        self._distinct.append((values, numbers, first))

    def _tabulate(self) -> None:
        """Put all that are distinct into the tables, for one that may be tied to them."""
        for values, numbers, first in self._distinct:
            for leaf, (value, number) in enumerate(zip(values, numbers, strict=True), first):
                if isinstance(value, np.ndarray):
                    self._owners[id(value)] = leaf, value, number
                else:
                    self._tensors[value.data_ptr()] = leaf, value, number
        self._distinct.clear()
        self._names.clear()

    def find_tensor(self, value: Any, address: int, number: int, new: int) -> int | None:
        """Return the leaf that is the same tensor; None after this one is known as `new`."""
        if not address:  # it has no elements
            return None
        if self._distinct:
            self._tabulate()
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
        if self._distinct:
            self._tabulate()
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
