"""Streams of named tensors, and their places in the store's memory."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from typing import TypeAlias

import torch

from hoplite_ray.errors import HopliteError, InvalidArgumentError
from hoplite_ray.values.specs import spec
from hoplite_ray.values.trees.tree import ArraySpec

Named: TypeAlias = Iterable[tuple[str, torch.Tensor]]


def copy_tensors(weights: Named) -> dict[str, torch.Tensor]:
    """Return copies of named tensors in CPU memory, because a generator may reuse its own.

    Raises:  InvalidArgumentError for a name that comes twice.
    """
    copies: dict[str, torch.Tensor] = {}
    for name, tensor in weights:
        if name in copies:
            raise InvalidArgumentError(f"tensor {name!r} comes twice; each name has one tensor")
        copies[name] = _copy(tensor)
    return copies


def describe_tensors(tensors: dict[str, torch.Tensor]) -> dict[str, ArraySpec]:
    """Return what `publish(fill=...)` lays out like these tensors."""
    return {name: spec(each.shape, each.dtype, "torch") for name, each in tensors.items()}


class Writer:
    """Writes one stream of named tensors into the tensors of a version. It is used once."""

    def __init__(self, weights: Named) -> None:
        self._weights = iter(weights)
        self._is_used = False
        self.left: dict[str, torch.Tensor] = {}  # what had no place; empty if all have one

    def write(self, places: dict[str, torch.Tensor]) -> None:
        """Copy each tensor into its place, whatever device it is on.

        Raises:  InvalidArgumentError naming the first tensor that has no place, or the places that
                 are left. All tensors of the stream are then in `left`.
                 HopliteError if the stream was read before.
        """
        if self._is_used:
            raise HopliteError(
                "the node of this process died while it wrote weights, which can be read once; "
                "send the weights again"
            )
        self._is_used = True
        written: dict[str, torch.Tensor] = {}
        for name, tensor in self._weights:
            place = places.get(name)
            if place is None or not _fits(tensor, place) or name in written:
                self._rescue(written, (name, tensor))
                raise InvalidArgumentError(f"tensor {name!r} {_describe_misfit(tensor, place)}")
            written[name] = place.copy_(tensor.detach())
        if missing := places.keys() - written:
            self._rescue(written)
            raise InvalidArgumentError(
                f"{len(missing)} tensors are missing, among them {min(missing)!r}; the layout has "
                f"{len(places)}"
            )

    def _rescue(self, written: dict[str, torch.Tensor], *first: tuple[str, torch.Tensor]) -> None:
        """Keep copies of the whole stream, whose places will go."""
        copies = copy_tensors(written.items())
        rest = copy_tensors(chain(first, self._weights))  # one by one: they may share memory
        if twice := copies.keys() & rest.keys():
            raise InvalidArgumentError(
                f"tensor {min(twice)!r} comes twice; each name has one tensor"
            )
        self.left = copies | rest


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    copy = torch.empty(tensor.shape, dtype=tensor.dtype)
    return copy.copy_(tensor.detach())


def _fits(tensor: torch.Tensor, place: torch.Tensor) -> bool:
    return tensor.shape == place.shape and tensor.dtype == place.dtype


def _describe_misfit(tensor: torch.Tensor, place: torch.Tensor | None) -> str:
    found = f"has {tensor.dtype} and shape {tuple(tensor.shape)}"
    if place is None:
        return f"{found}, and the layout has no such name"
    return f"{found}, and its place {place.dtype} and shape {tuple(place.shape)}"
