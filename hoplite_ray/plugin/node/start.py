"""The node process of this Ray node: the first process that needs the node starts it.

    RAY DIRECTORY/hoplite-<uid>-<wire version>-<end of the Ray node id>/    one per raylet and user
        start.lock      held while a process starts the node
        life            the node's newest incarnation
        node.json       written by the node when it is ready; node.sock beside it
        journal/        what each process owns (process/journal.py)
        node.log        the node's log; also in Ray's directory of logs, by this directory's name

If a node has died alone, the next process starts it under the same lock with the next incarnation.
The first start in a cluster fixes the cluster's options (agreement.py).
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import secrets
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import ray

from hoplite_ray import _native
from hoplite_ray.base.files import replace_file
from hoplite_ray.base.locks import HeldError, hold, try_hold
from hoplite_ray.config import Config, describe_small_arena
from hoplite_ray.errors import HopliteError, NodeLostError, UnauthenticatedError
from hoplite_ray.plugin.node import rails
from hoplite_ray.plugin.node.agreement import Agreement, agree
from hoplite_ray.plugin.seams import core as seams
from hoplite_ray.plugin.seams import table

_logger = logging.getLogger(__name__)

_START_S = 60.0  # of a node's start, beyond which it has failed: 0.3 s, on a loaded machine 20 s
# Between a node's closed socket and the end of its process, which unmaps 1 GB in 0.3 s.
_END_S = 5.0


@dataclass(frozen=True, slots=True)
class NodePlace:
    """The place of a Ray node's node, whether that runs or not."""

    ray_node_id: str
    directory: Path

    @classmethod
    def of_this_process(cls) -> NodePlace:
        ray_node_id = ray.get_runtime_context().get_node_id()
        return cls(ray_node_id, Path(seams.ray_directory()) / node_name(ray_node_id))

    @property
    def journals(self) -> Path:
        return self.directory / "journal"


@dataclass(frozen=True, slots=True)
class RunningNode:
    """A node that runs: its socket and its incarnation."""

    socket: str
    incarnation: int
    is_new: bool = field(default=False, compare=False)  # started by this call


def running_node(place: NodePlace) -> RunningNode | None:
    """Return the node that runs at `place`; None if there is none.

    A node holds the lock of its directory as long as it lives. Its process id is no proof of life,
    because a zombie still has one.
    """
    try:
        record = json.loads((place.directory / "node.json").read_text())
    except FileNotFoundError:
        return None
    with _hold_if_free(place.directory) as is_free:
        return None if is_free else RunningNode(record["socket"], record["incarnation"])


def _hold_if_free(directory: Path) -> AbstractContextManager[bool]:
    """Yield True if no node process runs there; then none can start in the body."""
    return try_hold(directory / "node.lock")


def ensure_node(
    place: NodePlace,
    asked: Config,
    lost: RunningNode | None = None,
    origins: Mapping[str, str] | None = None,
) -> RunningNode:
    """Return the running node of `place`, and start it unless another process has.

    The caller knows that `lost` is dead. `origins` says where each option in `asked` is from; the
    command `hoplite-ray options` shows it.

    Raises: InvalidArgumentError if `asked` differs from the cluster's options, or if this
            machine lacks what they need; ControlError if data_tls is on without Ray's TLS settings;
            UnauthenticatedError if another user has made the directory, or started Ray here;
            WireVersionMismatchError if the cluster's nodes are of another release; NodeLostError if
            the node does not start, with its own last words, or if there is no room for it in place
            of `lost`.
    """
    _refuse_other_user(seams.raylet_user())
    place.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    _refuse_foreign_directory(place.directory)
    place.directory.chmod(0o700)
    place.journals.mkdir(exist_ok=True, mode=0o700)
    values = table.KeyValues(ray.get_runtime_context().gcs_address)
    agreement = agree(values, asked, origins or {})
    try:
        return _find_or_start(place, lost, lambda: _start(place, values, agreement))
    except ValueError as error:
        if lost is None:
            raise
        raise NodeLostError(f"the node has died, and can't start again: {error}") from error


def _find_or_start(
    place: NodePlace, lost: RunningNode | None, start: Callable[[], RunningNode]
) -> RunningNode:
    """Return the node at `place`; call `start` if no process is there.

    A process whose node has ended starts the next incarnation: wait for it.
    """
    began = time.monotonic()
    while True:
        with _hold_start_lock(place.directory / "start.lock"):
            node = running_node(place)
            if node is None:
                with _hold_if_free(place.directory) as is_free:
                    pass
                if is_free:
                    return replace(start(), is_new=True)
        waited_s = time.monotonic() - began
        if node is not None and (node != lost or waited_s > _END_S):
            return node  # the lost node runs after all, or is stuck: the next attach shows it
        if node is None and waited_s > _START_S:
            raise NodeLostError(
                f"the node in {place.directory} has had no life for {_START_S:.0f} s, and its "
                "process goes on: the others hold its last life for dead and have not let in the "
                f"next one, or it can't end; {place.directory}/node.log says why"
            )
        time.sleep(0.01)


def _refuse_other_user(host: int) -> None:
    """Refuse a process of another user than Ray's: the node and its steward run as Ray's user."""
    if host != os.getuid():
        raise UnauthenticatedError(
            f"this process is of user {os.getuid()}, and the Ray node that it is connected to of "
            f"user {host}, as is its node of hoplite_ray: submit the program by 'ray job submit', "
            "or add a Ray node of your own (docs/operate/secure.md)"
        )


