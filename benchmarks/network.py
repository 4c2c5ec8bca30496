"""The emulated cluster's network: a namespace per node, and shaped full-duplex links to a switch.

Egress is shaped at the node's own end of its link, ingress at the switch's end; the switch of each
rail is a bridge in a namespace of its own, so nothing touches the machine's network. In front of a
link is the queue that Linux gives any device, pfifo_fast of 1,000 packets; a port of the switch has
a MiB. Congestion control is pinned to cubic, because results under different ones can't be
compared; where the machine's default is another, cubic is put on the list of those that a namespace
may choose.

Each network has a file in /run/hoplite-networks, whose lock its process holds. The next network
removes what is left of those whose process has been killed.
"""

from __future__ import annotations

import ctypes
import os
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from hoplite_ray.base import locks

_GSO_BYTES = 32768  # largest packet handed to the shaper: what crosses a hop at once
_BURST_BYTES = _GSO_BYTES * 3 // 2  # passes unshaped after idle time: as little as tbf can do with
_PORT_BYTES_MAX = 1024 * 1024 + _BURST_BYTES
_BEFORE_LOCAL = 10  # priority of a rule that drops what comes in before it is delivered
_CONGESTION = "cubic"
_ALLOWED = Path("/proc/sys/net/ipv4/tcp_allowed_congestion_control")
_NAMESPACES = Path("/run/netns")  # of `ip`
_OWNERS = Path("/run/hoplite-networks")  # shared by all that share _NAMESPACES
_CLONE_NEWNET = 0x40000000
_LIBC = ctypes.CDLL(None, use_errno=True)
_END_S = 5.0  # for what still runs in a namespace to be gone
# A user's PATH often lacks the administrator's tools.
_TOOLS = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])


def why_impossible() -> str | None:
    """Say why this process can't make network namespaces; None if it can."""
    if os.geteuid() != 0:
        return "needs root for network namespaces"
    name = f"hop{os.getpid()}-probe"
    try:
        _run("ip", "netns", "add", name)
        _run("ip", "netns", "del", name)
    except OSError as error:
        return f"needs root for network namespaces, and more: {error}"
    return None


def rail_device(rail: int) -> str:
    """The name of a rail's device in every node's namespace."""
    return f"rail{rail}"


