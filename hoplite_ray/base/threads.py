"""Work in daemon threads: neither an event loop nor the process waits for one at its end."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


def run_in_thread(work: Callable[[], T], name: str) -> Future[T]:
    """Do `work` in a new daemon thread.

    Returns: a future with the result of `work`, or with the error that it raised. It can't be
             cancelled.
    """
    done: Future[T] = Future()
    done.set_running_or_notify_cancel()

    def run() -> None:
        try:
            done.set_result(work())
        except BaseException as error:
            done.set_exception(error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return done
