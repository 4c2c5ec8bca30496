"""The half of a reduce that nodes do, for values above 64 KiB: they fold, each a share.

A result for the caller alone comes to this node block by block while it is folded. Without that,
the caller's get after the commit would wait for a whole further copy.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress

from hoplite_ray.client import StoreClient
from hoplite_ray.errors import HopliteError
from hoplite_ray.pending import Pending, ReceivedObject
from hoplite_ray.plugin.handle.array import Array
from hoplite_ray.plugin.handle.messages import Combination
from hoplite_ray.plugin.seams.core import Ref
from hoplite_ray.values.layout import Layout, Share

_fetch_tasks: set[asyncio.Task[None]] = set()  # the last blocks of results that have committed


class NodeFold:
    """A request to this node, which begins at once. `anchor` keeps the result alive."""

    def __init__(
        self,
        store: StoreClient,
        target: bytes,
        anchor: Ref,
        layout: Layout,
        how: Combination,
        *,
        share: Share | None,
        source_count: int,
        count: int,
    ) -> None:
        self._store = store
        self._target = target
        self._anchor = anchor
        self._layout = layout if share is None else share.layout
        self._is_for_caller = not how.everywhere  # an allreduce's result comes to all nodes
        self._fetch: Pending[ReceivedObject] | None = None  # of the result, to this node
        self._request = store.begin_reduce(
            target,
            source_count=source_count,
            count=count,
            op=how.op,
            everywhere=how.everywhere,
            deterministic=how.deterministic,
            share=share,
        )

    def add(self, index: int, handle: Array) -> None:
        """Tell the node that a source is there."""
        self._request.confirm(index, handle._object_id, incarnation=handle._incarnation)
        if self._is_for_caller and self._fetch is None:
            self._fetch = self._store.begin_get(self._target)

    def fail(self, index: int) -> None:
        """Tell the node that a source will not come."""
        self._request.fail(index)

    def is_over(self) -> bool:
        """Return True if it has committed or failed."""
        return self._request.wait(0)

    def members(self) -> Sequence[int]:
        """Return the sources that went in. Raises: ReduceError if the nodes have lost too many."""
        return self._request.result().members

    def make(self, members: tuple[bytes, ...]) -> Array:
        """Return the handle of the result. REQUIRES: `members` has returned."""
        if self._fetch is not None:
            rest = asyncio.create_task(_fetch_rest(self._fetch))
            _fetch_tasks.add(rest)
            rest.add_done_callback(_fetch_tasks.discard)
        return Array(self._target, 0, self._layout, self._anchor, members=members)

    def cancel(self) -> None:
        """End it, if it is not over."""
        self._request.cancel()
        if self._fetch is not None:
            self._fetch.cancel()


async def _fetch_rest(fetch: Pending[ReceivedObject]) -> None:
    with suppress(HopliteError):  # a get of the result raises it
        await fetch.result_async()
