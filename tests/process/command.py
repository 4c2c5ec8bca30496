"""The `hoplite-ray` command as a user runs it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from signal import SIGCONT, SIGSTOP
from typing import Any

from hoplite_ray.launch import NodeProcess

# A command asks each node within a share of its limit, which is short where cores are busy.
UNHURRIED = ("--timeout-s", "20")
FOR_RAY = ("--timeout-s", "100")  # a process of its own imports Ray first


@dataclass(frozen=True, slots=True)
class Ran:
    """How a command ended."""

    status: int
    out: str
    err: str

    @property
    def told(self) -> dict[str, Any]:
        """The object that --json printed."""
        return dict(json.loads(self.out))

    @property
    def last_words(self) -> str:
        """The last line on standard error."""
        return self.err.strip().splitlines()[-1]


def hoplite_ray(*arguments: str, **environment: str) -> Ran:
    """Run the command to its end."""
    done = subprocess.run(
        [sys.executable, "-m", "hoplite_ray.cli", *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **environment},
    )
    return Ran(done.returncode, done.stdout, done.stderr)


def at(*nodes: NodeProcess) -> list[str]:
    """Options that name these nodes by their directories."""
    return [word for node in nodes for word in ("--directory", str(node.directory))]


def stop(node: NodeProcess) -> None:
    """Freeze a node: until each of its threads has its turn to stop, the others still work."""
    os.kill(node.process.pid, SIGSTOP)
    while not _is_stopped(node.process.pid):  # the test's limit ends it
        continue


def go_on(node: NodeProcess) -> None:
    """Let a node run again."""
    os.kill(node.process.pid, SIGCONT)


@contextmanager
def stopped(node: NodeProcess) -> Iterator[None]:
    """Freeze a node for a while."""
    try:
        stop(node)
        yield
    finally:
        go_on(node)


def _is_stopped(pid: int) -> bool:
    try:
        stats = [(task / "stat").read_text() for task in Path(f"/proc/{pid}/task").iterdir()]
    except (FileNotFoundError, ProcessLookupError):  # a thread that has just ended
        return False
    return all(stat.rpartition(")")[2].split()[0] == "T" for stat in stats)
