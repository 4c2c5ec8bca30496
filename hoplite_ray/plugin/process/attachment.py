"""This process's attachment to the node of its Ray node: made at first use, renewed when it breaks.

A process has one. It has the store's client, the journal and the reaper of owned objects, and the
anchors in store.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable
from contextlib import suppress
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import ray

from hoplite_ray.client import StoreClient
from hoplite_ray.errors import (
    GetTimeoutError,
    HopliteError,
    NodeLostError,
    ObjectLostError,
    UnusableAfterForkError,
)
from hoplite_ray.pending import Pending
from hoplite_ray.plugin.node.start import NodePlace, RunningNode, ensure_node, node_name
from hoplite_ray.plugin.process import ids, job_options
from hoplite_ray.plugin.process.anchors import AnchorSupply
from hoplite_ray.plugin.process.journal import Journal
from hoplite_ray.plugin.process.known_puts import KnownPuts
from hoplite_ray.plugin.process.reaper import Reaper
from hoplite_ray.plugin.process.sharing import SharedCall
from hoplite_ray.plugin.seams import core as seams
from hoplite_ray.plugin.steward_client.client import ask_any, name_guest, steward_of
from hoplite_ray.plugin.steward_client.incarnation import StewardIncarnation
from hoplite_ray.values.codec import Encoded
from hoplite_ray.values.deadlines import deadline_in, left_s

_BEGIN_S = 60.0  # of a steward's start, beyond which the call waits at the steward
TRIES = 3  # of an operation whose node dies; each try waits for the node's next incarnation


class RayObjectLostError(ObjectLostError, ray.exceptions.ObjectLostError):
    """ObjectLostError, which is also Ray's."""

    def __init__(self, message: str, object_ref_hex: str = "") -> None:
        Exception.__init__(self, message, object_ref_hex)
        self.object_ref_hex = object_ref_hex
        self.owner_address = None
        self.call_site = ""

    def __str__(self) -> str:
        return str(self.args[0])


