"""Copies of a table's values, which this node keeps until the table deletes them.

A get leaves a copy that is evicted when memory is needed. A put under an id of its own stays. So a
value of a table has an id for each copy, and the steward of another node puts the second one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from functools import partial

from hoplite_ray.client import StoreClient
from hoplite_ray.errors import DuplicateObjectError
from hoplite_ray.pending import Pending
from hoplite_ray.plugin.handle.fetching import retry
from hoplite_ray.plugin.steward_client.client import Copy
from hoplite_ray.values.codec import Encoded
from hoplite_ray.values.layout import Layout


async def keep_copies(copies: Sequence[Copy]) -> None:
    """Put the value of each source under its target, on this node. Repeating it changes nothing.

    Raises: ObjectLostError if a source is gone; StoreFullError.
    Cost:   the bytes over the network, and one copy of them. A small value comes with the call, so
            that its first copy is not asked for.
    """
    ends = await asyncio.gather(*(_keep(*each) for each in copies), return_exceptions=True)
    for end in ends:
        if end is not None:
            raise end


async def _keep(source: tuple[bytes, bytes] | bytes, target: bytes) -> None:
    if isinstance(source, bytes):
        value = await retry(partial(_begin_get, source), None)
    else:
        layout, data = source
        value = Encoded(Layout.from_bytes(layout), [memoryview(data)])
    with suppress(DuplicateObjectError):  # an earlier attempt of the call has put it
        await retry(partial(_begin_put, target, value), None)


def _begin_get(source: bytes, store: StoreClient) -> Pending[Encoded]:
    return store.begin_get_encoded(source)


def _begin_put(target: bytes, value: Encoded, store: StoreClient) -> Pending[None]:
    return store.begin_put(target, value)
