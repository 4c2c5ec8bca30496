"""How a node makes one version of an object of another one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from hoplite_ray.values.layout import Layout


class Attempt(NamedTuple):
    """One attempt's bytes of an object."""

    object_id: bytes
    incarnation: int = 1


@dataclass(frozen=True, slots=True)
class Delta:
    """A delta, as a reader needs to know it to make a `Recipe`."""

    size_bytes: int
    crc32c: int  # of the bytes that it leads to
    block_bytes: int  # into which all nodes cut the object of these bytes


@dataclass(frozen=True, slots=True)
class Recipe:
    """A base that a node may have, and the deltas that lead from it to an object.

    Base and object have as many bytes. Each delta is an object of its own, whose bytes are those of
    `native/delta/delta.h`.
    """

    layout: Layout  # of the object
    block_bytes: int  # into which all nodes cut the object; `Fetched.block_bytes` has it
    crc32c: int  # of the object's bytes; `describe_delta` of the last delta has it as `new_crc`
    base: Attempt
    deltas: tuple[Attempt, ...]  # the oldest first: each is applied to what the last one made
    incarnation: int = 1  # of the object