class Attachment:
    """This process's part of its node. Any thread may use it."""

    def __init__(self, place: NodePlace) -> None:
        self.pid = os.getpid()
        job_options.refuse_raw(ray.get_runtime_context().runtime_env)
        self.place = place
        self.connection = seams.connection()
        ids.count_restarts()  # the first call asks Ray: here, where no event loop waits for it
        self._node: RunningNode = ensure_node(
            place, job_options.requested_config(), origins=job_options.origins()
        )
        self._store: StoreClient | None = StoreClient(self._node.socket)
        self.journal = Journal(place.journals)
        log = place.directory / "node.log"
        self._renewal = SharedCall(
            "renewal", self._renew, lambda: f"the node here has no next life yet, see {log},"
        )
        self._steward: tuple[int, Any] = (0, None)  # its incarnation, and its handle
        self._find_call = SharedCall(
            "finding", self._find_steward, lambda: "the steward of this Ray node has not begun"
        )
        self._answer_stewards: dict[bytes, Any] = {}  # answer -> steward; until the last reference
        self.known_puts = KnownPuts()
        try:
            if seams.is_driver():
                _ = self._reaper  # notices a ray.shutdown
            if self._node.is_new:
                self.begin_steward(None)  # publishes the node's metrics from now on
        except BaseException:  # the next call makes another attachment
            self.close()
            raise

    @property
    def store(self) -> StoreClient:
        """The client of the node's current incarnation."""
        return self.store_by(None)

    @property
    def live_store(self) -> StoreClient | None:
        """`store`, if the node lives; None if a call would have to wait for its next life."""
        store = self._store
        return store if store is not None and store.is_alive else None

    def store_by(self, deadline: float | None) -> StoreClient:
        """Return `store`, if it is there by `deadline`.

        Raises: GetTimeoutError if the node has not restarted by then; the error of its start.
        """
        store = self._store
        if store is not None and store.is_alive:
            return store
        _refuse_at_end()
        return self._renewal.result(deadline)

    @property
    def node_incarnation(self) -> int:
        return self._node.incarnation

    @property
    def steward(self) -> Any:
        """The steward of this Ray node, which the call starts unless it runs."""
        return self.steward_by(None)

    def steward_by(self, deadline: float | None) -> Any:
        """Return `steward`, if there is one by `deadline`.

        Raises: GetTimeoutError otherwise; ActorUnschedulableError if Ray places none here.
        """
        life, steward = self._steward
        if life and StewardIncarnation.use(self.place, timeout_s=0.0) == life:
            return steward
        _refuse_at_end()
        return self._find_call.result(deadline)

    def _find_steward(self) -> Any:
        life = StewardIncarnation.use(self.place)
        if life == 0 or life != self._steward[0]:
            with seams.stay_connected(self.connection):
                self._steward = life or 0, steward_of(self.place)
        return self._steward[1]

    def begin_steward(self, deadline: float | None) -> None:
        """Start the steward of this Ray node unless it runs, or Ray drains the node.

        Raises: GetTimeoutError if it has not begun by `deadline`.
        """
        with suppress(ray.exceptions.ActorUnschedulableError):
            self.steward_by(deadline)

    def steward_for_call(self) -> tuple[Any, str]:
        """Return the steward for a reduce or gather of this process, and this process's name there.

        It is another Ray node's steward if Ray drains this node and its own steward has left,
        because none can begin here then. The call waits for the answer of a new steward, at most a
        minute: a call to a steward that Ray can't place is lost.

        Raises: HopliteError if Ray places no steward on any other node either.
        """
        if StewardIncarnation.use(self.place) != 0:
            return self.steward, self.journal.process

        def confirm_placed(steward: Any, is_here: bool) -> tuple[Any, bool]:
            with suppress(TimeoutError):  # on a busy machine the call waits at the steward
                seams.wait_for_answer(lambda: steward.anchors.remote(0), self.connection, _BEGIN_S)
            return steward, is_here

        steward, is_here = ask_any(lambda: self.steward, self._stewards_elsewhere, confirm_placed)
        guest = name_guest(seams.this_worker(), self.place.ray_node_id)
        return steward, self.journal.process if is_here else guest

    def watch_answer(self, answer: seams.Ref, steward: Any) -> None:
        """Tell `steward` when no reference to `answer` is left."""
        self._answer_stewards[answer.binary()] = steward
        self.answer_reaper.watch(answer)

    @cached_property
    def anchors(self) -> AnchorSupply:
        return AnchorSupply(self.place, lambda: self.steward, self._stewards_elsewhere)

    def _stewards_elsewhere(self) -> list[Callable[[], Any]]:
        """Return one `steward_of` for each other Ray node that Ray does not drain now."""

        def begin(ray_node_id: str) -> Any:
            with seams.stay_connected(self.connection):
                return steward_of(NodePlace(ray_node_id, Path(node_name(ray_node_id))))

        with seams.stay_connected(self.connection):
            nodes = seams.placeable_nodes()
        return [partial(begin, each) for each in nodes if each != self.place.ray_node_id]

    def reap(self, ref: seams.Ref, deadline: float | None) -> None:
        """Delete the object that this process has put under `ref`, when no reference is left.

        If this process dies first, the steward deletes it. A steward that has not begun by
        `deadline` reads of the object later. A node that Ray drains may have no steward.
        """
        self._reaper.watch(ref)
        with suppress(GetTimeoutError):
            self.begin_steward(deadline)

    @cached_property
    def _reaper(self) -> Reaper:
        return Reaper(self._release, self._shut_down)

    @cached_property
    def answer_reaper(self) -> Reaper:
        """Tells the steward of answers to which no reference is left."""
        return Reaper(self._abandon, self._shut_down)

    def _abandon(self, target: bytes) -> None:
        with seams.stay_connected(self.connection):
            self._answer_stewards.pop(target).abandon.remote(target)

    def _release(self, object_id: bytes) -> None:
        self.delete(object_id)
        self.journal.record_released(object_id)

    def _shut_down(self) -> None:
        """After a `ray.shutdown`, leave the objects of this process to its steward.

        Received arrays stay valid. The arena's memory stays mapped as long as one of them is left.
        """
        self.journal.close()
        self._drop_store()

    def _drop_store(self) -> None:
        """Close the store, and drop it, because it keeps the arena's memory mapped.

        It does not wait for a `_renew`, because the process may be at its end.
        """
        store, self._store = self._store, None
        if store is not None:
            store.close()

    def _renew(self) -> StoreClient:
        """Attach to the node's next incarnation, and start it unless another process has."""
        store = self._store
        if store is not None and store.is_alive:
            return store  # another call has renewed it since the caller looked
        with seams.stay_connected(self.connection):
            if store is not None:
                store.close()
            self._node = ensure_node(self.place, job_options.requested_config(), lost=self._node)
            self._store = store = StoreClient(self._node.socket)
            return store

    def put(
        self,
        object_id: bytes,
        value: Encoded,
        *,
        incarnation: int,
        timeout_s: float | None,
    ) -> None:
        self._retry(
            lambda store: store.begin_put(object_id, value, incarnation=incarnation), timeout_s
        )

    def delete(self, object_id: bytes, *, upto: int = 0, timeout_s: float | None = None) -> None:
        self._retry(lambda store: store.begin_delete(object_id, upto=upto), timeout_s)

    def orphan(self, object_id: bytes, *, upto: int = 0) -> None:
        self._retry(lambda store: store.begin_orphan(object_id, upto=upto), None)

    def _retry(
        self, begin: Callable[[StoreClient], Pending[None]], timeout_s: float | None
    ) -> None:
        """Call `operation`, and again for the next node if a node dies; all within `timeout_s`."""
        deadline = deadline_in(timeout_s)
        for tries_left in reversed(range(TRIES)):
            try:
                return begin(self.store_by(deadline)).result(left_s(deadline))
            except NodeLostError:
                if not tries_left:
                    raise
        raise AssertionError("unreachable")

    def close(self) -> None:
        for name in ("_reaper", "answer_reaper"):
            if name in self.__dict__:
                getattr(self, name).close()
        self._drop_store()
        self.journal.close()


