"""What a run has cost and where it ran: cores, retransmissions, bytes, machine, commit, load."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from network import rail_device

from hoplite_ray.launch import NodeProcess

SATURATED_SHARE = 0.9  # of all cores' time: from here on it is the machine that is measured


@dataclass(frozen=True, slots=True)
class Usage:
    """What was used between two readings."""

    busy_s: float  # of the cores, by everybody on the machine
    cores_s: float  # that there were
    nodes_s: float  # of the cores, by the nodes
    retransmitted: int  # TCP packets, of all nodes' namespaces

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.busy_s + other.busy_s,
            self.cores_s + other.cores_s,
            self.nodes_s + other.nodes_s,
            self.retransmitted + other.retransmitted,
        )

    @property
    def busy_share(self) -> float:
        """Of the machine's cores; 0 where it took less than a tick of the clock."""
        return self.busy_s / self.cores_s if self.cores_s else 0.0

    @property
    def is_saturated(self) -> bool:
        """The cores were the limit, or too close to it for the figure to speak of the network."""
        return self.busy_share >= SATURATED_SHARE


class Meters:
    """The counters of the kernel; reading them sends nothing over the links."""

    def __init__(self, nodes: Sequence[NodeProcess]) -> None:
        self._nodes = nodes
        self._last = self._read()

    def restart(self) -> None:
        """Begin to measure."""
        self._last = self._read()

    def usage(self) -> Usage:
        """Return what was used since then; a node that died or was born meanwhile is left out."""
        then, now = self._last, self._read()
        both = then.nodes.keys() & now.nodes.keys()
        return Usage(
            busy_s=now.busy_s - then.busy_s,
            cores_s=now.cores_s - then.cores_s,
            nodes_s=sum(now.nodes[pid][0] - then.nodes[pid][0] for pid in both),
            retransmitted=sum(now.nodes[pid][1] - then.nodes[pid][1] for pid in both),
        )

    def sent_bytes(self, rank: int) -> int:
        """What a living node has sent over its link since `restart`."""
        pid = self._nodes[rank].process.pid
        return sent_bytes(pid) - self._last.nodes[pid][2]

    def _read(self) -> _Reading:
        cores = cores_s()
        nodes = {}
        for node in self._nodes:
            pid = node.process.pid
            if node.process.poll() is None:
                nodes[pid] = (_cpu_s(pid), _retransmitted(pid), sent_bytes(pid))
        return _Reading(cores.busy_s, cores.all_s, nodes)


@dataclass(frozen=True, slots=True)
class Cores:
    """The machine's cores since it was started."""

    busy_s: float
    all_s: float


def cores_s() -> Cores:
    """What they have spent, in seconds of one core; of all processes."""
    ticks = [int(word) for word in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    idle = ticks[3] + ticks[4]  # idle, and waiting for a disk
    return Cores((sum(ticks) - idle) / _TICKS_PER_S, sum(ticks) / _TICKS_PER_S)


@dataclass(frozen=True, slots=True)
class _Reading:
    busy_s: float
    cores_s: float
    nodes: dict[int, tuple[float, int, int]]  # by pid: its cores, retransmissions, bytes sent


_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


def _retransmitted(pid: int) -> int:
    names, values = (
        line.split()
        for line in Path(f"/proc/{pid}/net/snmp").read_text().splitlines()
        if line.startswith("Tcp:")
    )
    return int(values[names.index("RetransSegs")])


def sent_bytes(pid: int, rail: int = 0) -> int:
    """What has left the namespace of a process over one rail, headers included."""
    for line in Path(f"/proc/{pid}/net/dev").read_text().splitlines():
        device, _, counters = line.partition(":")
        if device.strip() == rail_device(rail):
            return int(counters.split()[8])
    raise OSError(f"process {pid} has no device {rail_device(rail)}")


def machine() -> dict[str, object]:
    """Where and of what something is measured, and how busy it is there already."""
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty", "--abbrev=40"],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        check=False,
    )
    models = [
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    return {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, {(models or ['?'])[0]}",
        "kernel": platform.release(),
        "commit": commit.stdout.strip(),
        "load": os.getloadavg()[0],
    }
