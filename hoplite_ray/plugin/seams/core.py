"""Private names of Ray, each behind one function that tests/ray/test_seams.py names.

Written against Ray 2.60 and 2.61. When a release moves one of these names, this file and its test
are the only things that change.
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
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import ray
from ray.runtime_env import RuntimeEnv

from hoplite_ray.errors import ControlError, HopliteError

if TYPE_CHECKING:
    Ref: TypeAlias = ray.ObjectRef[Any]  # generic for type checkers only
else:
    Ref = ray.ObjectRef

_LOOK_S = 0.1  # between looks whether a ray.shutdown has left a call without an answer
_IO_THREAD = "worker.io"  # of every process that is connected by other than Ray Client


def _worker() -> Any:
    return ray._private.worker.global_worker


# Where this process is.


def connection() -> bytes | None:
    """Names this process's connection to Ray, another one after each `ray.init`; None without.

    A driver's id is its job's, which two clusters may both have; no Ray node is in both.
    """
    if not ray.is_initialized():
        return None
    return bytes(_worker().worker_id + _worker().current_node_id.binary())


@contextmanager
def staying(joined: bytes | None) -> Iterator[None]:
    """Stay in the Ray of that connection for the body: a `ray.shutdown` waits until its end.

    For threads of our own: much of Ray's API would start a cluster, once the user has shut Ray
    down. In the body no lock of ours is taken that is also held around a `staying`.
    Raises: HopliteError if this process has left that Ray.
    """
    with ray._private.worker._connect_or_shutdown_lock:
        if joined is None or connection() != joined:
            raise HopliteError(
                "the Ray session that this belongs to was shut down in this process: make it "
                "again, after ray.init()"
            )
        yield


def answer_to(ask: Callable[[], Ref], joined: bytes | None, timeout_s: float = math.inf) -> Any:
    """The value of the ref that `ask` returns; for threads of our own, as `staying` is.

    Raises: HopliteError once this process has left the Ray of that connection, which would leave
            the ref without an answer; TimeoutError after `timeout_s`; what the ref's task raises.
    """
    with staying(joined):
        answer = ask().future()
    deadline = time.monotonic() + timeout_s
    while not wait([answer], timeout=_LOOK_S).done:
        if time.monotonic() > deadline:
            raise TimeoutError
        with staying(joined):
            pass
    return answer.result()


def is_driver() -> bool:
    """Whether this process is a job's own program, and no worker."""
    return bool(_worker().mode == ray._private.worker.SCRIPT_MODE)


def is_forked() -> bool:
    """Whether this process was forked from one that is connected: Ray's threads are not in it."""
    for each in Path("/proc/self/task").glob("*/comm"):
        with suppress(OSError):  # a thread that has ended meanwhile
            if each.read_text().strip() == _IO_THREAD:
                return False
    return True


def is_client() -> bool:
    """Whether this process is connected by Ray Client: it is on no Ray node of the cluster."""
    from ray.util.client import ray as client

    return bool(client.is_connected())  # type: ignore[no-untyped-call]


def ray_directory() -> str:
    """The directory of this Ray session, the same for every process of one host."""
    return str(_worker().node.get_session_dir_path())


def node_address() -> str:
    """The address under which other Ray nodes reach this one."""
    return str(_worker().node.node_ip_address)


def interfaces() -> dict[str, list[str]]:
    """The addresses of this machine's interfaces, by name, as Ray's own copy of psutil has them."""
    import psutil  # type: ignore[import-untyped]

    kinds = (socket.AF_INET, socket.AF_INET6)
    return {
        name: [each.address.partition("%")[0] for each in has if each.family in kinds]
        for name, has in psutil.net_if_addrs().items()
    }


def raylet_pid() -> int:
    """The process id of this node's raylet, from the credentials of its socket.

    Workers have it in their environment; drivers don't, and several raylets may share a host.
    """
    return _raylet_credentials()[0]


def raylet_user() -> int:
    """The user as whom this node's raylet runs, and so do its workers and actors."""
    return _raylet_credentials()[1]


def _raylet_credentials() -> tuple[int, int]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.connect(_worker().node.raylet_socket_name)
        credentials = probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid, user, _ = struct.unpack("3i", credentials)
    return int(pid), int(user)


def this_worker() -> str:
    """The id of this process, another one for each life of an actor."""
    return str(_worker().worker_id.hex())


