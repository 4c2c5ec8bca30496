"""The node process: `python -m hoplite_ray.node --directory DIR --listen 127.0.0.1:0`.

Runs the native node and the control service, joins the others, and ends when the watched process
(Ray's raylet) does or on SIGTERM, in both cases after leaving. When the other nodes hold it for
dead it starts its next life: same id and socket, next incarnation, empty arena.

The directory is of mode 0700 and one node's at a time. It gets:

    node.sock   where clients attach
    node.json   node_id, incarnation, control, rails, socket, pid, options; there while clients may
                attach, and printed as one line on standard output when it first is
    secret      the cluster's secret, mode 0600
    node.lock   held as long as the process lives
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import fcntl
import json
import logging
import os
import secrets
import signal
import stat
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hoplite_ray import _native
from hoplite_ray.config import Config, Memory, arena_bytes
from hoplite_ray.control.auth import SECRET_BYTES_MIN
from hoplite_ray.control.client import ControlClient
from hoplite_ray.control.membership import Membership
from hoplite_ray.control.service import ControlService
from hoplite_ray.control.view import Member, View
from hoplite_ray.control.view_store import ViewStore
from hoplite_ray.errors import ControlError, HopliteError

_logger = logging.getLogger("hoplite_ray.node")

_EVENT_WAIT_S = 1.0  # stop() wakes the wait, so this is no delay
_LEAVE_S = 2.0  # then the others find out by themselves
_GRACE_S = 1.0  # for watchers to receive the view in which we have left


@dataclass(frozen=True, slots=True)
class NodeOptions:
    """What one node process was asked to be."""

    directory: Path
    listen: tuple[str, ...]
    control: str
    node_id: int
    incarnation: int
    secret: bytes
    arena_bytes: int
    overrides: dict[str, int]
    join: tuple[str, ...] = ()
    gcs_address: str | None = None
    watch_pid: int | None = None

    @property
    def socket(self) -> Path:
        """Where clients attach."""
        return self.directory / "node.sock"

    @property
    def record(self) -> Path:
        """Where the node says that it is ready, and who it is."""
        return self.directory / "node.json"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a node until it is told to end; returns the exit status."""
    asked = _parser().parse_args(arguments)
    logging.basicConfig(
        stream=sys.stderr,
        level=asked.log_level.upper(),
        format="%(asctime)s level=%(levelname)s logger=%(name)s %(message)s",
    )
    try:
        directory = _own_directory(asked.directory)
        with _hold(directory / "node.lock"):
            options = _options(asked, directory)
            return asyncio.run(_live(options))
    except (ValueError, OSError, HopliteError) as error:
        sys.stderr.write(f"hoplite_ray.node: {error}\n")
        return 2


