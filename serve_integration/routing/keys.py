"""The keys of queries: what a sender knows of a stage with `key=`, and a key as a digest."""

from __future__ import annotations

import numbers
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from hoplite_ray.serve.edge.failures import as_exception, attach_note

KeyFunction = Callable[[Any], Any]

_DIGEST_BYTES = 16  # two of 10^9 keys are alike with a probability below 10^-20
_TRACEBACK_MAX = 4000  # characters; the end of a longer one goes along with its exception


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


@dataclass(frozen=True, slots=True)
class KeyedAnswer:
    """An answer on its way out of a replica's batch.

    value:  the packed answer.
    keys:   its digests at the next stages that have a key, by their names.
    """

    value: Any
    keys: Mapping[str, bytes | None]


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