def _refuse_foreign_directory(directory: Path) -> None:
    """Refuse a directory of another user, because all users may write in its parent."""
    owner = directory.lstat().st_uid
    if owner != os.getuid():
        raise UnauthenticatedError(
            f"{directory} was made by user {owner}, this process is of user {os.getuid()}: remove "
            "it, and start Ray with a --temp-dir in a directory that is closed to others"
        )


def _start(place: NodePlace, values: table.KeyValues, agreement: Agreement) -> RunningNode:
    options, resources = agreement.options, agreement.find_resources()
    incarnation = _next_incarnation(place.directory)
    secret_file = place.directory / "secret"
    replace_file(secret_file, values.put_if_absent("secret", secrets.token_hex(32).encode()))
    command = [
        *(sys.executable, "-m", "hoplite_ray.node"),
        *("--directory", str(place.directory)),
        *(word for rail in resources.rails for word in ("--listen", rail.listen)),
        *("--control", rails.with_port(seams.node_address(), 0)),
        *("--node-id", str(node_number(place.ray_node_id))),
        *("--incarnation", str(incarnation)),
        *("--secret-file", str(secret_file)),
        *("--gcs-address", ray.get_runtime_context().gcs_address),
        *("--watch-pid", str(seams.raylet_pid())),
        *("--arena-bytes", str(resources.arena_bytes)),
    ]
    for name, value in options.explicit().items():
        if name == "spill_directory":
            command += ["--spill-directory", str(value)]
        elif name not in ("arena_bytes", "rails"):
            command += ["--option", f"{name}={value}"]
    node = _spawn(place, command)
    with _link_log(place).open("a") as log:
        now = time.strftime("%Y-%m-%d %H:%M:%S,000")
        for rail in resources.rails:
            text = f"rail at {rail.address} of {rail.why}"
            log.write(f"{now} level=INFO logger=hoplite_ray.start {text}\n")
        if small := describe_small_arena(options, resources.memory, resources.arena_bytes):
            log.write(f"{now} level=WARNING logger=hoplite_ray.start {small}\n")
            _logger.warning("%s", small)
    return node


def node_name(ray_node_id: str) -> str:
    """Return the name of a Ray node's directory, and of its steward.

    It has the last digits of the id, because the nodes of Ray's fake autoscaler differ in these.
    """
    return f"hoplite-{os.getuid()}-{_native.WIRE_VERSION}-{ray_node_id[-16:]}"


def node_number(ray_node_id: str) -> int:
    """Return the node id of a Ray node's node: 63 bits of a hash, never 0."""
    digest = hashlib.blake2b(ray_node_id.encode(), digest_size=8).digest()
    return (int.from_bytes(digest, "big") >> 1) or 1


def _spawn(place: NodePlace, command: list[str]) -> RunningNode:
    """Start the node process, and wait until its node runs. It is no child of this worker."""
    log = _link_log(place)
    alive, held_by_node = os.pipe()  # the node holds the other end for its whole life
    try:
        # The shell leaves at once: workers kill their own children when they exit.
        subprocess.run(
            ["/bin/sh", "-c", '"$@" </dev/null >>"$0" 2>&1 &', str(log), *command],
            pass_fds=(held_by_node,),
            start_new_session=True,
            check=True,
        )
    finally:
        os.close(held_by_node)
    try:
        ends = select.poll()
        ends.register(alive, select.POLLIN)
        deadline = time.monotonic() + _START_S
        while time.monotonic() < deadline:
            ended = ends.poll(10.0)
            if (node := running_node(place)) is not None:
                return node
            if ended:
                last = (log.read_text().strip().splitlines() or ["it said nothing"])[-1]
                raise NodeLostError(f"the node did not start: {last}; all it said is in {log}")
    finally:
        os.close(alive)
    raise NodeLostError(f"the node is not ready after {_START_S:.0f} s; what it said is in {log}")


def _link_log(place: NodePlace) -> Path:
    """Return the node's log, with a second name that Ray's dashboard and `ray logs` find."""
    log = place.directory / "node.log"
    log.touch()
    with suppress(FileExistsError):
        os.link(log, Path(seams.ray_directory(), "logs", f"{place.directory.name}.log"))
    return log


def _next_incarnation(directory: Path) -> int:
    """Return the node's next incarnation. A node may also have begun further ones by itself."""
    lives = [0]
    with suppress(FileNotFoundError):
        lives.append(int((directory / "life").read_text()))
    with suppress(FileNotFoundError):
        lives.append(json.loads((directory / "node.json").read_text())["incarnation"])
    with _hold_if_free(directory) as is_free:
        if is_free:  # else another process has started the node that wrote it
            (directory / "node.json").unlink(missing_ok=True)  # of an incarnation that has ended
    replace_file(directory / "life", str(max(lives) + 1).encode())
    return int(max(lives) + 1)


@contextmanager
def _hold_start_lock(file: Path) -> Iterator[None]:
    """Hold `file` for this process alone; a second waits for at most two starts."""
    try:
        with hold(file, 2 * _START_S):
            yield
    except HeldError:
        raise HopliteError(f"{file} is held by a process that starts the node") from None
