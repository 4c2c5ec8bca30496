"""The base of a put, in its handle: a node that has the base fetches the delta only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hoplite_ray.plugin.seams.core import Ref
from hoplite_ray.values.layout import Layout
from hoplite_ray.values.recipe import Attempt, Recipe


@dataclass(frozen=True, slots=True)
class HandleRecipe:
    """A recipe without what its handle has anyway. The ref keeps the delta as long as the handle.

    A handle in Ray's objects holds the ref there, so the delta goes with the last of them.
    """

    base: Attempt
    delta: Ref
    delta_incarnation: int
    block_bytes: int
    crc32c: int

    def complete(self, layout: Layout, incarnation: int) -> Recipe:
        """Return the recipe of a handle with this layout and incarnation."""
        delta = Attempt(self.delta.binary(), self.delta_incarnation)
        return Recipe(layout, self.block_bytes, self.crc32c, self.base, (delta,), incarnation)

    def to_fields(self) -> tuple[Any, ...]:
        """Return what a pickle holds."""
        return (*self.base, self.delta, self.delta_incarnation, self.block_bytes, self.crc32c)

    @classmethod
    def from_fields(cls, fields: tuple[Any, ...] | None) -> HandleRecipe | None:
        """Return what `to_fields` wrote; None for a handle without a recipe."""
        if fields is None:
            return None
        object_id, incarnation, *others = fields
        return cls(Attempt(object_id, incarnation), *others)