_current: Attachment | None = None
_connected_pid = 0  # the id of this process, if it is known to be no fork of a connected one
_is_over = False  # True if this process is at its end


@atexit.register
def _detach() -> None:
    """Close the native client while the interpreter can still free it."""
    global _current, _is_over
    _is_over = True
    if _current is not None and _current.pid == os.getpid():
        _current.close()
        _current = None


def _refuse_at_end() -> None:
    """Refuse a daemon thread that would attach again while the process ends."""
    if _is_over:
        raise HopliteError("this process ends; nothing can be asked of its node any more")


def need_ray() -> None:
    """Refuse calls that would start a cluster, or would hang in a fork.

    Raises: HopliteError if Ray is not running here, this is Ray Client, or this process ends;
            UnusableAfterForkError in the child of a process that is connected to Ray.
    """
    global _connected_pid
    if _current is not None and _current.pid != os.getpid():
        raise UnusableAfterForkError(
            f"process {os.getpid()} was forked from {_current.pid}, which is attached to Ray and "
            "to its node; neither works in the child: use Ray tasks, or multiprocessing's 'spawn'"
        )
    _refuse_at_end()
    if not ray.is_initialized():
        raise HopliteError("Ray is not running in this process: call ray.init() first")
    if _current is None and seams.is_client():
        raise HopliteError(
            "this process is connected by Ray Client (ray://), and shares no memory with any node "
            "of the cluster: run the program there, by 'ray job submit -- python PROGRAM'"
        )
    if _current is None and _connected_pid != os.getpid():
        if seams.is_forked():
            raise UnusableAfterForkError(
                f"process {os.getpid()} was forked from one that is connected to Ray, which does "
                "not work in the child: use Ray tasks, or multiprocessing's 'spawn'"
            )
        _connected_pid = os.getpid()


def is_attached() -> bool:
    """Return True if this process has used the store."""
    return _current is not None


def live_store() -> StoreClient | None:
    """Return the store of this process's attachment, if both are there; never waits."""
    current = _current
    is_ours = current is not None and current.pid == os.getpid() and not _is_over
    if current is None or not is_ours or current.connection != seams.connection():
        return None
    return current.live_store


def attachment(deadline: float | None = None) -> Attachment:
    """Return this process's attachment; make it if there is none for its present Ray node.

    Raises: HopliteError if Ray is not running here; InvalidArgumentError if the job's options are
            wrong; UnusableAfterForkError in the child of a connected process; GetTimeoutError if
            the node has not begun by `deadline`.
    """
    current = _current
    is_ours = current is not None and current.pid == os.getpid() and not _is_over
    if current is not None and is_ours and current.connection == seams.connection():
        return current
    need_ray()
    return _make_call.result(deadline)


def _make() -> Attachment:
    global _current
    if _current is None or _current.connection != seams.connection():
        if _current is not None:
            _current.close()  # of a Ray that was shut down in this process
        _current = None
        _current = Attachment(NodePlace.of_this_process())
    return _current


def _describe_late() -> str:
    return "the node of this Ray node has not begun: it starts slowly, or Ray's head is silent,"


_make_call = SharedCall("attaching", _make, _describe_late)
