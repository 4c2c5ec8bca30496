"""Starts a node process without Ray and ends it: for Store.start, tests and benchmarks."""

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

from hoplite_ray.errors import NodeLostError

_STOP_S = 10.0  # a leave takes two seconds at most; then the process is killed


@dataclass(slots=True, weakref_slot=True)
class NodeProcess:
    """A running node process and its directory; a temporary one goes with this process."""

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
        """Start a node and return when it is a member.

        `beside` is a node to join, whose secret is used. `before` are words to put before the
        command, such as `ip netns exec NAME`. The node ends with this process at the latest.

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
        assert process.stdout is not None
        with process.stdout as ready:
            line = ready.readline()  # ends at the latest when the process does
        if not line:
            process.wait()
            last = (log.read_text().strip().splitlines() or ["it said nothing"])[-1]
            if owns_directory:
                shutil.rmtree(directory)
            raise NodeLostError(f"the node did not start: {last}")
        record = json.loads(line)
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
            node._clean_up = weakref.finalize(node, _remove, os.getpid(), process, directory)
        return node

    @property
    def secret(self) -> bytes:
        """The secret of the node's cluster."""
        return (self.directory / "secret").read_bytes().strip()

    def stop(self) -> int:
        """Have it leave the cluster and end; returns its exit status. Idempotent."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            self.process.send_signal(signal.SIGCONT)
        return self._collect()

    def kill(self) -> None:
        """End it as a crash would. Idempotent."""
        if self.process.poll() is None:
            self.process.kill()
        self._collect()

    def _collect(self) -> int:
        try:
            status = self.process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            status = self.process.wait()
        if self._clean_up is not None:
            self._clean_up()
        return status


def _remove(pid: int, process: subprocess.Popen[bytes], directory: Path) -> None:
    """End what was not stopped and remove its directory; not in a child that was forked."""
    if os.getpid() != pid:
        return
    if process.poll() is None:
        process.kill()
        process.wait()
    shutil.rmtree(directory, ignore_errors=True)
