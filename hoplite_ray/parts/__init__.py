"""Parts of values: what a path or an index takes, and values whose shards are several objects.

`planning` turns a part into ranges of the source's bytes; `indexing` and `paths` are below it.
The three are pure. `fetching` gets a part from a store. `composed` reads a part of shards that are
several objects.
START HERE: planning.py. Programs use `shards`, `split` and `take_share`.
"""

from hoplite_ray.parts.composed import Composed, Shards, shards
from hoplite_ray.parts.indexing import Split
from hoplite_ray.parts.ranks import split, take_share

__all__ = ["Composed", "Shards", "Split", "shards", "split", "take_share"]
