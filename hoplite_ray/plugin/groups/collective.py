"""ray.util.collective over the store: backend "HOPLITE".

The members of a group derive the ids of an operation's objects alike, without asking each other.
Each member puts its own object, gets those of the other members, and fills the caller's tensors in
place. The maker of an object deletes it when all its readers have acknowledged it. The reader of an
acknowledgement deletes that. The maker's journal has its objects until then.

The import of this module makes the backend known to Ray in this process.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import numpy as np
from ray.util.collective.backend_registry import register_collective_backend
from ray.util.collective.collective_group.base_collective_group import BaseGroup
from ray.util.collective.types import (
    AllGatherOptions,
    AllReduceOptions,
    BarrierOptions,
    BroadcastOptions,
    RecvOptions,
    ReduceOp,
    ReduceOptions,
    ReduceScatterOptions,
    SendOptions,
)

from hoplite_ray.errors import InvalidArgumentError, LayoutMismatchError
from hoplite_ray.plugin.groups.operation import Operation
from hoplite_ray.plugin.groups.roster import CollectiveMeeting, Roster
from hoplite_ray.plugin.process import job_options
from hoplite_ray.values import layout as refs
from hoplite_ray.values.dtypes import memory_step

BACKEND = "HOPLITE"

_OPS: dict[ReduceOp, refs.ReduceOp] = {
    ReduceOp.SUM: "sum",
    ReduceOp.PRODUCT: "prod",
    ReduceOp.MIN: "min",
    ReduceOp.MAX: "max",
}
_MEET_S = 30.0  # of a meeting, beyond which it fails; like gloo_timeout, which only Gloo gets
_TIMEOUT_S = 1800.0  # of an operation without a limit of its own; like torch's process groups


class Collective(BaseGroup):
    """One process's membership in one group. Ray calls it, one operation at a time."""

    def __init__(self, world_size: int, rank: int, name: str) -> None:
        """Meet the other members.

        Raises: like `CollectiveMeeting.meet`; CollectiveError if a member dies meanwhile.
        """
        super().__init__(world_size, rank, name)
        self._others = [each for each in range(world_size) if each != rank]
        self._operation_counts: Counter[tuple[int, ...]] = Counter()  # of all; and of each pair
        self._acknowledged: dict[int, bytes] = {}
        meeting = CollectiveMeeting(name, rank, world_size)
        self._roster = Roster(name, rank, meeting.meet(_MEET_S))
        try:
            with self._operation("joining", -1, timeout_s=_MEET_S) as joining:
                self._synchronize(joining)
        except BaseException:
            self._roster.close()
            raise
        if rank == 0:
            meeting.remove_list()

    @classmethod
    def backend(cls) -> str:
        return BACKEND

    @classmethod
    def check_backend_availability(cls) -> bool:
        """Return True if the job has the flag: without it workers don't know the backend."""
        return job_options.is_given()

    def destroy_group(self) -> None:
        """Leave; the next operation of the other members waits for this member in vain.

        Its last acknowledgements stay, because a member may still read them, and are no longer this
        process's. In a group that has failed they are deleted.
        """
        end = self._roster.delete if self._roster.has_failed else self._roster.record_released
        for object_id in self._acknowledged.values():
            end(object_id)
        self._roster.close()

    def allreduce(self, tensor: Any, allreduce_options: Any = AllReduceOptions) -> None:
        op, timeout_s = _OPS[allreduce_options.reduceOp], _timeout_s(allreduce_options)
        array = _target(_one(tensor))
        with self._operation("allreduce", timeout_s=timeout_s) as operation:
            operation.put(array, "source", self.rank)
            if self.rank == 0:
                operation.reduce(self._ids(operation, "source"), "sum of", op, everywhere=True)
            self._fill(operation, array, "sum of")
            self._synchronize(operation)

    def reduce(self, tensor: Any, reduce_options: Any = ReduceOptions) -> None:
        op, timeout_s = _OPS[reduce_options.reduceOp], _timeout_s(reduce_options)
        root = reduce_options.root_rank
        array = (_target if root == self.rank else _array)(_one(tensor))
        with self._operation("reduce", timeout_s=timeout_s) as operation:
            operation.put(array, "source", self.rank)
            if self.rank == root:
                operation.reduce(self._ids(operation, "source"), "sum of", op)
                self._fill(operation, array, "sum of")
                self._acknowledge(operation, *self._others)
            else:
                self._await(operation, root)

    def broadcast(self, tensor: Any, broadcast_options: Any = BroadcastOptions) -> None:
        timeout_s = _timeout_s(broadcast_options)
        root = broadcast_options.root_rank
        array = (_array if root == self.rank else _target)(_one(tensor))
        with self._operation("broadcast", timeout_s=timeout_s) as operation:
            if self.rank == root:
                operation.put(array, "source", root)
                self._await(operation, *self._others)
            else:
                self._fill(operation, array, "source", root)
                self._acknowledge(operation, root)

    def allgather(
        self, tensor_list: Any, tensor: Any, allgather_options: Any = AllGatherOptions
    ) -> None:
        timeout_s = _timeout_s(allgather_options)
        array = _array(_one(tensor))
        targets = [_target(each) for each in self._one_each(_one(tensor_list))]
        with self._operation("allgather", timeout_s=timeout_s) as operation:
            operation.put(array, "source", self.rank)
            values = operation.get(self._ids(operation, "source"))
            for rank, value in enumerate(values):
                _copy(targets[rank], value, f"what rank {rank} gives")
            self._synchronize(operation)

    def reducescatter(
        self, tensor: Any, tensor_list: Any, reducescatter_options: Any = ReduceScatterOptions
    ) -> None:
        """Run one reduce for each member, which folds its own share."""
        op, timeout_s = _OPS[reducescatter_options.reduceOp], _timeout_s(reducescatter_options)
        array = _target(_one(tensor))
        sources = [_array(each) for each in self._one_each(_one(tensor_list))]
        with self._operation("reducescatter", timeout_s=timeout_s) as operation:
            for rank, source in enumerate(sources):
                operation.put(source, f"source for {rank}", self.rank)
            ids = self._ids(operation, f"source for {self.rank}")
            operation.reduce(ids, f"sum for {self.rank} of", op)
            self._fill(operation, array, f"sum for {self.rank} of")
            self._synchronize(operation)

    def barrier(self, barrier_options: Any = BarrierOptions) -> None:
        with self._operation("barrier", timeout_s=_timeout_s(barrier_options)) as operation:
            self._synchronize(operation)

    def send(self, tensor: Any, send_options: Any = SendOptions) -> None:
        """Send, and return when the other member has received it."""
        to, timeout_s = send_options.dst_rank, _timeout_s(send_options)
        array = _array(_one(tensor))
        with self._operation("send", self.rank, to, timeout_s=timeout_s) as operation:
            operation.put(array, "source", self.rank)
            self._await(operation, to)

    def recv(self, tensor: Any, recv_options: Any = RecvOptions) -> None:
        of, timeout_s = recv_options.src_rank, _timeout_s(recv_options)
        array = _target(_one(tensor))
        with self._operation("recv", of, self.rank, timeout_s=timeout_s) as operation:
            self._fill(operation, array, "source", of)
            self._acknowledge(operation, of)

    @contextmanager
    def _operation(self, what: str, *pair: int, timeout_s: float) -> Iterator[Operation]:
        """Run the group's next operation, or one between two members, and delete its objects."""
        self._roster.check()
        self._operation_counts[pair] += 1
        number = self._operation_counts[pair]
        operation = Operation(self._roster, f"{what} {number}", (pair, number), timeout_s)
        try:
            with self._roster.report_errors(f"{what} {number}"):
                yield operation
        finally:
            operation.delete_objects()

    def _ids(self, operation: Operation, what: str) -> dict[int, bytes]:
        return {rank: operation.id(what, rank) for rank in range(self.world_size)}

    def _fill(self, operation: Operation, array: Any, what: str, rank: int = 0) -> None:
        """Fill the caller's `array` with the object that `rank` makes."""
        (value,) = operation.get({rank: operation.id(what, rank)})
        _copy(array, value, f"the {what.split()[0]} at rank {rank}")

    def _synchronize(self, operation: Operation) -> None:
        """Wait until all members have come here: no member needs an object any more then."""
        if self.rank == 0:
            self._await(operation, *self._others)
            self._acknowledge(operation, *self._others)
        else:
            self._acknowledge(operation, 0)
            self._await(operation, 0)

    def _acknowledge(self, operation: Operation, *ranks: int) -> None:
        """Acknowledge to `ranks`. REQUIRES: this operation has had a message of each.

        So they have ended the last operation, and need the last acknowledgement no more.
        """
        for rank in ranks:
            last = self._acknowledged.get(rank)
            self._acknowledged[rank] = operation.acknowledge(self.rank, rank)
            if last is not None:
                self._roster.record_released(last)

    def _await(self, operation: Operation, *ranks: int) -> None:
        operation.await_acknowledgements({rank: (rank, self.rank) for rank in ranks})

    def _one_each(self, tensors: Any) -> list[Any]:
        if len(tensors) != self.world_size:
            raise InvalidArgumentError(
                f"{len(tensors)} tensors for the {self.world_size} members of collective group "
                f"{self.group_name!r}; pass one for each"
            )
        return list(tensors)


