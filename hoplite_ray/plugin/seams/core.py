"""Private names of Ray Core, each behind one function that tests/ray/test_seams.py names.

Written against Ray 2.60 and 2.61. A release that moves one of these names changes this file and
its test, and nothing else.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import socket
import struct
import time
from collections.abc import Callable, Iterator
from concurrent.futures import wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import ray
from ray._private.runtime_env.constants import RAY_JOB_CONFIG_JSON_ENV_VAR
from ray.runtime_env import RuntimeEnv

from hoplite_ray.config import ray_memory_threshold
from hoplite_ray.errors import ControlError, HopliteError, NodeLostError

if TYPE_CHECKING:
    Ref: TypeAlias = ray.ObjectRef[Any]  # generic for type checkers only
else:
    Ref = ray.ObjectRef

_LOOK_S = 0.1  # between two looks for a ray.shutdown, which leaves a call without an answer
_IO_THREAD = "worker.io"  # a thread of every connected process, except under Ray Client


def _worker() -> Any:
    return ray._private.worker.global_worker


# Where this process is.


def connection() -> bytes | None:
    """Return a name of this process's connection to Ray; None without one.

    Each `ray.init` makes a new name. It has the Ray node's id besides the driver's, because drivers
    of two clusters may have the same id.
    """
    if not ray.is_initialized():
        return None
    return bytes(_worker().worker_id + _worker().current_node_id.binary())


@contextmanager
def stay_connected(joined: bytes | None) -> Iterator[None]:
    """Hold up a `ray.shutdown` of the connection `joined` until the end of the body.

    Threads of this package need it, because after a `ray.shutdown` much of Ray's API would start a
    cluster.
    REQUIRES: the body takes no lock of this package that is also held around a `stay_connected`.
    Raises:   HopliteError if this process has left that Ray.
    """
    with ray._private.worker._connect_or_shutdown_lock:
        if joined is None or connection() != joined:
            raise HopliteError(
                "the Ray session that this belongs to was shut down in this process: make it "
                "again, after ray.init()"
            )
        yield


def wait_for_answer(
    ask: Callable[[], Ref], joined: bytes | None, timeout_s: float = math.inf
) -> Any:
    """Return the value of the ref that `ask` returns. Like `stay_connected`, for our own threads.

    Raises: HopliteError as soon as this process has left the Ray of `joined`, because the ref then
            gets no answer; TimeoutError after `timeout_s`; any error of the ref's task.
    """
    with stay_connected(joined):
        answer = ask().future()
    deadline = time.monotonic() + timeout_s
    while not wait([answer], timeout=_LOOK_S).done:
        if time.monotonic() > deadline:
            raise TimeoutError
        with stay_connected(joined):
            pass
    return answer.result()


def is_driver() -> bool:
    """Return True if this process is a job's own program, and no worker."""
    return bool(_worker().mode == ray._private.worker.SCRIPT_MODE)


def is_forked() -> bool:
    """Return True if this process lacks Ray's threads: it was forked from a connected one."""
    for each in Path("/proc/self/task").glob("*/comm"):
        with suppress(OSError):  # a thread that has ended meanwhile
            if each.read_text().strip() == _IO_THREAD:
                return False
    return True


def submitted_runtime_env() -> dict[str, Any]:
    """Return the runtime environment that `ray job submit` has for this program; {} without it."""
    text = os.environ.get(RAY_JOB_CONFIG_JSON_ENV_VAR, "{}")
    return dict(json.loads(text).get("runtime_env") or {})


def is_client() -> bool:
    """Return True if this process is connected by Ray Client, and on no Ray node of the cluster."""
    from ray.util.client import ray as client

    return bool(client.is_connected())  # type: ignore[no-untyped-call]


def ray_directory() -> str:
    """Return the directory of this Ray session, the same for every process of one host."""
    return str(_worker().node.get_session_dir_path())


def node_address() -> str:
    """Return the address under which other Ray nodes reach this one."""
    return str(_worker().node.node_ip_address)


def raylet_pid() -> int:
    """Return the process id of this node's raylet, from the credentials of its socket.

    Only workers have it in their environment, and several raylets may share a host.
    """
    return _raylet_credentials()[0]


def raylet_user() -> int:
    """Return the user as which this node's raylet runs, and its workers and actors."""
    return _raylet_credentials()[1]


def _raylet_credentials() -> tuple[int, int]:
    path = _worker().node.raylet_socket_name
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(path)
        except OSError as error:
            raise NodeLostError(
                f"the Ray node of this process has ended, and the store's node with it: its raylet "
                f"at {path} takes no connection ({error.strerror}). Ray nodes end when Ray's head "
                "restarts without Redis; what was received stays usable. Start the Ray cluster "
                "again, and this program"
            ) from error
        credentials = probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid, user, _ = struct.unpack("3i", credentials)
    return int(pid), int(user)


