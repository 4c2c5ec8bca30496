"""Start a node process without Ray, and end it: for Store.start, tests and benchmarks."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hoplite_ray.errors import NodeLostError

_STOP_S = 10.0  # a leave takes two seconds at most; then the process is killed


@dataclass(slots=True, weakref_slot=True)
class NodeProcess:
    """A running node process and its directory. A temporary directory goes with this process."""

    process: subprocess.Popen[bytes]
    directory: Path
    node_id: int
    incarnation: int
    control: str
    rails: tuple[str, ...]
    socket: str
    _clean_up: weakref.finalize[..., NodeProcess] | None = field(default=None, repr=False)

    @classmethod
    def start(
        cls,
        *,
        directory: Path | None = None,
        listen: Sequence[str] = ("127.0.0.1:0",),
        beside: NodeProcess | None = None,
        join: Sequence[str] = (),
        secret_file: Path | None = None,
        arena_bytes: int | None = None,
        options: Mapping[str, int | str] | None = None,
        spill_directory: Path | None = None,
        before: Sequence[str] = (),
    ) -> NodeProcess:
        """Start a node, and return when it is a member.

        The node ends with this process at the latest.

        Args:    directory: the node's directory; None makes a temporary one.
                 listen: the addresses of the node's rails; port 0 takes any free port.
                 beside: a node that the new one joins, with that node's secret.
                 join: control addresses of members that the node joins.
                 secret_file: the file with the cluster's secret.
                 arena_bytes: memory for objects; None takes 20 % of the machine's.
                 options: options of the native node, by name.
                 spill_directory: the directory for spilled objects.
                 before: words before the command, such as `ip netns exec NAME`.
        Returns: the running node.
        Raises:  NodeLostError with the node's last words if it does not start.
        """
        owns_directory = directory is None
        if directory is None:
            directory = Path(tempfile.mkdtemp(prefix="hoplite-"))
        if beside is not None:
            join, secret_file = (*join, beside.control), beside.directory / "secret"
        command = [*before, sys.executable, "-m", "hoplite_ray.node"]
        command += ["--directory", str(directory), "--watch-pid", str(os.getpid())]
        for address in listen:
            command += ["--listen", address]
        for address in join:
            command += ["--join", address]
        if secret_file is not None:
            command += ["--secret-file", str(secret_file)]
        if arena_bytes is not None:
            command += ["--arena-bytes", str(arena_bytes)]
        if spill_directory is not None:
            command += ["--spill-directory", str(spill_directory)]
        for name, value in (options or {}).items():
            command += ["--option", f"{name}={value}"]
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        log = directory / "node.log"
        with open(log, "ab") as errors:
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors)
        try:
            record = _read_record(process, log)
        except NodeLostError:
            if owns_directory:
                shutil.rmtree(directory)
            raise
        node = cls(
            process=process,
            directory=directory,
            node_id=record["node_id"],
            incarnation=record["incarnation"],
            control=record["control"],
            rails=tuple(record["rails"]),
            socket=record["socket"],
        )
        if owns_directory:
            node._clean_up = weakref.finalize(node, _discard, os.getpid(), process, directory)
        return node

    @property
    def secret(self) -> bytes:
        """The secret of the node's cluster."""
        return (self.directory / "secret").read_bytes().strip()

    def stop(self) -> int:
        """Let the node leave the cluster and end; return its exit status. Idempotent."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            self.process.send_signal(signal.SIGCONT)
        return self._wait_end()

    def kill(self) -> None:
        """Kill the node, as a crash would. Idempotent."""
        if self.process.poll() is None:
            self.process.kill()
        self._wait_end()

    def _wait_end(self) -> int:
        try:
            status = self.process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            status = self.process.wait()
        if self._clean_up is not None:
            self._clean_up()
        return status


def _read_record(process: subprocess.Popen[bytes], log: Path) -> dict[str, Any]:
    """Return the line that a node prints when it is ready.

    Raises:  NodeLostError with the node's last words if it ends before.
    """
    assert process.stdout is not None
    with process.stdout as ready:
        line = ready.readline()  # ends at the latest when the process does
    if not line:
        process.wait()
        last = (log.read_text().strip().splitlines() or ["it said nothing"])[-1]
        raise NodeLostError(f"the node did not start: {last}")
    return dict(json.loads(line))


def _discard(pid: int, process: subprocess.Popen[bytes], directory: Path) -> None:
    """Kill a node that was not stopped, and remove its directory; do nothing in a forked child."""
    if os.getpid() != pid:
        return
    if process.poll() is None:
        process.kill()
        process.wait()
    shutil.rmtree(directory, ignore_errors=True)
