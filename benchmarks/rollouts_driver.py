"""The driver of rollouts.py: the trainer at the first node, and the rollouts' side of each mode.

A rollout is an actor. It notes when it has each version in its hands, with the first and the last
element of each layer right. It drops a version when it has the next one.
"""

from __future__ import annotations

import os
import threading
import time
import zlib
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import ray
from frame import connect_driver
from meters import SEED
from network import rail_device
from ranks import serve

import hoplite_ray as hop

HOPLITE, RAY, GLOO = "hoplite", "ray", "gloo"
CHANNEL = "policy"
LAYERS = 32
TIMEOUT_S = 120.0  # of each wait; far longer than a version takes
ANSWER_S = 5.0  # for a rollout to say what it has; a dead one does not answer
_GLOO_PORT = 29400  # of the first group; each later one has the next port
_GLOO_TRIES = 3  # broadcasts of one version

Bits = npt.NDArray[np.uint16]  # of bf16, which numpy has not
Value = dict[str, Bits]


def play(address: str, arena_bytes: str, link_mbit: str) -> None:
    """Be the driver of a cluster, each of whose nodes has a resource of its own."""
    host = address.partition(":")[0]
    os.environ["RAY_IGNORE_UNHANDLED_ERRORS"] = "1"  # of the calls of rollouts that were killed
    connect_driver(address, arena_bytes, link_mbit, _node_ip_address=host)
    serve(_Driver(host))


