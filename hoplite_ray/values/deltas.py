"""Deltas between two values of one layout: found beside a copy, applied one or many in one pass.

A delta holds the elements whose bits changed. Its bytes do not depend on the processor.
native/delta/delta.h describes them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

from hoplite_ray import _native
from hoplite_ray.values.dtypes import NATIVE, OPAQUE, SAME, element_bytes
from hoplite_ray.values.layout import Layout

if TYPE_CHECKING:
    from typing_extensions import Buffer  # collections.abc has it from Python 3.12 on

# Beyond half of the bytes a delta saves less time than its copy and its base cost (decision 41).
SHARE_MAX = 0.5

DELTAS_MAX = 32  # of one pass: kDeltasPerPassMax

_WIDTHS = {OPAQUE: 1, SAME: 1} | {
    number: element_bytes("numpy", name) for name, number in NATIVE.items()
}


def list_ranges(layout: Layout) -> list[tuple[int, int]]:
    """Return the runs of elements of one width: pairs of bytes, and bytes of an element.

    Opaque dtypes count as single bytes, so that any element is a whole number of them.

    Example: a dict of a bfloat16 array of 64 elements and an int64 of 8: [(128, 2), (64, 8)].
    """
    widths = ((_WIDTHS.get(dtype, 1), size_bytes) for dtype, size_bytes in layout.parts)
    return [
        (sum(size_bytes for _, size_bytes in run), width)
        for width, run in groupby(widths, key=lambda part: part[0])
    ]


def choose_limit_bytes(size_bytes: int, share_max: float = SHARE_MAX) -> int:
    """Return the largest delta, in bytes, that is worth its making; 0 if none is.

    Args:    size_bytes: of the value. One that travels in control frames has no use for a delta.
             share_max: of the value's bytes.
    Example: 50 << 20 for a value of 100 MiB, and 0 for one of 64 KiB.
    """
    return int(size_bytes * share_max) if size_bytes > _native.INLINE_BYTES_MAX else 0


def are_worth_it(delta_bytes: Iterable[int], size_bytes: int, share_max: float = SHARE_MAX) -> bool:
    """Return True if fetching deltas of these sizes is worth more than fetching the whole value.

    Example: are_worth_it([3 << 20] * 5, 100 << 20) is True, and with 20 deltas it is False.
    """
    return 0 < sum(delta_bytes) <= choose_limit_bytes(size_bytes, share_max)


def find_delta(
    layout: Layout,
    base: Buffer,
    data: Sequence[Buffer],
    *,
    target: Buffer | None = None,
    share_max: float = SHARE_MAX,
) -> memoryview | None:
    """Compare a new value with its base, and copy it to `target` in the same pass.

    Args:    layout: of both values. The caller has compared the two.
             base: the bytes of the older value.
             data: the new value's bytes, as `codec.encode` gives them: buffers of whole elements.
             target: writable memory of the same size; it gets all of `data`, delta or none.
             share_max: of the value's bytes; a delta above it is given up early.
    Returns: the delta's bytes; None if it is not worth its making (choose_limit_bytes).
    Raises:  InvalidArgumentError if sizes differ, or `target` overlaps another argument.
    Cost:    one read of `base` and `data`, without the GIL; figures in decision 41.
    Example: delta = find_delta(layout, base, codec.encode(value).data, target=memory)
    """
    limit_bytes = choose_limit_bytes(layout.size_bytes, share_max)
    found: Any = _native.find_delta(
        base, data, list_ranges(layout), limit_bytes=limit_bytes, target=target
    )
    return None if found is None else memoryview(found)


def apply_deltas(deltas: Sequence[Buffer], base: Buffer, target: Buffer) -> None:
    """Rebuild a value from its base and the deltas after it, in one pass: the last delta wins.

    Args:    deltas: of consecutive values, the oldest first; at most DELTAS_MAX.
             base: the bytes of the value that the first delta was made for.
             target: writable memory of the same size: `base` itself, or none of its bytes.
    Raises:  InvalidArgumentError if a delta is corrupt, or is made for another base; then `target`
             is void. The checksum of every MiB is compared.
    Cost:    one copy of the value, without the GIL; figures in decision 41.
    Example: apply_deltas([delta], base, memory)
    """
    _native.apply_deltas(deltas, base, target)
