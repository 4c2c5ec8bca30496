"""The caller's half of reading bare values; steward/bare_sources.py shows how the two talk."""

from __future__ import annotations

import threading
from queue import Queue
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from hoplite_ray.errors import HopliteError, InvalidArgumentError, WrongTypeError
from hoplite_ray.plugin.handle.array import Array
from hoplite_ray.plugin.handle.making import make
from hoplite_ray.plugin.handle.messages import Bare, BareResult
from hoplite_ray.plugin.process.attachment import Attachment
from hoplite_ray.plugin.seams import core as seams
from hoplite_ray.plugin.seams.core import Ref
from hoplite_ray.values.codec import Encoded, encode


class BareReader:
    """A thread of this process, which asks one steward for bare sources while a call is pending.

    Its last question stays open for 5 to 10 s, and the next call needs none of its own.
    A process has one for each steward of its pending calls, which differ when Ray drains the node.
    """

    def __init__(self, here: Attachment) -> None:
        self.here = here
        self.steward: Any = None
        # A question is unfinished until no steward is asked because of it.
        self._asked: Queue[tuple[Any, str]] = Queue()
        self._pending: set[bytes] = set()  # answers that have not come and are still referred to
        self._kept: list[tuple[bytes, BareResult]] = []  # handles, kept until the answer has them
        self._thread = threading.Thread(target=self._run, name="hoplite-bare", daemon=True)
        self._thread.start()

    def attend(self, steward: Any, caller: str, result: Ref) -> None:
        """Read bare sources for `steward` until `result` is there, or no reference to it is left.

        REQUIRES: it is the steward of all calls that are pending here.
        """
        self.steward = steward
        answer = result.binary()
        self._pending.add(answer)
        seams.add_settled_callback(result, lambda: self._pending.discard(answer))
        self._asked.put((steward, caller))

    @property
    def is_idle(self) -> bool:
        """True if no call is pending, and no steward is asked or will be."""
        return not (self._pending or self._asked.unfinished_tasks)

    def _run(self) -> None:
        while True:
            steward, caller = self._asked.get()
            taken = 1
            while not self._asked.empty():
                steward, caller = self._asked.get()
                taken += 1
            try:
                self._serve(steward, caller)
            except (HopliteError, ray.exceptions.RayError):
                self._kept.clear()  # Ray was shut down here, or the steward has left
            for _ in range(taken):
                self._asked.task_done()

    def _serve(self, steward: Any, caller: str) -> None:
        is_needed = True
        while is_needed and self._asked.empty():
            had_calls = bool(self._pending)
            for each in seams.wait_for_answer(
                lambda: steward.bare_sources.remote(caller), self.here.connection
            ):
                taken = self._read(each)
                self._kept.append((each.answer, taken))
                with seams.stay_connected(self.here.connection):
                    steward.take_bare.remote(each.key, taken)
                del each, taken
            self._kept = [each for each in self._kept if each[0] in self._pending]
            is_needed = had_calls or bool(self._pending)

    def _read(self, bare: Bare) -> BareResult:
        try:
            if bare.is_large:
                return [self._wrap_where_it_is(bare)]
            value = seams.wait_for_answer(lambda: bare.refs[0], self.here.connection)
            return make(_encode_source(bare.index, value))
        except HopliteError as error:
            return error
        except Exception as error:  # for example, the value's class is missing here, too
            kind = type(error).__name__
            return WrongTypeError(f"source {bare.index} can't be read: {kind}: {error}")

    def _wrap_where_it_is(self, bare: Bare) -> Ref:
        """Have a task put a bare value into the store on the Ray node that has it."""
        where = bare.node or self.here.place.ray_node_id
        task = _wrap.options(scheduling_strategy=NodeAffinitySchedulingStrategy(where, soft=True))
        with seams.stay_connected(self.here.connection):
            ref: Ref = task.remote(bare.refs, bare.index)
            return ref


_readers: list[BareReader] = []
_choosing = threading.Lock()


def attend(here: Attachment, steward: Any, caller: str, result: Ref) -> None:
    """Read the bare values of a call's sources.

    Args: `result` is the call's answer, `caller` the name of this process at `steward`.
    """
    with _choosing:
        _readers[:] = [each for each in _readers if each.here is here]
        mine = [each for each in _readers if each.steward == steward]
        chosen = mine or [each for each in _readers if each.is_idle]
        if not chosen:
            _readers.append(BareReader(here))
            chosen = _readers[-1:]
        chosen[0].attend(steward, caller, result)


def _encode_source(index: int, value: Any) -> Encoded:
    try:
        return encode(value)
    except InvalidArgumentError as error:
        kind = type(value).__name__
        raise WrongTypeError(
            f"source {index} returned {kind}, which can't be put: {error}"
        ) from None


@ray.remote(num_cpus=0)
def _wrap(refs: list[Ref], index: int) -> Array:
    value = ray.get(refs[0])
    return value if isinstance(value, Array) else make(_encode_source(index, value))
