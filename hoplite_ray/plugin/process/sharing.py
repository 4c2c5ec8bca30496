"""A slow call that is made once for all its callers; each caller has a time limit of its own."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from threading import TIMEOUT_MAX
from typing import Generic, TypeVar

from hoplite_ray.errors import GetTimeoutError
from hoplite_ray.values.deadlines import left_s

T = TypeVar("T")


class SharedCall(Generic[T]):
    """Makes `call` on a thread of its own. A caller leaves at its limit, and the call goes on.

    Any thread may ask, except inside `seams.stay_connected`, because the call may need that lock.
    """

    def __init__(self, name: str, call: Callable[[], T], late: Callable[[], str]) -> None:
        """Make no call yet. `late` returns the beginning of the error at a caller's limit."""
        self._name = name
        self._call = call
        self._late = late
        self._lock = threading.Lock()
        self._answer: Future[T] | None = None  # of the call under way

    def result(self, deadline: float | None = None) -> T:
        """Make the call, or wait for the call that is under way.

        Raises: any error of the call; GetTimeoutError at `deadline`.
        """
        began_s = time.monotonic()
        with self._lock:
            answer = self._answer
            if answer is None:
                answer = Future()
                run = threading.Thread(
                    target=self._run, args=(answer,), name=f"hoplite-{self._name}", daemon=True
                )
                run.start()
                self._answer = answer
        left = left_s(deadline)
        wait([answer], None if left is None else min(left, TIMEOUT_MAX))
        if not answer.done():
            waited_s = round(time.monotonic() - began_s, 2)
            raise GetTimeoutError(f"{self._late()} after {waited_s} s; raise timeout_s")
        return answer.result()

    def _run(self, answer: Future[T]) -> None:
        try:
            value = self._call()
        except BaseException as error:
            self._forget_answer()
            answer.set_exception(error)
        else:
            self._forget_answer()
            answer.set_result(value)

    def _forget_answer(self) -> None:
        """Have the next caller make a new call."""
        with self._lock:
            self._answer = None