def this_worker() -> str:
    """Return the id of this process; a restarted actor has another one."""
    return str(_worker().worker_id.hex())


def this_job() -> str:
    """Return a name of this process's job: its id, and the command line of its driver."""
    job = ray.get_runtime_context().get_job_id()
    jobs = ray._private.state.state.job_table()  # type: ignore[no-untyped-call]
    return " ".join([job, *(f"({each['Entrypoint']})" for each in jobs if each["JobID"] == job)])


def this_actor() -> Any:
    """Return the handle of the actor that this process is."""
    return ray.get_runtime_context().current_actor


def create_actor(
    actor: Any, arguments: list[Any], environment: dict[str, Any] | None, **options: Any
) -> Any:
    """Start an actor, and lay `environment` upon the runtime environment that it inherits.

    A None in `environment` removes the inherited value of its key; `actor.options` would keep it.
    """
    if environment is None:
        return actor.options(**options).remote(*arguments)
    exact = _ExactEnvironment(environment)
    return actor._remote(arguments, {}, **{**actor._default_options, **options}, runtime_env=exact)


class _ExactEnvironment(RuntimeEnv):
    """A runtime environment that Ray takes as it is written, including each None."""

    def __init__(self, environment: dict[str, Any]) -> None:
        super().__init__(_validate=False)
        self._text = json.dumps(environment, sort_keys=True)

    def serialize(self) -> str:
        return self._text


def actor_id() -> str | None:
    """Return the id of the actor that this process is, the same after restarts; or None."""
    return ray.get_runtime_context().get_actor_id()


def restarts() -> int:
    """Return how often Ray has restarted the actor that this process is; 0 outside actors.

    Raises: HopliteError if Ray has forgotten the actor, or has restarted it in another process.
    Cost:   one question to the GCS.
    """
    from ray.core.generated.gcs_pb2 import ActorTableData  # type: ignore[attr-defined]

    actor = actor_id()
    if actor is None:
        return 0
    accessor = ray._private.state.state._connect_and_get_accessor()
    answer = accessor.get_actor_info(ray.ActorID(bytes.fromhex(actor)))
    record = None if answer is None else ActorTableData.FromString(answer)
    if record is None or record.address.worker_id != _worker().worker_id:
        raise HopliteError(
            f"Ray has taken this process for dead, and knows another life of actor {actor}, or "
            "none: nothing that is made here counts any more; end this process"
        )
    return int(record.num_restarts)


def is_draining(ray_node_id: str) -> bool:
    """Return True if Ray drains that node: it places nothing there, and removes the node soon."""
    return ray_node_id in ray._private.state.state.get_draining_nodes()


def placeable_nodes() -> list[str]:
    """Return the Ray nodes that live and are not drained."""
    nodes = ray.nodes()  # type: ignore[no-untyped-call]
    draining = ray._private.state.state.get_draining_nodes()
    alive = [node["NodeID"] for node in nodes if node["Alive"]]
    return [node for node in alive if node not in draining]


def is_worker_alive(worker: str, ray_node_id: str) -> bool:
    """Return True if that process and its Ray node live, as far as Ray knows."""
    from ray.core.generated.gcs_pb2 import WorkerTableData  # type: ignore[attr-defined]

    accessor = ray._private.state.state._connect_and_get_accessor()
    answer = accessor.get_worker_info(ray.WorkerID(bytes.fromhex(worker)))
    if answer is None or not WorkerTableData.FromString(answer).is_alive:
        return False
    nodes = ray.nodes()  # type: ignore[no-untyped-call]
    return any(node["NodeID"] == ray_node_id and node["Alive"] for node in nodes)


def memory_threshold() -> float:
    """Return the share of memory above which Ray kills workers."""
    return ray_memory_threshold()


# The cluster, for a process that has not joined it.


def cluster_address(asked: str | None) -> str:
    """Return the address of the cluster's GCS: `asked`, RAY_ADDRESS, or that of the cluster here.

    Raises: ConnectionError if no cluster runs here; ValueError if `asked` is no address.
    """
    from ray._private import services

    return str(services.canonicalize_bootstrap_address(asked or "auto"))


@dataclass(frozen=True, slots=True)
class Raylet:
    """One Ray node, in Ray's words."""

    node_id: str
    directory: str  # of Ray's session there
    address: str
    hostname: str
    is_alive: bool


def raylets(address: str) -> list[Raylet]:
    """Return every raylet that the cluster has had."""
    from ray._raylet import GcsClient  # type: ignore[attr-defined]

    nodes = GcsClient(address=address).get_all_node_info()
    return [
        Raylet(
            node_id.hex(),
            info.session_dir,
            info.node_manager_address,
            info.node_manager_hostname,
            info.state == info.ALIVE,
        )
        for node_id, info in nodes.items()
    ]