class Network:
    """Namespaces and their links. A context manager.

    Rates are of all nodes, or one for each. A second rail is a second link of every node, to a
    switch of its own. Rates are changed, and links cut and healed, while traffic runs. `folder` is
    for what runs at the nodes; at the end it goes, and whatever still runs there is killed.
    """

    def __init__(
        self,
        count: int,
        *,
        rate_mbit: float | Sequence[float],
        second_rail_mbit: float | Sequence[float] | None = None,
    ) -> None:
        self.count = count
        rates = [rate_mbit] if second_rail_mbit is None else [rate_mbit, second_rail_mbit]
        self.rates_mbit = [_of_each(count, rate) for rate in rates]  # by rail and rank
        self._prefix = f"hop{os.getpid()}-{secrets.token_hex(3)}-"
        self._namespaces: list[str] = []
        self._owner: _Owner | None = None

    def __enter__(self) -> Self:
        impossible = why_impossible()
        if impossible:
            raise PermissionError(impossible)
        remove_stale()
        self.folder = Path(tempfile.mkdtemp(prefix="hoplite-"))
        try:
            self._owner = _Owner(self._prefix, self.folder)
            self._connect()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        _remove(self._namespaces, str(self.folder))
        self._namespaces.clear()
        if self._owner is not None:
            self._owner.close()

    def __str__(self) -> str:
        rails = (sorted(set(rates)) for rates in self.rates_mbit)
        texts = (" or ".join(f"{rate:g}" for rate in rates) for rates in rails)
        return f"{self.count} x {' and '.join(texts)} Mbit/s"

    @property
    def slowest_mbit(self) -> int:
        """The rate of the slowest link of the first rail: what nodes are told of their links."""
        return int(min(self.rates_mbit[0]))

    @property
    def rails(self) -> range:
        """The numbers of the rails, of which each node has a link."""
        return range(len(self.rates_mbit))

    def address(self, rank: int, rail: int = 0) -> str:
        """The node's address, which the others reach over the rail."""
        return f"10.{77 + rail}.0.{rank + 1}"

    def within(self, rank: int) -> list[str]:
        """Return the command prefix that runs a command at the node."""
        return [tool("ip"), "netns", "exec", self._namespace(rank)]

    def processes(self, rank: int) -> list[int]:
        """The ids of all processes that run at the node."""
        return [int(pid) for pid in _run("ip", "netns", "pids", self._namespace(rank)).split()]

    def end_processes(self, rank: int | None = None) -> None:
        """Kill all that runs at the node, or at all nodes, and wait until it has ended."""
        ranks = range(self.count) if rank is None else [rank]
        _end_processes([self._namespace(each) for each in ranks])

    def counters(self, rank: int, name: str) -> IO[str]:
        """Open a file of /proc/net as it is at the node, whatever runs or has died there."""
        with ThreadPoolExecutor(1) as threads:  # a thread is in a namespace by itself
            return threads.submit(self._counters, rank, name).result()

    def _counters(self, rank: int, name: str) -> IO[str]:
        with open(f"/run/netns/{self._namespace(rank)}") as namespace:
            if _LIBC.setns(namespace.fileno(), _CLONE_NEWNET) != 0:
                raise OSError(ctypes.get_errno(), "setns")
        return open(f"/proc/thread-self/net/{name}")

    def set_rate(self, rank: int, rate_mbit: float, rail: int = 0) -> None:
        """Shape the node's link, in both directions."""
        self.rates_mbit[rail][rank] = rate_mbit
        node = ("tc", "-n", self._namespace(rank), "qdisc", "replace", "dev", rail_device(rail))
        port = ("tc", "-n", self._switch, "qdisc", "replace", "dev", _port(rank, rail))
        rate = ("rate", f"{round(rate_mbit * 1000)}kbit", "burst", str(_BURST_BYTES))
        for device in (node, port):
            _run(*device, *("root", "handle", "1:", "tbf", *rate, "limit", str(_PORT_BYTES_MAX)))
        # tbf's own queue would be of a few ms, and TCP takes 200 ms and more to send again what its
        # own host has dropped of an idle connection (docs/internals/gotchas.md): no host queues so
        # little.
        _run(*node, *("parent", "1:1", "handle", "2:", "pfifo_fast"))

    @contextmanager
    def slowed(self, rank: int, share: float) -> Iterator[None]:
        """Have the node's first link at `share` of its rate for as long as the block takes."""
        rate_mbit = self.rates_mbit[0][rank]
        self.set_rate(rank, rate_mbit * share)
        try:
            yield
        finally:
            self.set_rate(rank, rate_mbit)

    def cut(self, rank: int, rail: int = 0) -> None:
        """Pull the node's cable out of the switch: the kernel at either end sees no carrier."""
        _run("ip", "-n", self._switch, "link", "set", _port(rank, rail), "down")

    def heal(self, rank: int, rail: int = 0) -> None:
        """Put the cable back."""
        _run("ip", "-n", self._switch, "link", "set", _port(rank, rail), "up")

    def silence(self, source: int, target: int) -> None:
        """Drop all packets from `source` to `target`; the other direction stays whole."""
        self._rule("add", source, target)

    def unsilence(self, source: int, target: int) -> None:
        """Stop dropping these packets."""
        self._rule("del", source, target)

    def _rule(self, verb: str, source: int, target: int) -> None:
        for rail in self.rails:
            rule = ("from", self.address(source, rail), "blackhole", "pref", str(_BEFORE_LOCAL))
            _run("ip", "-n", self._namespace(target), "rule", verb, *rule)

    def _namespace(self, rank: int) -> str:
        return f"{self._prefix}{rank}"

    @property
    def _switch(self) -> str:
        return f"{self._prefix}switch"

    def _connect(self) -> None:
        allowed = _ALLOWED.read_text().split()
        if _CONGESTION not in allowed:
            _ALLOWED.write_text(" ".join([*allowed, _CONGESTION]))
        self._add_namespace(self._switch)
        for rail in self.rails:
            bridge = ("type", "bridge", "forward_delay", "0")
            _run("ip", "-n", self._switch, "link", "add", _bridge(rail), *bridge)
            _run("ip", "-n", self._switch, "link", "set", _bridge(rail), "up")
        for rank in range(self.count):
            node = self._namespace(rank)
            self._add_namespace(node)
            cubic = f"net.ipv4.tcp_congestion_control={_CONGESTION}"
            _run(*self.within(rank), "sysctl", "-qw", cubic)
            # The rule that delivers comes first; so that others may come before it, it moves back.
            delivers = ("lookup", "local", "pref", str(_BEFORE_LOCAL + 1))
            _run("ip", "-n", node, "rule", "add", *delivers)
            _run("ip", "-n", node, "rule", "del", "pref", "0")
            for rail in self.rails:
                self._link(rank, rail)

    def _link(self, rank: int, rail: int) -> None:
        node, port, device = self._namespace(rank), _port(rank, rail), rail_device(rail)
        _run(
            *("ip", "link", "add", port, "netns", self._switch),
            *("type", "veth", "peer", "name", device, "netns", node),
        )
        for namespace, end in ((self._switch, port), (node, device)):
            _run("ip", "-n", namespace, "link", "set", end, "gso_max_size", str(_GSO_BYTES))
        _run("ip", "-n", self._switch, "link", "set", port, "master", _bridge(rail), "up")
        _run("ip", "-n", node, "addr", "add", f"{self.address(rank, rail)}/24", "dev", device)
        _run("ip", "-n", node, "link", "set", device, "up")
        self.set_rate(rank, self.rates_mbit[rail][rank], rail)

    def _add_namespace(self, name: str) -> None:
        _run("ip", "netns", "add", name)
        self._namespaces.append(name)
        _run("ip", "-n", name, "link", "set", "lo", "up")


