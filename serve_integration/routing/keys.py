"""The rules by which the senders of a stage choose its replica: a key, or nearness to the Arrays.

A rule makes something of each query where its value is made: a digest of its key, or the list of
its Arrays. A *chooser* takes that, and returns the replica.
"""

from __future__ import annotations

import numbers
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Protocol

import hoplite_ray
from hoplite_ray.serve.edge.failures import as_exception, attach_note
from hoplite_ray.serve.edge.frames import find_handles
from hoplite_ray.serve.routing.affinity import Affinity, Calls
from hoplite_ray.serve.routing.handoff import Stored
from hoplite_ray.serve.routing.nearness import Arrays, Nearness, Part

KeyFunction = Callable[[Any], Any]
Key = bytes | Arrays  # of a query, by the rule of its stage; None: any replica is as good

_DIGEST_BYTES = 16  # two of 10^9 keys are alike with a probability below 10^-20
_TRACEBACK_MAX = 4000  # characters; the end of a longer one goes along with its exception


class Chooser(Protocol):
    """The choices of one sender among the replicas of a stage that has a rule."""

    def choose(self, key: Any, calls: Mapping[str, Calls], /) -> str:
        """Return the replica for a query with this key."""
        ...

    def rank(self, key: Any, calls: Mapping[str, Calls], /) -> tuple[str, ...]:
        """Return all replicas: first that of `choose`, then the others, best first."""
        ...


@dataclass(frozen=True, slots=True)
class KeyRule:
    """A stage with a key, as its senders know it.

    stage:      its name.
    function:   returns the key of a query.
    max_batch:  of the stage.
    """

    stage: str
    function: KeyFunction
    max_batch: int

    def derive(self, value: Any) -> bytes | None:
        """Return the digest of a query's key; None for a query without one.

        Raises:  what the function raises, with the stage's name as its note; TypeError, with the
                 same note, for a key of another type.
        """
        try:
            return digest_key(self.function(value))
        except BaseException as raised:  # a SystemExit of the function would end the sender
            text = "".join(traceback.format_exception(raised))[-_TRACEBACK_MAX:]
            error = as_exception(raised).with_traceback(None)
        raise attach_note(error, f"in stage {self.stage}: its key can't be had:\n{text}")

    def make_chooser(self, nodes: Mapping[str, str], draw: Callable[[], float]) -> Chooser:
        """Return the choices of a new sender. `nodes` and `draw` are as for `Nearness`."""
        return Affinity(max_batch=self.max_batch)


@dataclass(frozen=True, slots=True)
class NearRule:
    """A stage with `near="data"`, as its senders know it.

    stage:      its name.
    max_batch:  of the stage.
    """

    stage: str
    max_batch: int

    def derive(self, value: Any) -> Arrays | None:
        """Return the Arrays of a query; None if it has none, or can't be sent.

        A value in the store is one Array. Small values that travel in their handles are left out.

        value:  of the query, or its `Packed` or `Stored`, which cost no pickle.
        """
        try:
            handles = [value.array] if isinstance(value, Stored) else find_handles(value)
        except BaseException:  # the call itself says why the value can't be sent
            return None
        found = [each for each in handles if isinstance(each, hoplite_ray.Array)]
        parts = {
            each._object_id: Part(each._object_id, each.nbytes, each._origin)
            for each in found
            if each._small is None
        }
        return tuple(parts.values()) or None

    def make_chooser(self, nodes: Mapping[str, str], draw: Callable[[], float]) -> Chooser:
        """Return the choices of a new sender. `nodes` and `draw` are as for `Nearness`."""
        return Nearness(max_batch=self.max_batch, nodes=nodes, draw=draw)


Rule = KeyRule | NearRule


@dataclass(frozen=True, slots=True)
class KeyedAnswer:
    """An answer on its way out of a replica's batch.

    value:  the packed answer.
    keys:   its keys at the next stages that have a rule, by their names.
    """

    value: Any
    keys: Mapping[str, Key | None]


def digest_key(key: Any) -> bytes | None:
    """Return the digest of a key, which is the same in all processes; None for None.

    Keys that are equal in Python have one digest, for example 1, True and `numpy.int64(1)`.

    Raises:  TypeError for a key that is not text, bytes, a whole number or a tuple of these.
    """
    if key is None:
        return None
    return blake2b(_encode(key), digest_size=_DIGEST_BYTES).digest()


def _encode(key: Any) -> bytes:
    if isinstance(key, str):
        return b"s" + key.encode(errors="surrogatepass")
    if isinstance(key, bytes):
        return b"b" + key
    if isinstance(key, numbers.Integral):
        return b"i%d" % int(key)
    if isinstance(key, tuple):
        parts = [b"n" if each is None else _encode(each) for each in key]
        return b"t" + b"".join(b"%d:%s" % (len(part), part) for part in parts)
    raise TypeError(
        f"a key is {type(key).__name__}; let it be text, bytes, a whole number, a tuple of these, "
        "or None for a query without affinity"
    )