def this_job() -> str:
    """Names this process's job: its id, and the command line of its driver."""
    job = ray.get_runtime_context().get_job_id()
    jobs = ray._private.state.state.job_table()  # type: ignore[no-untyped-call]
    return " ".join([job, *(f"({each['Entrypoint']})" for each in jobs if each["JobID"] == job)])


def this_actor() -> Any:
    """The handle of the actor that this process is."""
    return ray.get_runtime_context().current_actor


def create_actor(
    actor: Any, arguments: list[Any], environment: dict[str, Any] | None, **options: Any
) -> Any:
    """Start an actor whose runtime environment is `environment` upon what it inherits.

    Unlike `actor.options`, a None in it takes away what is inherited under that key.
    """
    if environment is None:
        return actor.options(**options).remote(*arguments)
    exact = _ExactEnvironment(environment)
    return actor._remote(arguments, {}, **{**actor._default_options, **options}, runtime_env=exact)


class _ExactEnvironment(RuntimeEnv):
    """A runtime environment that Ray takes as it is written, its None too."""

    def __init__(self, environment: dict[str, Any]) -> None:
        super().__init__(_validate=False)
        self._text = json.dumps(environment, sort_keys=True)

    def serialize(self) -> str:
        return self._text


def actor_id() -> str | None:
    """The id of the actor that this process is, the same in all its lives; None outside actors."""
    return ray.get_runtime_context().get_actor_id()


def restarts() -> int:
    """How often Ray had restarted the actor that this process is; 0 outside actors. Asks the GCS.

    Raises: HopliteError if Ray has forgotten the actor, or has a later life of it by now.
    """
    from ray.core.generated.gcs_pb2 import ActorTableData  # type: ignore[attr-defined]

    actor = actor_id()
    if actor is None:
        return 0
    accessor = ray._private.state.state._connect_and_get_accessor()
    told = accessor.get_actor_info(ray.ActorID(bytes.fromhex(actor)))
    record = None if told is None else ActorTableData.FromString(told)
    if record is None or record.address.worker_id != _worker().worker_id:
        raise HopliteError(
            f"Ray has taken this process for dead, and knows another life of actor {actor}, or "
            "none: nothing that is made here counts any more; end this process"
        )
    return int(record.num_restarts)


def is_draining(ray_node_id: str) -> bool:
    """Whether Ray drains that node: it places nothing there any more, and takes it away soon."""
    return ray_node_id in ray._private.state.state.get_draining_nodes()


def placeable_nodes() -> list[str]:
    """The Ray nodes that live and are not drained."""
    nodes = ray.nodes()  # type: ignore[no-untyped-call]
    draining = ray._private.state.state.get_draining_nodes()
    alive = [node["NodeID"] for node in nodes if node["Alive"]]
    return [node for node in alive if node not in draining]


def is_worker_alive(worker: str, ray_node_id: str) -> bool:
    """Whether that process lives, and the Ray node that it is on, as far as Ray has heard."""
    from ray.core.generated.gcs_pb2 import WorkerTableData  # type: ignore[attr-defined]

    accessor = ray._private.state.state._connect_and_get_accessor()
    told = accessor.get_worker_info(ray.WorkerID(bytes.fromhex(worker)))
    if told is None or not WorkerTableData.FromString(told).is_alive:
        return False
    nodes = ray.nodes()  # type: ignore[no-untyped-call]
    return any(node["NodeID"] == ray_node_id and node["Alive"] for node in nodes)


def memory_threshold() -> float:
    """The share of memory above which Ray kills workers."""
    return float(os.environ.get("RAY_memory_usage_threshold", "0.95"))


# Which cluster there is, for a process that has not joined one.


def cluster_address(asked: str | None) -> str:
    """The address of the cluster's GCS: as asked, by RAY_ADDRESS, or of the one that runs here.

    Raises: ConnectionError if none runs here; ValueError if what was asked is no address.
    """
    from ray._private import services

    return str(services.canonicalize_bootstrap_address(asked or "auto"))


def raylets(address: str) -> list[tuple[str, str, bool]]:
    """(Ray node id, its Ray directory, whether it lives) of every raylet that the cluster had."""
    from ray._raylet import GcsClient  # type: ignore[attr-defined]

    told = GcsClient(address=address).get_all_node_info()
    return [
        (node_id.hex(), info.session_dir, info.state == info.ALIVE)
        for node_id, info in told.items()
    ]