class Weights:
    """A trainer's weights, some of whose elements each version changes at random."""

    def __init__(self, size_bytes: int, changed_share: float) -> None:
        self.flat: Bits = np.zeros(size_bytes // 2, np.uint16)
        self._changed = int(self.flat.size * changed_share)
        self._rng = np.random.default_rng(SEED)

    def change(self, version: int) -> None:
        """Make the next version."""
        self.flat[self._rng.integers(0, self.flat.size, self._changed)] += 1
        for layer in self.value.values():
            layer[0] = layer[-1] = version

    @property
    def value(self) -> Value:
        """The layers, which share the memory of `flat`."""
        return split(self.flat)


def split(flat: Bits) -> Value:
    """Return the layers of weights."""
    return {f"layers.{at}": layer for at, layer in enumerate(np.array_split(flat, LAYERS))}


def check(value: Value, version: int) -> None:
    """Raise ValueError unless both ends of each layer are of that version."""
    ends = {int(each) for layer in value.values() for each in (layer[0], layer[-1])}
    if ends != {version}:
        raise ValueError(f"version {version} has elements of {sorted(ends)}")


def digest(value: Value) -> int:
    """Return a checksum of all bytes."""
    sum_so_far = 0
    for layer in value.values():
        sum_so_far = zlib.crc32(memoryview(layer).cast("B"), sum_so_far)
    return sum_so_far


@ray.remote(num_cpus=0, max_concurrency=4)
class _Rollout:
    def __init__(self, size_bytes: int) -> None:
        self._size_bytes = size_bytes
        self._memory: Bits | None = None  # of Gloo, which writes each version over the last one
        self._began_s: float | None = None  # when it began to listen
        self._had_s: dict[int, float] = {}  # by version
        self._newest: tuple[int, Value] | None = None

    def listen(self) -> None:
        """Note that versions may come."""
        self._began_s = time.monotonic()

    def watch(self) -> None:
        """Begin to follow the channel."""
        hop.array(0)  # attached: the start of the node is not the channel's
        self.listen()
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        while True:
            with suppress(hop.errors.HopliteError):  # it watches again, as a user's loop would
                for update in hop.watch(CHANNEL):
                    self._note(update.version, update.value)
                return

    def take(self, version: int, refs: Sequence[Any]) -> None:
        """Get a version from Ray's own store."""
        self._note(version, ray.get(refs[0], timeout=TIMEOUT_S))

    def import_torch(self) -> None:
        """Be ready for a group: its members wait for the slowest one."""
        import torch.distributed  # noqa: F401  here, because only Gloo needs torch

        self.listen()

    def join_group(self, where: str, rank: int, count: int, timeout_s: float) -> None:
        """Leave the group of Gloo if there is one, and join the next one."""
        join_group(where, rank, count, timeout_s)

    def receive(self, version: int) -> None:
        """Take part in a broadcast into this rollout's own memory."""
        if self._memory is None:
            self._memory = np.zeros(self._size_bytes // 2, np.uint16)
        broadcast(self._memory)
        self._note(version, split(self._memory))

    def report(self) -> tuple[float | None, dict[int, float]]:
        """Return when it began to listen, and when it had each version."""
        return self._began_s, dict(self._had_s)

    def digest(self) -> tuple[int, int]:
        """Return its version, and a checksum of it."""
        if self._newest is None:
            return 0, 0
        return self._newest[0], digest(self._newest[1])

    def _note(self, version: int, value: Value) -> None:
        check(value, version)
        self._had_s.setdefault(version, time.monotonic())
        self._newest = version, value


def join_group(where: str, rank: int, count: int, timeout_s: float) -> None:
    """Leave this process's group of Gloo, if it has one, and join another."""
    os.environ["GLOO_SOCKET_IFNAME"] = rail_device(0)
    import torch.distributed as group

    if group.is_initialized():
        group.destroy_process_group()
    limit = timedelta(seconds=timeout_s)
    group.init_process_group("gloo", where, rank=rank, world_size=count, timeout=limit)


def broadcast(flat: Bits) -> None:
    """Take part in a broadcast from rank 0."""
    import torch

    torch.distributed.broadcast(torch.from_numpy(flat.view(np.uint8)), 0)


class _Mode(Protocol):
    """The trainer's side of a way to sync weights."""

    def join(self, life: str, rollout: Any) -> None:
        """Have a rollout take part from here on."""

    def prepare(self) -> None:
        """Do what can be done before the first version. REQUIRES: the first rollouts listen."""

    def publish(self, version: int, weights: Weights) -> None:
        """Give a version to the rollouts; some may have it only later."""

    def leave(self, life: str) -> None:
        """Forget a rollout that was killed."""

    def finish(self) -> list[str]:
        """End; returns what went wrong on the way, in words."""


class _Ours:
    def join(self, life: str, rollout: Any) -> None:
        rollout.watch.remote()

    def prepare(self) -> None:
        hop.array(0)  # attached

    def publish(self, version: int, weights: Weights) -> None:
        hop.publish(CHANNEL, weights.value, version=version, timeout_s=TIMEOUT_S)

    def leave(self, life: str) -> None:
        """Forget nothing: a channel does not know its readers."""

    def finish(self) -> list[str]:
        hop.unpublish(CHANNEL, timeout_s=TIMEOUT_S)
        return []


class _Plain:
    """Ray's own store. A thread for each rollout gives it the newest version when it is idle."""

    def __init__(self) -> None:
        self._news = threading.Condition()
        self._newest: tuple[int, Any] = (0, None)
        self._has_ended = False
        self._failures: list[str] = []

    def join(self, life: str, rollout: Any) -> None:
        rollout.listen.remote()
        threading.Thread(target=self._feed, args=(life, rollout), daemon=True).start()

    def prepare(self) -> None:
        """Do nothing: a put needs no preparation."""

    def publish(self, version: int, weights: Weights) -> None:
        ref = ray.put(weights.value)
        with self._news:
            self._newest = version, ref
            self._news.notify_all()

    def leave(self, life: str) -> None:
        """Forget nothing: the thread of the rollout ends with the error of its call."""

    def finish(self) -> list[str]:
        with self._news:
            self._has_ended, self._newest = True, (0, None)
            self._news.notify_all()
        return self._failures

    def _feed(self, life: str, rollout: Any) -> None:
        last = 0
        while True:
            with self._news:
                while not self._has_ended and self._newest[0] == last:
                    self._news.wait()
                if self._has_ended:
                    return
                last, ref = self._newest
            try:
                ray.get(rollout.take.remote(last, [ref]), timeout=TIMEOUT_S)
                del ref
            except ray.exceptions.RayActorError:
                return
            except (ray.exceptions.RayError, TimeoutError) as error:
                self._failures.append(f"version {last} at {life}: {_first_line(error)}")


class _Gloo:
    """A group of the trainer and all rollouts. It is made again after a death, and for a join."""

    def __init__(self, host: str, timeout_s: float) -> None:
        self._host = host
        self._timeout_s = timeout_s
        self._members: dict[str, Any] = {}
        self._is_whole = False  # True if the group is of these members, and has not failed
        self._groups = 0
        self._failures: list[str] = []

    def join(self, life: str, rollout: Any) -> None:
        ray.get(rollout.import_torch.remote(), timeout=TIMEOUT_S)
        self._members[life] = rollout
        self._is_whole = False

    def prepare(self) -> None:
        self._make_group()

    def publish(self, version: int, weights: Weights) -> None:
        for _ in range(_GLOO_TRIES):
            began_s = time.monotonic()
            calls: dict[Any, str] = {}
            try:
                if not self._is_whole:
                    self._make_group()
                calls = {each.receive.remote(version): life for life, each in self._members.items()}
                broadcast(weights.flat)
                ray.get(list(calls), timeout=self._timeout_s)
                return
            except (RuntimeError, ray.exceptions.RayError, TimeoutError) as error:
                failed_s = time.monotonic() - began_s
                self._part_with_the_dead(calls)
                self._failures.append(
                    f"version {version}: the group has failed after {failed_s:.1f} s, and was left "
                    f"by all after {time.monotonic() - began_s:.1f} s: {_first_line(error)}"
                )

    def leave(self, life: str) -> None:
        """Forget nothing: the group learns of a death by an error or its timeout."""

    def finish(self) -> list[str]:
        return self._failures

    def _part_with_the_dead(self, calls: dict[Any, str]) -> None:
        """Wait until the survivors' calls have ended, and keep the members that answer."""
        self._is_whole = False
        if calls:
            ray.wait(list(calls), num_returns=len(calls), timeout=self._timeout_s)
        answers = {each.report.remote(): life for life, each in self._members.items()}
        ended, silent = ray.wait(list(answers), num_returns=len(answers), timeout=ANSWER_S)
        dead = [answers[each] for each in silent]
        for each in ended:
            try:
                ray.get(each)
            except ray.exceptions.RayError:
                dead.append(answers[each])
        for life in dead:
            del self._members[life]

    def _make_group(self) -> None:
        where = f"tcp://{self._host}:{_GLOO_PORT + self._groups}"
        self._groups += 1
        count = 1 + len(self._members)
        joins = [
            each.join_group.remote(where, rank, count, self._timeout_s)
            for rank, each in enumerate(self._members.values(), start=1)
        ]
        join_group(where, 0, count, self._timeout_s)
        ray.get(joins, timeout=self._timeout_s)
        self._is_whole = True


def _first_line(error: BaseException) -> str:
    cause = getattr(error, "cause", None) or error  # Ray's wrapping begins with a traceback
    words = str(cause).strip().splitlines() or [""]
    return f"{type(cause).__name__}: {words[0][:120]}"


class _Driver:
    """The benchmark's commands."""

    def __init__(self, host: str) -> None:
        self._host = host
        self._rollouts: dict[str, Any] = {}  # by life

    def begin(
        self, mode: str, size_bytes: int, changed_share: float, gloo_timeout_s: float
    ) -> None:
        """Make the weights, and begin a mode."""
        self._size_bytes = size_bytes
        self._weights = Weights(size_bytes, changed_share)
        self._version = 0
        modes = {HOPLITE: _Ours, RAY: _Plain}
        self._mode: _Mode = modes[mode]() if mode in modes else _Gloo(self._host, gloo_timeout_s)

    def join(self, life: str, resource: str) -> None:
        """Start a rollout on the node that has this resource."""
        rollout = _Rollout.options(resources={resource: 0.001}).remote(self._size_bytes)
        self._rollouts[life] = rollout
        self._mode.join(life, rollout)

    def leave(self, life: str) -> None:
        """Forget a rollout that was killed."""
        self._rollouts.pop(life, None)
        self._mode.leave(life)

    def prepare(self) -> None:
        """Do what the mode can do before its first version."""
        self._mode.prepare()

    def publish(self, version: int) -> tuple[float, float]:
        """Change the weights and publish them; returns when that began and ended."""
        self._weights.change(version)
        self._version = version
        began_s = time.monotonic()
        self._mode.publish(version, self._weights)
        return began_s, time.monotonic()

    def collect(self) -> dict[str, Any]:
        """Return what each rollout has: when it began, and when it had each version.

        None stands for one that has died. A rollout that does not answer in time is left out.
        """
        asked = {each.report.remote(): life for life, each in self._rollouts.items()}
        ended, _ = ray.wait(list(asked), num_returns=len(asked), timeout=ANSWER_S)
        found: dict[str, Any] = {}
        for each in ended:
            try:
                found[asked[each]] = ray.get(each)
            except ray.exceptions.RayError:
                found[asked[each]] = None
        return found

    def finish(self) -> tuple[list[str], list[str]]:
        """End the mode; returns what went wrong, and the lives with other bytes than the trainer's.

        A rollout that has not the newest version is not compared.
        """
        asked = {each.digest.remote(): life for life, each in self._rollouts.items()}
        ended, _ = ray.wait(list(asked), num_returns=len(asked), timeout=TIMEOUT_S)
        whole = self._version, digest(self._weights.value)
        wrong = []
        for each in ended:
            with suppress(ray.exceptions.RayError):
                if (found := ray.get(each))[0] == whole[0] and found != whole:
                    wrong.append(asked[each])
        return self._mode.finish(), wrong
