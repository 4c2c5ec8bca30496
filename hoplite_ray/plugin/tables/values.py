"""The values of a table: objects of the store, each copy under an id of its own.

One copy is on the node of the process that puts the value, the others on other Ray nodes, whose
stewards put them. A version is in the log only when all of its copies are stored.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import ray

from hoplite_ray.errors import (
    DuplicateObjectError,
    GetTimeoutError,
    HopliteError,
    NodeLostError,
    ObjectLostError,
)
from hoplite_ray.plugin.handle.array import SMALL_BYTES_MAX
from hoplite_ray.plugin.handle.fetching import in_thread, retry
from hoplite_ray.plugin.node.start import NodePlace, node_name, node_number
from hoplite_ray.plugin.process.attachment import TRIES, Attachment, attachment
from hoplite_ray.plugin.seams import core as seams
from hoplite_ray.plugin.steward_client.client import Copy, steward_of
from hoplite_ray.plugin.surface.api import raise_ours
from hoplite_ray.plugin.tables.janitor import Janitor, Kind
from hoplite_ray.tables.log import Garbage, value_ids
from hoplite_ray.tables.versions import Version
from hoplite_ray.values.codec import Encoded
from hoplite_ray.values.deadlines import left_s

_NODES_AGE_S = 1.0  # for which the list of Ray nodes is not asked for again
_KEEP_S = 600.0  # of another node's copy of a value, for a put without a limit
_RESTORE_S = 30.0  # of a copy that was lost; the next read tries again


class Values:
    """Stores, fetches and deletes the values of one table. Any thread may use it."""

    def __init__(self, table: str, janitor: Janitor) -> None:
        self._table = table
        self._janitor = janitor
        self._nodes: tuple[float, list[str]] = (0.0, [])  # when they were asked for, and which
        self._stewards: dict[str, Any] = {}  # by Ray node
        self._lock = threading.Lock()  # guards `_restoring`
        self._restoring: set[bytes] = set()  # copies that are being put again

    def store(
        self,
        writer: str,
        numbers: Sequence[int],
        values: Sequence[Encoded],
        copies: int,
        deadline: float | None,
    ) -> tuple[int, ...]:
        """Store each value under its number, and return the nodes of the copies.

        With fewer than `copies` Ray nodes there is a copy on each. It begins again if the node of
        this process dies meanwhile. Copies of an earlier try that the version won't name are
        deleted, because its garbage won't name them either.
        Raises: StoreFullError and others of a put; HopliteError if no other node takes a copy.
        """
        here = attachment(deadline)
        for tries_left in reversed(range(TRIES)):
            try:
                nodes = self._store_once(here, writer, numbers, values, copies, deadline)
            except (ObjectLostError, NodeLostError):
                if not tries_left:
                    raise
                continue
            if tries_left < TRIES - 1:
                for number in numbers:
                    for surplus in value_ids(self._table, writer, number, copies)[len(nodes) :]:
                        here.delete(surplus, timeout_s=left_s(deadline))
            return nodes
        raise AssertionError("unreachable")

    def _store_once(
        self,
        here: Attachment,
        writer: str,
        numbers: Sequence[int],
        values: Sequence[Encoded],
        copies: int,
        deadline: float | None,
    ) -> tuple[int, ...]:
        own = here.place.ray_node_id
        others = self._rank_nodes([each for each in self._ray_nodes(here) if each != own], writer)
        wanted = min(copies - 1, len(others))
        ids = [value_ids(self._table, writer, number, 1 + wanted) for number in numbers]
        store = here.store_by(deadline)
        begun = [store.begin_put(names[0], each) for names, each in zip(ids, values, strict=True)]
        try:
            for pending in begun:
                with suppress(DuplicateObjectError):  # an earlier try has put it
                    pending.result(left_s(deadline))
        except BaseException:
            for pending in begun:
                pending.cancel()
            raise
        nodes = [node_number(own)]
        sources = _find_sources([names[0] for names in ids], values)
        for copy in range(1, 1 + wanted):
            made = [(source, names[copy]) for source, names in zip(sources, ids, strict=True)]
            nodes.append(self._keep_anywhere(here, made, others, deadline))
        return tuple(nodes)

    def delete(self, garbage: Garbage) -> None:
        """Delete all copies of these values; ids without an object are no error."""
        here = attachment()
        for number in garbage.numbers:
            for object_id in value_ids(self._table, garbage.writer, number, garbage.copies):
                here.delete(object_id)

    def fetch(self, version: Version, deadline: float | None) -> Any:
        """Return the value of a version, from the first copy that is there.

        Raises: ObjectLostError if none is; GetTimeoutError.
        """
        here = attachment(deadline)
        lost: list[bytes] = []
        for object_id in self._rank_copies(version, here):
            try:
                value = _fetch(here, object_id, deadline)
            except ObjectLostError:
                lost.append(object_id)
                continue
            self._restore_later(here, version, object_id, lost)
            return value
        raise self._lost_error(version)

    async def fetch_async(self, version: Version, deadline: float | None) -> Any:
        """Like `fetch`, but awaitable; cancelling it cancels the transfer."""
        here = await in_thread(deadline, attachment, deadline)
        lost: list[bytes] = []
        for object_id in self._rank_copies(version, here):
            try:
                received = await retry(partial(_begin, object_id), deadline)
            except ObjectLostError:
                lost.append(object_id)
                continue
            self._restore_later(here, version, object_id, lost)
            return received.value
        raise self._lost_error(version)

    def _rank_copies(self, version: Version, here: Attachment) -> list[bytes]:
        """Return the ids of the copies, the one on this node first."""
        ids = value_ids(self._table, version.writer, version.value, len(version.nodes))
        own = node_number(here.place.ray_node_id)
        places = sorted(range(len(ids)), key=lambda each: version.nodes[each] != own)
        return [ids[each] for each in places]

    def _restore_later(
        self, here: Attachment, version: Version, source: bytes, lost: list[bytes]
    ) -> None:
        """Put the copies that were lost with their nodes again, unless this process does so now."""
        with self._lock:
            missing = [each for each in lost if each not in self._restoring]
            self._restoring.update(missing)
        if missing:
            self._janitor.do(partial(self._restore, here, version, source, missing), Kind.UPKEEP)

    def _restore(
        self, here: Attachment, version: Version, source: bytes, missing: list[bytes]
    ) -> None:
        try:
            others = self._rank_others(here, version, missing)
            deadline = time.monotonic() + _RESTORE_S
            for each in missing[: len(others)]:
                self._keep_anywhere(here, [(source, each)], others, deadline)
        finally:
            with self._lock:
                self._restoring.difference_update(missing)

    def _rank_others(self, here: Attachment, version: Version, missing: list[bytes]) -> list[str]:
        """Return the nodes for the missing copies: none that was given a copy which is there.

        Each copy of a value begins at another place of one order. So a copy does not come to the
        node to which another one was moved before, except when the nodes have changed meanwhile.
        """
        ids = value_ids(self._table, version.writer, version.value, len(version.nodes))
        there = {node for node, each in zip(version.nodes, ids, strict=True) if each not in missing}
        nodes = [each for each in self._ray_nodes(here) if node_number(each) not in there]
        ranked = self._rank_nodes(nodes, ids[0].hex())
        first = ids.index(missing[0]) % max(1, len(ranked))
        return ranked[first:] + ranked[:first]

    def _keep_anywhere(
        self,
        here: Attachment,
        made: list[Copy],
        others: list[str],
        deadline: float | None,
    ) -> int:
        """Have the first of `others` that can keep copies; take it and those before it out.

        Returns: that node's id.
        Raises:  the error of the last one if none can.
        """
        failure: Exception = HopliteError(
            f"no other Ray node takes a copy of a value of table {self._table!r}: add a Ray node, "
            "or make the table with fewer copies"
        )
        while others:
            node = others.pop(0)
            try:
                return self._keep_on(here, node, made, deadline)
            except (GetTimeoutError, ObjectLostError):  # the latter: the first copies have gone
                raise
            except HopliteError as error:
                self._nodes = (0.0, [])  # it may have left
                failure = error
            except ray.exceptions.RayError as error:
                self._nodes = (0.0, [])
                why = str(error).splitlines()[0]
                failure = HopliteError(
                    f"Ray node {node} has not taken a copy of a value of table {self._table!r} "
                    f"({why}): put again, or make the table with fewer copies"
                )
        raise failure

    def _keep_on(
        self,
        here: Attachment,
        ray_node_id: str,
        made: list[Copy],
        deadline: float | None,
    ) -> int:
        """Have one Ray node's steward keep copies. A steward that has left is started again."""
        for tries_left in reversed(range(TRIES)):
            steward = self._find_steward(here, ray_node_id)
            limit_s = left_s(deadline)
            try:
                return int(
                    seams.wait_for_answer(
                        lambda each=steward: each.keep_copies.remote(made),  # type: ignore[misc]
                        here.connection,
                        _KEEP_S if limit_s is None else limit_s,
                    )
                )
            except TimeoutError as error:
                raise GetTimeoutError(
                    f"Ray node {ray_node_id} has not taken a copy of a value of table "
                    f"{self._table!r} in time; raise timeout_s, or see its steward's log"
                ) from error
            except ray.exceptions.RayTaskError as error:
                raise_ours(error)
                raise
            except ray.exceptions.ActorDiedError:
                self._stewards.pop(ray_node_id, None)
                if not tries_left:
                    raise
        raise AssertionError("unreachable")

    def _find_steward(self, here: Attachment, ray_node_id: str) -> Any:
        steward = self._stewards.get(ray_node_id)
        if steward is None:
            with seams.stay_connected(here.connection):
                steward = steward_of(NodePlace(ray_node_id, Path(node_name(ray_node_id))))
            self._stewards[ray_node_id] = steward
        return steward

    def _ray_nodes(self, here: Attachment) -> list[str]:
        """Return the Ray nodes that live and are not drained; asks Ray once a second at most."""
        asked_s, nodes = self._nodes
        if not nodes or time.monotonic() > asked_s + _NODES_AGE_S:
            with seams.stay_connected(here.connection):
                nodes = seams.placeable_nodes()
            self._nodes = (time.monotonic(), nodes)
        return nodes

    def _rank_nodes(self, nodes: list[str], key: str) -> list[str]:
        """Return the nodes by rendezvous hashing, so that writers spread over them."""
        return sorted(
            nodes,
            key=lambda node: hashlib.blake2b(f"{key} {node}".encode(), digest_size=8).digest(),
        )

    def _lost_error(self, version: Version) -> ObjectLostError:
        nodes = ", ".join(f"{node:x}" for node in version.nodes)
        return ObjectLostError(
            f"all copies of version {version.number} of table {self._table!r} are lost with their "
            f"nodes ({nodes}): put the value again"
        )


def _find_sources(
    ids: Sequence[bytes], values: Sequence[Encoded]
) -> Sequence[tuple[bytes, bytes] | bytes]:
    """Return the sources of copies: the values if all of them are small, or else their ids."""
    if sum(each.layout.size_bytes for each in values) > SMALL_BYTES_MAX:
        return ids
    return [(each.layout.to_bytes(), b"".join(each.data)) for each in values]


def _begin(object_id: bytes, store: Any) -> Any:
    return store.begin_get(object_id, exists=True)


def _fetch(here: Attachment, object_id: bytes, deadline: float | None) -> Any:
    for tries_left in reversed(range(TRIES)):
        try:
            pending = here.store_by(deadline).begin_get(object_id, exists=True)
            return pending.result(left_s(deadline)).value
        except NodeLostError:
            if not tries_left:
                raise
    raise AssertionError("unreachable")