def _timeout_s(options: Any) -> float:
    """Return the option's limit; Ray's functions leave it unset."""
    timeout: timedelta = getattr(options, "timeout_ms", timedelta(-1))
    return timeout.total_seconds() if timeout >= timedelta(0) else _TIMEOUT_S


def _one(tensors: Any) -> Any:
    if len(tensors) == 1:
        return tensors[0]
    raise InvalidArgumentError(
        f"backend {BACKEND} takes one tensor of each member, not {len(tensors)}; the *_multigpu "
        "functions need backend NCCL"
    )


def _array(tensor: Any) -> Any:
    """Return the tensor's own memory as a numpy array, or as it is if only torch has its dtype.

    Raises: InvalidArgumentError for a tensor that no object can hold.
    """
    if isinstance(tensor, np.ndarray):
        array: Any = tensor
    elif not hasattr(tensor, "detach"):
        raise InvalidArgumentError(
            f"backend {BACKEND} takes numpy arrays and torch tensors on the CPU, not "
            f"{type(tensor)}; pass np.asarray(it)"
        )
    elif tensor.device.type != "cpu":
        raise InvalidArgumentError(
            f"backend {BACKEND} takes torch tensors on the CPU, not on {tensor.device}: "
            f"{memory_step(tensor, 'pass')}, or make the group with backend NCCL"
        )
    else:
        array = tensor.detach()
        try:
            array = array.numpy()
        except (TypeError, RuntimeError):
            pass  # for example bfloat16
    refs.Layout.of(array)
    return array


def _target(tensor: Any) -> Any:
    """Like `_array`, for a tensor that the operation writes into."""
    array = _array(tensor)
    if isinstance(array, np.ndarray) and not array.flags.writeable:
        raise InvalidArgumentError(
            "this array is read-only, as those that ray.get returns, and can't be filled; pass "
            "np.array(it)"
        )
    return array


def _copy(target: Any, value: Any, what: str) -> None:
    has, gets = (str(refs.Layout.of(each).leaves[0]) for each in (target, value))
    if has != gets:
        raise LayoutMismatchError(
            f"{what} is {gets}, the tensor to be filled is {has}; give all members tensors of one "
            "dtype and shape"
        )
    target[...] = value


register_collective_backend(BACKEND, Collective)