def drained_nodes(address: str, timeout_s: float) -> list[str]:
    """The Ray nodes that have ended after Ray had drained them.

    Raises: ControlError if Ray's GCS does not answer; one that is gone holds the call for longer.
    """
    from ray._raylet import GcsClient  # type: ignore[attr-defined]
    from ray.core.generated.common_pb2 import NodeDeathInfo  # type: ignore[attr-defined]

    drained = (NodeDeathInfo.AUTOSCALER_DRAIN_PREEMPTED, NodeDeathInfo.AUTOSCALER_DRAIN_IDLE)
    try:
        told = GcsClient(address=address).get_all_node_info(timeout=timeout_s)
    except ray.exceptions.RayError as error:
        raise ControlError(f"Ray's GCS at {address} does not answer ({error})") from error
    return [node_id.hex() for node_id, info in told.items() if info.death_info.reason in drained]


# What this process executes.


def task_id() -> bytes | None:
    """Id of the running task, 24 bytes; a thread of a task has a random one; None in a driver."""
    if _worker().mode != ray._private.worker.WORKER_MODE:
        return None
    current = _worker().current_task_id
    return None if current.is_nil() else current.binary()


def attempt_number() -> int:
    """0 for the first execution of the running task, counted up by retries and by lineage."""
    return int(_worker().core_worker.get_current_task_attempt_number())


def return_id(task: bytes) -> bytes:
    """Id of the ref which a task with one return value answers: its task id, then index 1."""
    return task + (1).to_bytes(4, "little")


# Refs and their lifetime.


def outer_ref() -> Ref | None:
    """While Ray unpickles an object: that object's ref; None for values inside a task's call."""
    ref = _worker().get_serialization_context().get_outer_object_ref()
    return None if ref is None or ref.is_nil() else ref


def is_ray_pickling() -> bool:
    """Whether Ray, and not plain pickle or deepcopy, is serialising in this thread."""
    if not ray.is_initialized():
        return False
    return bool(_worker().get_serialization_context().is_in_band_serialization())


def on_out_of_scope(ref: Ref, callback: Callable[[bytes], None]) -> bool:
    """Call `callback(id)` when nobody in the cluster refers to `ref`, which this process owns.

    False if that is so already. The callback runs on a thread of Ray's and must not block.
    """
    return bool(_worker().core_worker.add_object_out_of_scope_callback(ref, callback))


def on_settled(ref: Ref, callback: Callable[[], None]) -> None:
    """Call `callback` when the task of `ref`, which this process owns, has ended, or no reference
    to it is left; maybe twice, on threads of Ray's, which must not be blocked.
    """
    ref._on_ready(lambda _: callback())
    if not on_out_of_scope(ref, lambda _: callback()):
        callback()


def owner_node_id(ref: Ref) -> str | None:
    """The Ray node of the process that owns `ref`; None if that is this process, or unknown."""
    from ray.core.generated.common_pb2 import Address  # type: ignore[attr-defined]

    try:
        owner = Address.FromString(_worker().core_worker.get_owner_address(ref))
    except ValueError:
        return None
    is_ours = owner.worker_id == _worker().worker_id
    return None if is_ours else str(owner.node_id.hex())


def is_owned(ref: Ref) -> bool:
    """Whether this process owns `ref`, and somebody in the cluster still refers to it."""
    try:
        _worker().core_worker.get_owner_address(ref)
    except ValueError:
        return False
    return True


def known_refs() -> set[bytes]:
    """Ids of all refs that live in this process, not of those that only a pending call has."""
    counts = _worker().core_worker.get_all_reference_counts()
    return {bytes.fromhex(name.decode()) for name, each in counts.items() if each["local"] > 0}


def ref_of(object_id: bytes) -> Ref:
    """A further ref of an id that lives in this process."""
    return ray.ObjectRef(object_id)


async def ready(ref: Ref) -> None:
    """Wait until `ref`'s task has ended, well or badly, without fetching the value.

    Ray's own `ref._ready()` leaves a cycle behind that keeps the ref until Python collects it.
    """
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    is_told = False

    def announce(_: BaseException | None) -> None:
        nonlocal is_told
        is_told = True
        with suppress(RuntimeError):  # the loop is closed: nobody waits
            loop.call_soon_threadsafe(ended.set)

    stop_waiting = ref._on_ready(announce)
    try:
        await ended.wait()
    finally:
        if not is_told:  # a ray.shutdown tells it, and to stop after that ends the process
            stop_waiting()
