"""The node process: `python -m hoplite_ray.node --directory DIR --listen 127.0.0.1:0`.

The process runs the native node and the control service, and joins the other nodes. It leaves and
ends on SIGTERM, and when the watched process (Ray's raylet) ends. When the other nodes take it for
dead, the process starts its next incarnation, with the same id and socket and an empty arena. It
tries until the other nodes let it in.

The directory has mode 0700 and belongs to one node at a time. It gets these files:

    node.sock   where clients attach
    node.json   node_id, incarnation, control, rails, socket, pid, options; there while clients may
                attach, and printed as one line on standard output when it first is
    shortage    why the view can't change, while it can't; late operations of clients tell it
    secret      the cluster's secret, mode 0600
    node.lock   held as long as the process lives
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import shutil
import signal
import stat
import sys
import threading
from collections.abc import Coroutine, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from hoplite_ray import _native
from hoplite_ray.base.files import replace_file
from hoplite_ray.base.locks import HeldError, hold
from hoplite_ray.config import shown
from hoplite_ray.control.client import ControlClient, RefusedError
from hoplite_ray.control.service.administration import Administration
from hoplite_ray.control.service.control_service import ControlService
from hoplite_ray.control.tls import Tls
from hoplite_ray.control.view import Member, View
from hoplite_ray.control.views.membership import Membership
from hoplite_ray.control.views.view_store import TableViews, ViewStore
from hoplite_ray.errors import ControlError, HopliteError
from hoplite_ray.node.options import NodeOptions, check_options, make_directory, parse_arguments

_logger = logging.getLogger("hoplite_ray.node")

_T = TypeVar("_T")

# One thread each: waits for events, reads the view in Ray's store, writes it, lists objects.
_THREADS = 4
_EVENT_WAIT_S = 5.0  # stop() wakes the wait, so it delays nothing but a look at the log's size
_LEAVE_S = 2.0  # then the other nodes notice the end by their liveness connections
_ASK_S = 1.0  # for Ray's answer to why a Ray node has ended
_GRACE_S = 1.0  # for watchers to receive the view without this node
# After that the kernel ends the process: a thread in a call to Ray's GCS, which has ended too,
# would hold the process for 40 s.
_END_S = 5
# For handing over the objects that only this node holds, when Ray has drained its Ray node. A
# machine that is ended leaves its processes about as much.
_HAND_OVER_S = 10
_LOCK_S = 0.1  # a process that looks whether a node runs holds its lock for microseconds
# A usual log grows by some 200 bytes per change of the view; only `trace=1` and days of refused
# connections come near this limit. Beyond it the log moves to node.log.1 and begins again.
_LOG_BYTES_MAX = 16 << 20


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a node until it is told to end; returns the exit status."""
    try:
        asked = parse_arguments(arguments)
        logging.basicConfig(
            stream=sys.stderr,
            level=asked.log_level.upper(),
            format="%(asctime)s level=%(levelname)s logger=%(name)s %(message)s",
        )
        directory = make_directory(asked.directory)
        _inherit_niceness(asked.watch_pid)
        with _hold_directory(directory / "node.lock"):
            return asyncio.run(_run_incarnations(check_options(asked, directory)))
    except (ValueError, OSError, HopliteError) as error:
        sys.stderr.write(f"hoplite_ray.node: {error}\n")
        return 2