async def _live(options: NodeOptions) -> int:
    """Live one life after the other until one of them is not ended by the other nodes."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    with _watched(options.watch_pid, stop):
        while True:
            others = await Life(options).live(stop)
            if others is None:
                return 0
            _logger.warning("the others hold incarnation %d for dead", options.incarnation)
            options = replace(options, incarnation=options.incarnation + 1, join=others)


class Life:
    """One incarnation of the node, from its first socket to its last."""

    def __init__(self, options: NodeOptions) -> None:
        self._options = options
        self._native = _native.NativeNode(
            node_id=options.node_id,
            incarnation=options.incarnation,
            socket_path=str(options.socket),
            listen=list(options.listen),
            arena_bytes=options.arena_bytes,
            secret=options.secret,
            options=options.overrides,
        )
        self._calls = ControlClient(options.secret)
        self._service = ControlService(secret=options.secret, stats=self._native.stats)

    async def live(self, stop: asyncio.Event) -> tuple[str, ...] | None:
        """Run until `stop`; returns None, or whom to ask for the next life if this one is over.

        Raises:  HopliteError if the node can't start or join.
        """
        self._options.socket.unlink(missing_ok=True)  # of a life that crashed
        self._native.start()
        membership: Membership | None = None
        try:
            membership = await self._enter()
            await self._stay(membership, stop)
            if not membership.told_dead.is_set():
                return None
            return tuple(m.control for m in membership.view.members) or self._options.join
        finally:
            self._options.record.unlink(missing_ok=True)
            await self._end(membership)

    async def _enter(self) -> Membership:
        options = self._options
        own = Member(
            options.node_id,
            options.incarnation,
            await self._service.start(options.control),
            tuple(self._native.rails()),
        )
        membership = Membership(
            own, calls=self._calls, on_view=self._tell_native, store=_view_store(options)
        )
        await membership.enter(options.join)
        await self._service.open(membership)
        line = json.dumps(_record(options, own))
        unfinished = options.record.with_suffix(".part")
        unfinished.write_text(line + "\n")
        unfinished.rename(options.record)
        with contextlib.suppress(BrokenPipeError):  # whoever started us need not listen
            sys.stdout.write(line + "\n")
            sys.stdout.flush()
        _logger.info("ready %s", line)
        return membership

    def _tell_native(self, view: View) -> None:
        self._native.set_view(
            view.epoch, [(m.node_id, m.incarnation, list(m.rails)) for m in view.members]
        )

    async def _stay(self, membership: Membership, stop: asyncio.Event) -> None:
        """Serve until told to stop, or told dead."""
        tasks = [
            asyncio.create_task(each)
            for each in (
                stop.wait(),
                membership.told_dead.wait(),
                membership.run(),
                self._hear_of_deaths(membership),
            )
        ]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()  # a fault of ours ends the node, with its traceback
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _hear_of_deaths(self, membership: Membership) -> None:
        while True:
            event = await asyncio.to_thread(self._native.next_event, _EVENT_WAIT_S)
            if event is None:
                continue
            kind, node_id, incarnation = event
            _logger.warning("event=%s node=%x incarnation=%d", kind, node_id, incarnation)
            if kind == "peer_dead":
                membership.mark_dead((node_id, incarnation))

    async def _end(self, membership: Membership | None) -> None:
        if membership is not None:
            try:
                await asyncio.wait_for(membership.leave(), _LEAVE_S)
            except (ControlError, TimeoutError) as error:
                _logger.warning("left without a goodbye to the view: %s", error)
        await self._service.stop(_GRACE_S)
        await self._calls.close()
        await asyncio.to_thread(self._native.stop)
        self._options.socket.unlink(missing_ok=True)


def _record(options: NodeOptions, own: Member) -> dict[str, Any]:
    return {
        "node_id": own.node_id,
        "incarnation": own.incarnation,
        "control": own.control,
        "rails": own.rails,
        "socket": str(options.socket),
        "pid": os.getpid(),
        "options": {"arena_bytes": options.arena_bytes, **options.overrides},
    }


def _view_store(options: NodeOptions) -> ViewStore | None:
    if options.gcs_address is None:
        return None
    from hoplite_ray.plugin.seams import RayViewStore  # imports ray, which nothing else here needs

    return RayViewStore(options.gcs_address)


@contextlib.contextmanager
def _watched(pid: int | None, stop: asyncio.Event) -> Any:
    """Set `stop` when process `pid` has ended."""
    if pid is None:
        yield
        return
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        raise HopliteError(f"process {pid}, which this node was to outlive, is gone") from None
    loop = asyncio.get_running_loop()

    def ended() -> None:
        _logger.info("process %d has ended", pid)
        loop.remove_reader(descriptor)
        stop.set()

    loop.add_reader(descriptor, ended)
    try:
        yield
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m hoplite_ray.node", allow_abbrev=False)
    add: Callable[..., Any] = parser.add_argument
    add("--directory", type=Path, required=True, help="of this node alone; made with mode 0700")
    add("--listen", action="append", required=True, help="ADDRESS:PORT of a rail; port 0: any")
    add("--control", help="ADDRESS:PORT of the control service; default: first rail's address")
    add("--join", action="append", default=[], help="ADDRESS:PORT of a member's control service")
    add("--node-id", type=int, help="default: that of an earlier life here, or random")
    add("--incarnation", type=int, help="default: one more than an earlier life here, or 1")
    add("--secret-file", type=Path, help="of the cluster; default: DIR/secret, made if missing")
    add("--arena-bytes", type=int, help="shared memory for objects; default: 20 %% of memory")
    add("--option", action="append", default=[], help="NAME=INT of the native node; see docs")
    add("--trace", action="store_true", help="print the life of every object on standard error")
    add("--watch-pid", type=int, help="end when this process does")
    add("--gcs-address", help="Ray's address, where the view is then kept")
    add("--log-level", default="info", choices=["debug", "info", "warning", "error"])
    return parser


def _options(asked: argparse.Namespace, directory: Path) -> NodeOptions:
    """Check what was asked; see docs of the command line.

    Raises:  ValueError naming the option, what it may be and the next step.
    """
    config = Config.from_environment()
    if asked.arena_bytes is not None:
        config = replace(config, arena_bytes=asked.arena_bytes)
    overrides = {name: value for name, value in config.explicit().items() if name != "arena_bytes"}
    overrides |= dict(map(_override, asked.option))
    if asked.trace:
        overrides["trace"] = 1
    for address in asked.listen:
        _check_address("--listen", address)
    control = asked.control or f"{asked.listen[0].rpartition(':')[0]}:0"
    _check_address("--control", control)
    earlier = _earlier_life(directory)
    return NodeOptions(
        directory=directory,
        listen=tuple(asked.listen),
        control=control,
        node_id=asked.node_id or earlier[0],
        incarnation=asked.incarnation or (earlier[1] if asked.node_id in (None, earlier[0]) else 1),
        secret=_secret(asked.secret_file, directory),
        arena_bytes=arena_bytes(config, Memory.read()),
        overrides={name: int(str(value)) for name, value in overrides.items()},
        join=tuple(asked.join),
        gcs_address=asked.gcs_address,
        watch_pid=asked.watch_pid,
    )


def _override(text: str) -> tuple[str, int]:
    name, _, value = text.partition("=")
    if name not in _native.option_names() or not value.lstrip("-").isdigit():
        raise ValueError(
            f"--option {text!r} is not NAME=INT with one of {', '.join(_native.option_names())}"
        )
    return name, int(value)


def _check_address(option: str, address: str) -> None:
    name, _, port = address.rpartition(":")
    if not port.isdigit() or int(port) > 65535 or name in ("", "0.0.0.0", "[::]", "::"):
        raise ValueError(
            f"{option} {address!r} is not ADDRESS:PORT of one network interface; "
            "give the address by which other nodes reach this one, port 0 for any"
        )


def _own_directory(directory: Path) -> Path:
    """Make the directory, or check that it is ours alone."""
    directory = directory.absolute()
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = directory.stat()
    if status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) & 0o077:
        raise ValueError(
            f"{directory} can be entered by others than user {os.geteuid()}; "
            f"run `chmod 700 {directory}` as its owner, or give another --directory"
        )
    return directory


@contextlib.contextmanager
def _hold(file: Path) -> Any:
    """Hold `file` while the process lives, so that a directory has one node."""
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(
                f"another node runs in {file.parent}; give this one another --directory"
            ) from None
        yield
    finally:
        os.close(descriptor)


def _earlier_life(directory: Path) -> tuple[int, int]:
    """Return the id and incarnation that follow those of a life which crashed here."""
    try:
        record = json.loads((directory / "node.json").read_text())
        return int(record["node_id"]), int(record["incarnation"]) + 1
    except (OSError, ValueError, KeyError):
        return secrets.randbits(63) or 1, 1


def _secret(given: Path | None, directory: Path) -> bytes:
    """Read the cluster's secret, or make one for a new cluster; keeps it in the directory."""
    own = directory / "secret"
    if given is not None:
        secret = given.read_bytes().strip()
    elif own.exists():
        secret = own.read_bytes().strip()
    else:
        secret = secrets.token_hex(32).encode()
    if len(secret) < SECRET_BYTES_MIN:
        raise ValueError(
            f"the secret in {given or own} has {len(secret)} bytes; "
            f"put at least {SECRET_BYTES_MIN} random ones there"
        )
    with open(os.open(own, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(secret)
    return secret


if __name__ == "__main__":
    sys.exit(main())