class _Owner:
    """The mark of a network whose process lives: a locked file with the network's folder in it."""

    def __init__(self, prefix: str, folder: Path) -> None:
        _OWNERS.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._file = _OWNERS / f"{prefix}lock"
        unlocked = _OWNERS / f"{prefix}new"  # `remove_stale` looks at no such file
        unlocked.write_text(str(folder))
        self._descriptor = os.open(unlocked, os.O_RDONLY | os.O_CLOEXEC)
        locks.acquire(self._descriptor)
        unlocked.rename(self._file)

    def close(self) -> None:
        self._file.unlink(missing_ok=True)
        os.close(self._descriptor)


def remove_stale() -> None:
    """Remove the networks whose process was killed, with all processes that still run there."""
    for file in _OWNERS.glob("*lock"):
        with locks.try_hold(file) as is_mine:
            if is_mine:  # a live owner holds its own
                prefix = file.name.removesuffix("lock")
                names = [each.name for each in _NAMESPACES.glob(f"{prefix}*")]
                _remove(names, file.read_text())
                file.unlink(missing_ok=True)


def _remove(namespaces: Sequence[str], folder: str) -> None:
    _end_processes(namespaces)
    for name in namespaces:
        _run("ip", "netns", "del", name)
    if folder:  # a file that `try_hold` has made is empty
        shutil.rmtree(folder, ignore_errors=True)


def _end_processes(namespaces: Sequence[str]) -> None:
    """Kill all processes in the namespaces. They are ours: no other program knows the names."""
    limit_s = time.monotonic() + _END_S
    while time.monotonic() < limit_s:
        found = [_run("ip", "netns", "pids", name).split() for name in namespaces]
        left = [int(pid) for pids in found for pid in pids if not has_ended(int(pid))]
        if not left:
            return
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)


def tool(name: str) -> str:
    """Where an administrator's tool is.

    Raises:  FileNotFoundError with the package that has it.
    """
    found = shutil.which(name, path=_TOOLS)
    if found is None:
        raise FileNotFoundError(f"{name} is not installed; it is in the package iproute2")
    return found


def _of_each(count: int, rate: float | Sequence[float]) -> list[float]:
    rates = list(rate) if isinstance(rate, Sequence) else [rate] * count
    if len(rates) != count:
        raise ValueError(f"{len(rates)} rates for {count} nodes: give one, or one for each")
    return rates


def _bridge(rail: int) -> str:
    return f"bridge{rail}"


def _port(rank: int, rail: int) -> str:
    return f"port{rank}-{rail}"


def has_ended(pid: int) -> bool:
    """Return whether the process has ended, also if its parent has not reaped it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def _run(*command: str) -> str:
    done = subprocess.run(
        [tool(command[0]), *command[1:]],
        env=os.environ | {"PATH": _TOOLS},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise OSError(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout
