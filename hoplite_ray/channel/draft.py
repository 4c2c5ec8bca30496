"""A version that its publisher writes in the store's own memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hoplite_ray.errors import InvalidArgumentError
from hoplite_ray.values.codec import Template, describe_empty
from hoplite_ray.values.layout import Layout


@dataclass(slots=True, eq=False)
class Draft:
    """The layout of a version, and the function that writes its arrays."""

    template: Template
    fill: Callable[[Any], None]
    has_failed: bool = False  # True if the function has raised

    @property
    def layout(self) -> Layout:
        """The layout of the version."""
        return self.template.layout

    def write(self, value: Any) -> None:
        """Have the function write a value. Raises: what the function does."""
        self.has_failed = True
        self.fill(value)
        self.has_failed = False


def draft(like: Any, fill: Any) -> Draft:
    """Describe a version that `fill` writes.

    Raises:  InvalidArgumentError for what is no function, or the part of `like` that no object can
             hold.
    """
    if not callable(fill):
        raise InvalidArgumentError(
            f"fill is {fill!r:.80}; it is a function that writes the arrays of the value that it "
            "gets, or None to publish the value itself"
        )
    return Draft(describe_empty(None, None, "numpy", like), fill)