async def _run_incarnations(options: NodeOptions) -> int:
    """Run one incarnation after the other, until one ends by itself."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.set_default_executor(_start_threads())
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    is_draining = is_rejoining = False
    with _watch_process(options.watch_pid, stop) as ended:
        while True:
            incarnation = NodeIncarnation(options, ended)
            try:
                others = await incarnation.run(stop, is_draining=is_draining)
            except ControlError as error:
                if not is_rejoining or isinstance(error, RefusedError):
                    raise
                others = options.join
                _logger.warning("not a member again yet: %s", error)
            else:
                if others is None:
                    return 0
                is_rejoining, is_draining = True, incarnation.is_draining
                _logger.warning("the others hold incarnation %d for dead", options.incarnation)
            options = replace(options, incarnation=options.incarnation + 1, join=others)


def _inherit_niceness(pid: int | None) -> None:
    """Set this process's niceness to that of `pid`, where the kernel allows it.

    Ray's workers have niceness 15, and a node that a worker starts inherits it. On a busy machine
    such a node would get an eighth of a raylet's time, although the bytes of all processes of the
    machine pass through it.
    REQUIRES: this is the only thread, because niceness belongs to a thread.
    """
    if pid is None:
        return
    with contextlib.suppress(PermissionError, ProcessLookupError):
        os.setpriority(os.PRIO_PROCESS, 0, os.getpriority(os.PRIO_PROCESS, pid))


def _start_threads() -> ThreadPoolExecutor:
    """Start all threads that blocking calls use, so that their number does not grow with work."""
    threads = ThreadPoolExecutor(_THREADS)
    all_started = threading.Barrier(_THREADS)
    for _ in range(_THREADS):
        threads.submit(all_started.wait)
    return threads


class NodeIncarnation:
    """One incarnation of the node, from its first socket to its last."""

    def __init__(self, options: NodeOptions, ended: asyncio.Event) -> None:
        """`ended` is set when the watched process has ended."""
        self._options = options
        self._ended = ended
        self._native = _native.NativeNode(
            node_id=options.node_id,
            incarnation=options.incarnation,
            socket_path=str(options.socket),
            listen=list(options.listen),
            arena_bytes=options.arena_bytes,
            spill_directory=str(options.spill_directory),
            secret=options.secret,
            options=options.overrides,
            tls=Tls.for_data().as_text() if _has_data_tls(options) else ("", "", ""),
        )
        self._calls = ControlClient(options.secret)
        self._administration = Administration(
            self._native,
            directory=options.directory,
            arena_bytes=options.arena_bytes,
            options=options.overrides,
            calls=self._calls,
        )
        self._service = ControlService(secret=options.secret, administration=self._administration)

    @property
    def is_draining(self) -> bool:
        """True if an operator has drained the node; its next incarnation drains from the start."""
        return self._administration.is_draining

    async def run(
        self, stop: asyncio.Event, *, is_draining: bool = False
    ) -> tuple[str, ...] | None:
        """Run until `stop`, or until the other nodes take this incarnation for dead.

        Returns: None after `stop`; otherwise the addresses to ask for the next incarnation.
        Raises:  HopliteError if the node can't start or join.
        """
        for left in (
            self._options.socket,
            self._options.shortage,
        ):  # by an incarnation that crashed
            left.unlink(missing_ok=True)
        self._native.start()
        membership: Membership | None = None
        try:
            membership = await _run_until(stop, self._join())
            if membership is None:
                return None
            if is_draining:
                self._service.drain()
            await self._serve(membership, stop)
            if not membership.declared_dead.is_set():
                return None
            members = [each.control for each in membership.view.members]
            return tuple(dict.fromkeys((*members, *self._options.join)))
        finally:
            self._options.record.unlink(missing_ok=True)
            await self._shut_down(membership)
            self._options.shortage.unlink(missing_ok=True)

    async def _join(self) -> Membership:
        options = self._options
        own = Member(
            options.node_id,
            options.incarnation,
            await self._service.start(options.control),
            tuple(self._native.rails()),
            data_tls=_has_data_tls(options),
        )
        membership = Membership(
            own,
            calls=self._calls,
            on_view=self._apply_view,
            on_shortage=self._publish_shortage,
            store=_view_store(options),
        )
        self._service.let_vote(membership)
        await membership.join(options.join)
        self._service.accept_calls(membership)
        line = json.dumps(_record(options, own))
        replace_file(options.record, f"{line}\n".encode())
        with contextlib.suppress(BrokenPipeError):  # the starter may have closed its end
            sys.stdout.write(line + "\n")
            sys.stdout.flush()
        _logger.info("ready %s", line)
        return membership

    def _apply_view(self, view: View) -> None:
        self._native.set_view(
            view.epoch, [(m.node_id, m.incarnation, list(m.rails)) for m in view.members]
        )

    def _publish_shortage(self, why: str) -> None:
        self._service.set_shortage(why)
        try:
            if why:
                replace_file(self._options.shortage, why.encode())
            else:
                self._options.shortage.unlink(missing_ok=True)
        except OSError as error:  # for example on a full disk; the control service tells it as well
            _logger.warning("%s is not written: %s", self._options.shortage, error)

    async def _serve(self, membership: Membership, stop: asyncio.Event) -> None:
        """Serve until `stop` is set, or the other nodes take this incarnation for dead."""
        tasks = [
            asyncio.create_task(each)
            for each in (
                stop.wait(),
                membership.declared_dead.wait(),
                membership.run(),
                self._handle_events(membership),
            )
        ]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()  # a defect of this package ends the node, with its traceback
            if self._ended.is_set() and await _is_drained_by_ray(self._options):
                await _run_until(membership.declared_dead, self._hand_over())
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _hand_over(self) -> None:
        signal.alarm(_HAND_OVER_S + _END_S)
        self._service.drain()
        told = await self._administration.drain(_HAND_OVER_S)
        _logger.info("Ray has taken this node away; what only it had: %d left", told.sole_copies)

    async def _handle_events(self, membership: Membership) -> None:
        while True:
            event = await asyncio.to_thread(self._native.next_event, _EVENT_WAIT_S)
            if event is None:
                _rotate_log(self._options.log)
                continue
            kind, node_id, incarnation = event
            _logger.warning("event=%s node=%x incarnation=%d", kind, node_id, incarnation)
            if kind == "peer_dead":
                membership.mark_dead((node_id, incarnation))

    async def _shut_down(self, membership: Membership | None) -> None:
        if membership is not None:
            try:
                await asyncio.wait_for(membership.leave(), _LEAVE_S)
            except (ControlError, TimeoutError) as error:
                _logger.warning("left without a goodbye to the view: %s", error)
        await self._service.stop(_GRACE_S)
        await self._calls.close()
        await asyncio.to_thread(self._native.stop)
        self._options.socket.unlink(missing_ok=True)


def _has_data_tls(options: NodeOptions) -> bool:
    return shown("data_tls", options.overrides.get("data_tls", 0)) == "on"


async def _run_until(stop: asyncio.Event, work: Coroutine[Any, Any, _T]) -> _T | None:
    """Return the result of `work`; cancel it and return None as soon as `stop` is set."""
    working = asyncio.ensure_future(work)
    stopping = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
        return working.result() if working.done() else None
    finally:
        for task in (working, stopping):
            task.cancel()
        await asyncio.gather(working, stopping, return_exceptions=True)


def _rotate_log(log: Path) -> None:
    """Begin `log` again when it is full, if standard error goes to it.

    The starter has opened the log for appending, so that no line is lost meanwhile.
    """
    said = os.fstat(2)
    if not stat.S_ISREG(said.st_mode) or said.st_size <= _LOG_BYTES_MAX:
        return
    with contextlib.suppress(FileNotFoundError):
        if os.path.samestat(said, os.stat(log)):
            try:
                shutil.copyfile(log, log.with_suffix(".log.1"))
            except (
                OSError
            ) as error:  # for example on a full disk, which has room when the log is short
                _logger.warning("the log so far is not kept: %s", error)
            os.ftruncate(2, 0)


def _record(options: NodeOptions, own: Member) -> dict[str, Any]:
    return {
        "node_id": own.node_id,
        "incarnation": own.incarnation,
        "control": own.control,
        "rails": own.rails,
        "socket": str(options.socket),
        "pid": os.getpid(),
        "options": {
            "arena_bytes": options.arena_bytes,
            **{name: shown(name, value) for name, value in options.overrides.items()},
        },
    }


def _view_store(options: NodeOptions) -> ViewStore | None:
    if options.gcs_address is None:
        return None
    # Imports ray, which nothing else here needs.
    from hoplite_ray.plugin.seams.table import RayViewStore

    return TableViews(RayViewStore(options.gcs_address))


async def _is_drained_by_ray(options: NodeOptions) -> bool:
    """Return True if Ray has drained the Ray node that has ended; False if its machine is lost.

    A steward hands objects over before its Ray node ends. On a Ray node without a steward the node
    process does it, because reduces of other nodes may have placed parts of their results here.
    """
    if options.gcs_address is None:
        return False
    from hoplite_ray.plugin.node.start import node_number
    from hoplite_ray.plugin.seams.core import drained_nodes

    asked = asyncio.to_thread(drained_nodes, options.gcs_address, _ASK_S)
    try:
        drained = await asyncio.wait_for(asked, _ASK_S)
    except (ControlError, TimeoutError) as error:
        why = str(error) or f"Ray's GCS has not answered for {_ASK_S:g} s"
        _logger.info("why the Ray node has ended is not known: %s", why)
        return False
    return options.node_id in map(node_number, drained)


@contextlib.contextmanager
def _watch_process(pid: int | None, stop: asyncio.Event) -> Iterator[asyncio.Event]:
    """Give an event; set it, and `stop`, when process `pid` has ended."""
    has_ended = asyncio.Event()
    if pid is None:
        yield has_ended
        return
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        raise HopliteError(f"process {pid}, which this node was to outlive, is gone") from None
    loop = asyncio.get_running_loop()

    def announce_end() -> None:
        _logger.info("process %d has ended", pid)
        loop.remove_reader(descriptor)
        has_ended.set()
        stop.set()
        signal.alarm(_END_S)

    loop.add_reader(descriptor, announce_end)
    try:
        yield has_ended
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)


@contextlib.contextmanager
def _hold_directory(file: Path) -> Iterator[None]:
    """Hold `file` while the process lives, so that a directory has one node."""
    try:
        with hold(file, _LOCK_S):
            yield
    except HeldError:
        raise ValueError(
            f"another node runs in {file.parent}; give this one another --directory"
        ) from None
