"""Cost and place of a run: cores, retransmissions, bytes, machine, commit, load."""

from __future__ import annotations

import os
import platform
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from network import Network, rail_device

SEED = 0  # of every program's random numbers, the first of several
SATURATED_SHARE = 0.9  # of all cores' time; above it a figure speaks of the machine
_TOLD_S = 0.2  # of the cores' time; less is too few ticks of 10 ms for a share


@dataclass(frozen=True, slots=True)
class Usage:
    """Resources used between two readings."""

    busy_s: float  # core seconds of all processes on the machine
    cores_s: float  # core seconds that the machine had
    own_s: float  # core seconds of the contender's own processes
    retransmitted: int  # TCP packets sent again, over all nodes' namespaces

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.busy_s + other.busy_s,
            self.cores_s + other.cores_s,
            self.own_s + other.own_s,
            self.retransmitted + other.retransmitted,
        )

    @property
    def busy_share(self) -> float:
        """The busy share of the machine's cores; 0 if the run took too few ticks to tell."""
        return self.busy_s / self.cores_s if self.cores_s >= _TOLD_S else 0.0

    @property
    def is_saturated(self) -> bool:
        """True if the cores, not the network, may have limited the run."""
        return self.busy_share >= SATURATED_SHARE


class Links:
    """The kernel's counters of a network's links, for all traffic on them."""

    def __init__(self, network: Network) -> None:
        self._snmp = [network.counters(rank, "snmp") for rank in range(network.count)]
        self._devices = [network.counters(rank, "dev") for rank in range(network.count)]

    def retransmitted(self) -> int:
        """Count the TCP packets that all nodes together have sent again."""
        return sum(_retransmitted(snmp) for snmp in self._snmp)

    def sent_bytes(self, rank: int, rail: int = 0) -> int:
        """Count the bytes that a node has sent over its link, headers included."""
        return self._count(rank, rail, 8)

    def received_bytes(self, rank: int, rail: int = 0) -> int:
        """Count the bytes that a node has received over its link, headers included."""
        return self._count(rank, rail, 0)

    def _count(self, rank: int, rail: int, column: int) -> int:
        self._devices[rank].seek(0)
        for line in self._devices[rank].read().splitlines():
            device, _, counters = line.partition(":")
            if device.strip() == rail_device(rail):
                return int(counters.split()[column])
        raise OSError(f"node {rank} has no device {rail_device(rail)}")

    def close(self) -> None:
        """Close the handles of the namespaces."""
        for file in (*self._snmp, *self._devices):
            file.close()


class Meters:
    """The counters of the kernel; reading them sends nothing over the links."""

    def __init__(self, links: Links, own: Callable[[], Iterable[int]]) -> None:
        """`own` returns the ids of the processes whose core time is counted apart."""
        self._links = links
        self._own = own
        self._last = self._read()

    def restart(self) -> None:
        """Take the first reading."""
        self._last = self._read()

    def usage(self) -> Usage:
        """Return the use since `restart`; `own_s` omits processes that began or ended meanwhile."""
        then, now = self._last, self._read()
        both = then.own_s.keys() & now.own_s.keys()
        return Usage(
            busy_s=now.busy_s - then.busy_s,
            cores_s=now.cores_s - then.cores_s,
            own_s=sum(now.own_s[pid] - then.own_s[pid] for pid in both),
            retransmitted=now.retransmitted - then.retransmitted,
        )

    def _read(self) -> _Reading:
        cores = cores_s()
        return _Reading(
            busy_s=cores.busy_s,
            cores_s=cores.all_s,
            own_s={pid: s for pid in self._own() if (s := cpu_s(pid)) is not None},
            retransmitted=self._links.retransmitted(),
        )


@dataclass(frozen=True, slots=True)
class Cores:
    """The machine's cores since it was started."""

    busy_s: float
    all_s: float


def cores_s() -> Cores:
    """Return the core seconds that all processes have used."""
    ticks = [int(word) for word in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    idle = ticks[3] + ticks[4]  # idle, and waiting for a disk
    return Cores((sum(ticks) - idle) / _TICKS_PER_S, sum(ticks) / _TICKS_PER_S)


@dataclass(frozen=True, slots=True)
class _Reading:
    busy_s: float
    cores_s: float
    own_s: dict[int, float]  # by pid
    retransmitted: int


_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_CPUCLOCK_SCHED = 2  # user and system time, to the nanosecond


def cpu_s(pid: int) -> float | None:
    """Return the CPU time of all threads, ended ones included, to the nanosecond."""
    clock = ~pid << 3 | _CPUCLOCK_SCHED  # of that process, as clock_getcpuclockid(3) makes it
    try:
        return time.clock_gettime(clock)
    except OSError:
        return None  # it has ended


def _retransmitted(snmp: IO[str]) -> int:
    snmp.seek(0)
    lines = (line.split() for line in snmp.read().splitlines() if line.startswith("Tcp:"))
    names, values = lines
    return int(values[names.index("RetransSegs")])


def find_built(program: str) -> Path:
    """Find the newest build of a native program. Ends this one if there is none."""
    builds = (Path(__file__).resolve().parent.parent / "build").glob(f"*/{program}")
    built = sorted(builds, key=lambda path: path.stat().st_mtime)
    if not built:
        sys.exit(f"{program} is not built; run `make fast` first")
    return built[-1]


def machine() -> dict[str, object]:
    """Return the machine, the commit, the command, the date and the load of a run."""
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
        "command": shlex.join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *sys.argv[1:]]),
        "seed": SEED,
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "load": os.getloadavg()[0],
    }
