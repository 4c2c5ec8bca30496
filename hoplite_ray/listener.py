"""The thread of a store that calls back when an awaited operation has ended."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from hoplite_ray import _native
from hoplite_ray.config import progress_wanted
from hoplite_ray.errors import NodeLostError
from hoplite_ray.progress import ProgressLine, should_show

_WAIT_S = 3600.0  # of one wait; closing the client ends it at once
_ECHO_S = 1.0  # a node that runs answers within milliseconds


class Listener:
    """The thread that calls back when an awaited operation of one client has ended.

    The thread starts with the first awaited operation. It ends when the client is closed or the
    node is gone. Any thread may use the listener; callbacks run on the listener's thread.
    """

    def __init__(self, client: _native.Client, directory: Path) -> None:
        """Listen for `client`, whose node has its files in `directory`."""
        self._client = client
        self._directory = directory
        self._progress = progress_wanted()
        self._lock = threading.Lock()
        self._callbacks: dict[int, list[Callable[[], None]]] = {}
        self._thread: threading.Thread | None = None

    def add_end_callback(self, request: _native.Request, callback: Callable[[], None]) -> None:
        """Call `callback` when `request` has succeeded or failed; at once if it has already."""
        with self._lock:
            awaited = self._callbacks.get(request.id)
            if awaited is not None:
                awaited.append(callback)
                return
            self._callbacks[request.id] = [callback]
            if self._thread is None:
                name = "hoplite_ray listener"
                self._thread = threading.Thread(target=self._run, name=name, daemon=True)
                self._thread.start()
        try:
            self._client.watch(request)
        except NodeLostError:  # then it has ended, and no callback would come
            self._run_callbacks(request.id)

    def wait_all(self, requests: Sequence[_native.Request], timeout_s: float) -> int | None:
        """Wait as `_native.Client.wait_all` does, on the caller's thread."""
        return self._client.wait_all(requests, timeout_s)

    def await_echo(self) -> None:
        """Wait until the node has given the answers that it can give without waiting.

        A node that does not answer is waited for at most a second.
        """
        with suppress(NodeLostError):  # then all operations have ended
            self._client.echo().wait(_ECHO_S)

    def shortage(self) -> str:
        """Return why the node's view can't change, or "" if it can; many operations wait for it."""
        try:
            return (self._directory / "shortage").read_text()
        except OSError:
            return ""

    def show_progress(
        self, what: str, object_ids: Sequence[bytes], ended: Callable[[], int] = lambda: 0
    ) -> ProgressLine | None:
        """Begin to show the progress of gets; return None without a terminal or notebook.

        `ended` returns how many of the gets have ended.
        """
        if not should_show(self._progress):
            return None
        line = ProgressLine(what, object_ids, ended, self._directory)
        line.start()
        return line

    def join(self) -> None:
        """Wait for the thread's end, after the client was closed."""
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        with suppress(NodeLostError):
            while True:
                ended = self._client.next_finished(_WAIT_S)
                if ended is not None:
                    self._run_callbacks(ended)

    def _run_callbacks(self, request_id: int) -> None:
        with self._lock:
            callbacks = self._callbacks.pop(request_id, [])
        for callback in callbacks:
            callback()


def detach(pid: int, client: _native.Client, listener: Listener) -> None:
    """Close the client; operations in flight fail. Do nothing in a child forked from `pid`."""
    if os.getpid() == pid:
        client.close()
        listener.join()
