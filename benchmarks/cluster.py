"""An emulated cluster: one network namespace per node, each with a shaped full-duplex link.

Egress is shaped at the node's own end of its link, ingress at the switch's end; the switch is a
bridge in a namespace of its own, so nothing touches the machine's network. Congestion control is
pinned to cubic, because results under different ones can't be compared; where the machine's default
is another, cubic is put on the list of those that a namespace may choose. Needs root.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from hoplite_ray.launch import NodeProcess
from hoplite_ray.store import Store

# What of a link's nominal rate reaches the application: Ethernet, IP and TCP headers take the rest.
PAYLOAD_SHARE = 0.955
_GSO_BYTES = 32768  # largest packet handed to the shaper: what crosses a hop at once
_BURST_BYTES = _GSO_BYTES * 3 // 2  # passes unshaped after idle time: as little as tbf can do with
_EGRESS_QUEUE_BYTES = 256 * 1024 + _BURST_BYTES  # 4 ms at 500 Mbit/s
_CONGESTION = "cubic"
_ALLOWED = Path("/proc/sys/net/ipv4/tcp_allowed_congestion_control")
_INGRESS_QUEUE_BYTES = 1024 * 1024 + _BURST_BYTES


def is_possible() -> bool:
    """Tell whether this process may make network namespaces."""
    if os.geteuid() != 0:
        return False
    name = f"hop{os.getpid()}-probe"
    try:
        _run("ip", "netns", "add", name)
        _run("ip", "netns", "del", name)
    except OSError:  # no right to, or no iproute2
        return False
    return True


class Cluster:
    """Namespaces, their links, and a node and a store in each. A context manager."""

    def __init__(self, count: int, *, rate_mbit: int, arena_bytes: int) -> None:
        self.rate_mbit = rate_mbit
        self.stores: list[Store] = []
        self._count = count
        self._arena_bytes = arena_bytes
        self._prefix = f"hop{os.getpid()}-"
        self._namespaces: list[str] = []
        self._nodes: list[NodeProcess] = []

    def __enter__(self) -> Self:
        try:
            self._connect()
            for rank in range(self._count):
                self._start_node(rank)
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
        for store in self.stores:
            store.close()
        for node in self._nodes:
            node.stop()
        for name in self._namespaces:
            _run("ip", "netns", "del", name)

    def bound_s(self, size_bytes: int) -> float:
        """Return the time that `size_bytes` take over one link at its rate."""
        return size_bytes * 8 / (self.rate_mbit * 1e6 * PAYLOAD_SHARE)

    def _connect(self) -> None:
        allowed = _ALLOWED.read_text().split()
        if _CONGESTION not in allowed:
            _ALLOWED.write_text(" ".join([*allowed, _CONGESTION]))
        switch = self._add_namespace("switch")
        _run("ip", "-n", switch, "link", "add", "bridge", "type", "bridge", "forward_delay", "0")
        _run("ip", "-n", switch, "link", "set", "bridge", "up")
        for rank in range(self._count):
            node = self._add_namespace(str(rank))
            congestion = f"net.ipv4.tcp_congestion_control={_CONGESTION}"
            _run("ip", "netns", "exec", node, "sysctl", "-qw", congestion)
            port = f"port{rank}"
            _run(
                *("ip", "link", "add", port, "netns", switch),
                *("type", "veth", "peer", "name", "rail", "netns", node),
            )
            _run("ip", "-n", switch, "link", "set", port, "master", "bridge", "up")
            _run("ip", "-n", node, "addr", "add", f"{_address(rank)}/24", "dev", "rail")
            _run("ip", "-n", node, "link", "set", "rail", "up")
            self._shape(node, "rail", _EGRESS_QUEUE_BYTES)
            self._shape(switch, port, _INGRESS_QUEUE_BYTES)

    def _add_namespace(self, name: str) -> str:
        _run("ip", "netns", "add", self._prefix + name)
        self._namespaces.append(self._prefix + name)
        _run("ip", "-n", self._prefix + name, "link", "set", "lo", "up")
        return self._prefix + name

    def _shape(self, namespace: str, device: str, queue_bytes: int) -> None:
        _run("ip", "-n", namespace, "link", "set", device, "gso_max_size", str(_GSO_BYTES))
        _run(
            *("tc", "-n", namespace, "qdisc", "add", "dev", device, "root", "tbf"),
            *("rate", f"{self.rate_mbit}mbit"),
            *("burst", str(_BURST_BYTES), "limit", str(queue_bytes)),
        )

    def _start_node(self, rank: int) -> None:
        node = NodeProcess.start(
            listen=[f"{_address(rank)}:0"],
            beside=self._nodes[0] if self._nodes else None,
            arena_bytes=self._arena_bytes,
            before=["ip", "netns", "exec", f"{self._prefix}{rank}"],
        )
        self._nodes.append(node)
        self.stores.append(Store.attach(node.socket))


def _address(rank: int) -> str:
    return f"10.77.0.{rank + 1}"


def _run(*command: str) -> None:
    done: subprocess.CompletedProcess[str] = subprocess.run(
        _with_tools(command), capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise OSError(f"{' '.join(command)}: {done.stderr.strip()}")


def _with_tools(command: Sequence[str]) -> list[str]:
    """Return `command` so that it is found where a user's PATH lacks the administrator's tools."""
    return ["env", f"PATH={os.environ.get('PATH', '')}:/usr/sbin:/sbin", *command]