def drained_nodes(address: str, timeout_s: float) -> list[str]:
    """Return the Ray nodes that Ray has drained and that have ended.

    Raises: ControlError if Ray's GCS does not answer within `timeout_s`. A GCS that is gone may
            hold the call for longer.
    """
    from ray._raylet import GcsClient  # type: ignore[attr-defined]
    from ray.core.generated.common_pb2 import NodeDeathInfo  # type: ignore[attr-defined]

    drained = (NodeDeathInfo.AUTOSCALER_DRAIN_PREEMPTED, NodeDeathInfo.AUTOSCALER_DRAIN_IDLE)
    try:
        nodes = GcsClient(address=address).get_all_node_info(timeout=timeout_s)
    except ray.exceptions.RayError as error:
        raise ControlError(f"Ray's GCS at {address} does not answer ({error})") from error
    return [node_id.hex() for node_id, info in nodes.items() if info.death_info.reason in drained]


# The task that this process executes.


def task_id() -> bytes | None:
    """Return the running task's id of 24 bytes, in a thread a random id, in a driver None."""
    if _worker().mode != ray._private.worker.WORKER_MODE:
        return None
    current = _worker().current_task_id
    return None if current.is_nil() else current.binary()


def attempt_number() -> int:
    """Return how often the running task was executed before, by a retry or for its lineage."""
    return int(_worker().core_worker.get_current_task_attempt_number())


def return_id(task: bytes) -> bytes:
    """Return the id of the only ref that a task answers: its task id, then index 1."""
    return task + (1).to_bytes(4, "little")


# Refs and their lifetime.


def outer_ref() -> Ref | None:
    """Return the ref of the object that Ray unpickles; None for values inside a task's call."""
    ref = _worker().get_serialization_context().get_outer_object_ref()
    return None if ref is None or ref.is_nil() else ref


def is_ray_pickling() -> bool:
    """Return True if Ray serialises in this thread, and not plain pickle or deepcopy."""
    if not ray.is_initialized():
        return False
    return bool(_worker().get_serialization_context().is_in_band_serialization())


def add_out_of_scope_callback(ref: Ref, callback: Callable[[bytes], None]) -> bool:
    """Call `callback(id)` when no reference to `ref` is left in the cluster.

    REQUIRES: this process owns `ref`. The callback runs on a thread of Ray's and must not block.
    Returns:  False if no reference is left already; the callback is not called then.
    """
    return bool(_worker().core_worker.add_object_out_of_scope_callback(ref, callback))


def add_settled_callback(ref: Ref, callback: Callable[[], None]) -> None:
    """Call `callback` when the task of `ref` has ended, or no reference to it is left.

    The callback may be called twice. It runs on threads of Ray's and must not block.
    REQUIRES: this process owns `ref`.
    """
    ref._on_ready(lambda _: callback())
    if not add_out_of_scope_callback(ref, lambda _: callback()):
        callback()


def owner_node_id(ref: Ref) -> str | None:
    """Return the Ray node of the owner of `ref`; None if this process owns it, or for no owner."""
    from ray.core.generated.common_pb2 import Address  # type: ignore[attr-defined]

    try:
        owner = Address.FromString(_worker().core_worker.get_owner_address(ref))
    except ValueError:
        return None
    is_ours = owner.worker_id == _worker().worker_id
    return None if is_ours else str(owner.node_id.hex())


def is_owned(ref: Ref) -> bool:
    """Return True if this process owns `ref`, and a reference to it is left in the cluster."""
    try:
        _worker().core_worker.get_owner_address(ref)
    except ValueError:
        return False
    return True


def known_refs() -> set[bytes]:
    """Return the ids of all refs that live in this process, except those of pending calls only."""
    counts = _worker().core_worker.get_all_reference_counts()
    return {bytes.fromhex(name.decode()) for name, each in counts.items() if each["local"] > 0}


def ref_of(object_id: bytes) -> Ref:
    """Return a further ref of an id that lives in this process."""
    return ray.ObjectRef(object_id)


async def wait_ready(ref: Ref) -> None:
    """Wait until `ref`'s task has ended, well or badly, without fetching the value.

    Ray's own `ref._ready()` leaves a cycle behind that keeps the ref until Python collects it.
    """
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    is_announced = False

    def announce(_: BaseException | None) -> None:
        nonlocal is_announced
        is_announced = True
        with suppress(RuntimeError):  # the loop is closed, and nothing waits on it
            loop.call_soon_threadsafe(ended.set)

    stop_waiting = ref._on_ready(announce)
    try:
        await ended.wait()
    finally:
        # A ray.shutdown announces it, too. To stop waiting after that would end the process.
        if not is_announced:
            stop_waiting()
