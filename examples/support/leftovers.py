"""Leftovers of a run: bytes in the nodes' arenas, threads and open descriptors."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import ray

STATUS = [sys.executable, "-m", "hoplite_ray.cli", "status", "--json"]
OWN_THREADS = ("python", "hoplite")  # gRPC names its own, and starts and ends them as it likes
ENDED = (FileNotFoundError, ProcessLookupError)  # of a thread that was there a moment ago
WAIT_S = 60.0  # the last gradients come and go by themselves, also those of a worker just killed


@dataclass(frozen=True, slots=True)
class Leftovers:
    """Counts over all node processes together."""

    nodes: int
    arena_bytes_used: int
    threads: Counter[str]  # by name
    descriptors: Counter[str]  # by kind

    @classmethod
    def read(cls, address: str | None) -> Leftovers | None:
        """Read them now; None if the cluster at `address` has other users as well."""
        if address is not None:
            return None
        command = [*STATUS, "--address", ray.get_runtime_context().gcs_address]
        answer = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        nodes = json.loads(answer.stdout)["nodes"]
        tasks = [task for node in nodes for task in Path(f"/proc/{node['pid']}/task").iterdir()]
        files = {each for task in tasks for each in _descriptors(task)}
        return cls(
            len(nodes),
            sum(node["arena_bytes_used"] for node in nodes),
            Counter(name for task in tasks if (name := _name(task)).startswith(OWN_THREADS)),
            Counter(file.partition(":[")[0] for _, _, file in files),
        )

    def is_clean(self, before: Leftovers) -> bool:
        """Whether all is as `before`, except one connection of each node that gRPC dials late."""
        more = self.descriptors.total() - before.descriptors.total()
        same = self.arena_bytes_used == before.arena_bytes_used and self.threads == before.threads
        return same and more <= self.nodes

    def __str__(self) -> str:
        return (
            f"{self.arena_bytes_used} bytes in arenas, {self.threads.total()} threads and "
            f"{self.descriptors.total()} descriptors of node processes"
        )


def _name(task: Path) -> str:
    with suppress(*ENDED):
        return (task / "comm").read_text().strip()
    return ""


def _descriptors(task: Path) -> Iterator[tuple[str, str, str]]:
    """Process, number and file of each; a thread may have a table of its own."""
    with suppress(*ENDED):
        for each in (task / "fd").iterdir():
            with suppress(FileNotFoundError):  # closed meanwhile
                yield task.parts[2], each.name, os.readlink(each)


def settled(before: Leftovers | None) -> bool:
    """Wait until the nodes are as they were `before`, say how they are, and whether they are so."""
    if before is None:
        return True
    deadline_s = time.monotonic() + WAIT_S
    while True:
        gc.collect()  # refs in cycles keep their objects
        after = Leftovers.read(None)
        assert after is not None
        if after.is_clean(before) or time.monotonic() > deadline_s:
            break
        time.sleep(0.5)
    print(f"before: {before}\nafter:  {after}", flush=True)
    for more, fewer in ((after, before), (before, after)):
        differ = (more.threads - fewer.threads) + (more.descriptors - fewer.descriptors)
        if differ:
            print(f"only {'after' if more is after else 'before'}: {dict(differ)}", flush=True)
    return after.is_clean(before)
