"""An emulated cluster: one network namespace per node, each with a shaped full-duplex link.

Egress is shaped at the node's own end of its link, ingress at the switch's end; the switch is a
bridge in a namespace of its own, so nothing touches the machine's network. In front of a link is
the queue of any Linux device, 1,000 packets; a port of the switch has a MiB. Congestion control is
pinned to cubic, because results under different ones can't be compared; where the machine's default
is another, cubic is put on the list of those that a namespace may choose. Needs root.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from hoplite_ray.launch import NodeProcess

RAIL = "rail"  # the device in every node's namespace
_GSO_BYTES = 32768  # largest packet handed to the shaper: what crosses a hop at once
_BURST_BYTES = _GSO_BYTES * 3 // 2  # passes unshaped after idle time: as little as tbf can do with
# tbf's own queue would be of a few ms, and TCP takes 200 ms and more to send again what its own
# host has dropped of an idle connection (docs/gotchas.md): no host has so short a queue.
_EGRESS_PACKETS_MAX = 1000
_PORT_BYTES_MAX = 1024 * 1024 + _BURST_BYTES
_BEFORE_LOCAL = 10  # priority of a rule that drops what comes in before it is delivered
_CONGESTION = "cubic"
_ALLOWED = Path("/proc/sys/net/ipv4/tcp_allowed_congestion_control")
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


class Network:
    """Namespaces and their links, all of one rate until told otherwise. A context manager.

    Rates are changed, and links cut and healed, while traffic runs.
    """

    def __init__(self, count: int, *, rate_mbit: float) -> None:
        self.count = count
        self.rate_mbit = rate_mbit
        self._prefix = f"hop{os.getpid()}-"
        self._namespaces: list[str] = []

    def __enter__(self) -> Self:
        try:
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
        for name in self._namespaces:
            _run("ip", "netns", "del", name)
        self._namespaces.clear()

    def address(self, rank: int) -> str:
        """The node's address, which the others reach over the links."""
        return f"10.77.0.{rank + 1}"

    def within(self, rank: int) -> list[str]:
        """The words before a command that has to run at the node."""
        return [_tool("ip"), "netns", "exec", f"{self._prefix}{rank}"]

    def set_rate(self, rank: int, rate_mbit: float) -> None:
        """Shape the node's link, in both directions."""
        node = ("tc", "-n", f"{self._prefix}{rank}", "qdisc", "replace", "dev", RAIL)
        port = ("tc", "-n", f"{self._prefix}switch", "qdisc", "replace", "dev", f"port{rank}")
        rate = ("rate", f"{round(rate_mbit * 1000)}kbit", "burst", str(_BURST_BYTES))
        for device in (node, port):
            _run(*device, *("root", "handle", "1:", "tbf", *rate, "limit", str(_PORT_BYTES_MAX)))
        _run(*node, *("parent", "1:1", "handle", "2:", "pfifo", "limit", str(_EGRESS_PACKETS_MAX)))

    def cut(self, rank: int) -> None:
        """Pull the node's cable out of the switch: the kernel at either end sees no carrier."""
        _run("ip", "-n", f"{self._prefix}switch", "link", "set", f"port{rank}", "down")

    def heal(self, rank: int) -> None:
        """Put the cable back."""
        _run("ip", "-n", f"{self._prefix}switch", "link", "set", f"port{rank}", "up")

    def silence(self, source: int, target: int) -> None:
        """Lose what `source` sends to `target`, without a word; the other way stays whole."""
        self._rule("add", source, target)

    def unsilence(self, source: int, target: int) -> None:
        """Let it through again."""
        self._rule("del", source, target)

    def _rule(self, verb: str, source: int, target: int) -> None:
        rule = ("from", self.address(source), "blackhole", "pref", str(_BEFORE_LOCAL))
        _run("ip", "-n", f"{self._prefix}{target}", "rule", verb, *rule)

    def _connect(self) -> None:
        allowed = _ALLOWED.read_text().split()
        if _CONGESTION not in allowed:
            _ALLOWED.write_text(" ".join([*allowed, _CONGESTION]))
        switch = self._add_namespace("switch")
        _run("ip", "-n", switch, "link", "add", "bridge", "type", "bridge", "forward_delay", "0")
        _run("ip", "-n", switch, "link", "set", "bridge", "up")
        for rank in range(self.count):
            node, port = self._add_namespace(str(rank)), f"port{rank}"
            _run(
                *self.within(rank),
                "sysctl",
                "-qw",
                f"net.ipv4.tcp_congestion_control={_CONGESTION}",
            )
            _run(
                *("ip", "link", "add", port, "netns", switch),
                *("type", "veth", "peer", "name", RAIL, "netns", node),
            )
            for namespace, device in ((switch, port), (node, RAIL)):
                gso = ("gso_max_size", str(_GSO_BYTES))
                _run("ip", "-n", namespace, "link", "set", device, *gso)
            _run("ip", "-n", switch, "link", "set", port, "master", "bridge", "up")
            _run("ip", "-n", node, "addr", "add", f"{self.address(rank)}/24", "dev", RAIL)
            _run("ip", "-n", node, "link", "set", RAIL, "up")
            # The rule that delivers comes first; so that others may come before it, it moves back.
            delivers = ("lookup", "local", "pref", str(_BEFORE_LOCAL + 1))
            _run("ip", "-n", node, "rule", "add", *delivers)
            _run("ip", "-n", node, "rule", "del", "pref", "0")
            self.set_rate(rank, self.rate_mbit)

    def _add_namespace(self, name: str) -> str:
        _run("ip", "netns", "add", self._prefix + name)
        self._namespaces.append(self._prefix + name)
        _run("ip", "-n", self._prefix + name, "link", "set", "lo", "up")
        return self._prefix + name


class Cluster:
    """A network with a node at the end of each link. A context manager."""

    def __init__(
        self,
        count: int,
        *,
        rate_mbit: float,
        arena_bytes: int,
        options: Mapping[str, int] | None = None,
    ) -> None:
        self.network = Network(count, rate_mbit=rate_mbit)
        self.nodes: list[NodeProcess] = []
        self._arena_bytes = arena_bytes
        self._options = options
        self._folder = Path(tempfile.mkdtemp(prefix="hoplite-"))

    def __enter__(self) -> Self:
        try:
            self.network.__enter__()
            for rank in range(self.network.count):
                self.nodes.append(self._start(rank))
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
        for node in self.nodes:
            node.stop()
        self.network.__exit__(kind, error, trace)
        shutil.rmtree(self._folder)

    def kill(self, rank: int) -> None:
        """End a node as `kill -9` does; its link stays."""
        self.nodes[rank].kill()

    def revive(self, rank: int) -> None:
        """Start a killed node's next life, beside those that are there."""
        self.nodes[rank] = self._start(rank)

    def _start(self, rank: int) -> NodeProcess:
        return NodeProcess.start(
            directory=self._folder / str(rank),
            listen=[f"{self.network.address(rank)}:0"],
            beside=next((node for node in self.nodes if node.process.poll() is None), None),
            arena_bytes=self._arena_bytes,
            options=self._options,
            before=self.network.within(rank),
        )


def _run(*command: str) -> None:
    done = subprocess.run(
        [_tool(command[0]), *command[1:]],
        env=os.environ | {"PATH": _TOOLS},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise OSError(f"{' '.join(command)}: {done.stderr.strip()}")


def _tool(name: str) -> str:
    found = shutil.which(name, path=_TOOLS)
    if found is None:
        raise FileNotFoundError(f"{name} is not installed; it is in the package iproute2")
    return found
