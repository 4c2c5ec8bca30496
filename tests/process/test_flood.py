"""Ten thousand silent connections of strangers at a port: docs/internals/attacks.md."""

from __future__ import annotations

import os
import resource
import select
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from hoplite_ray.control.service.control_service import _CONNECTIONS_MAX
from hoplite_ray.launch import NodeProcess
from tests.process.nodes import MIB, WAIT_S, MakeNodes, Nodes, numbers
from tests.process.wire import is_closed

CONNECTIONS, AT_A_TIME = 10_000, 1000
TAKEN_MAX = {"data": 256, "control": _CONNECTIONS_MAX}
SPARE = 64  # descriptors of whatever else the node does meanwhile
MEMORY_MAX = 128 * MIB


@pytest.fixture
def many_descriptors() -> Iterator[None]:
    """Let this process, and not the nodes, have as many sockets."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = max(soft, CONNECTIONS + 1000)
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, max(hard, wanted)))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def descriptors(node: NodeProcess) -> int:
    return len(os.listdir(f"/proc/{node.process.pid}/fd"))


def memory(node: NodeProcess) -> int:
    """Bytes of it that are no arena's."""
    status = Path(f"/proc/{node.process.pid}/status").read_text()
    return int(status.partition("RssAnon:")[2].split()[0]) * 1024


def serves(nodes: Nodes) -> None:
    """Objects go both ways, and calls are answered."""
    for rank in (0, 1):
        array = numbers(MIB, seed=rank)
        object_id = nodes.put(rank, array)
        np.testing.assert_array_equal(nodes.get(1 - rank, object_id), array)
        nodes[rank].delete(object_id, timeout_s=WAIT_S)


@pytest.mark.parametrize("port", TAKEN_MAX)
def test_ten_thousand_silent_connections_leave_room_for_work(
    cluster: MakeNodes, many_descriptors: None, port: str
) -> None:
    nodes = cluster(2)
    node = nodes.processes[0]
    serves(nodes)
    had_descriptors, had_memory = descriptors(node), memory(node)
    address = node.control if port == "control" else node.rails[0]
    host, number = address.rsplit(":", 1)
    with ExitStack() as flood:
        silent: list[socket.socket] = []
        while len(silent) < CONNECTIONS:
            for _ in range(AT_A_TIME):
                one = socket.create_connection((host, int(number)), WAIT_S)
                silent.append(flood.enter_context(one))
            serves(nodes)
            assert descriptors(node) <= had_descriptors + TAKEN_MAX[port] + SPARE
            assert memory(node) <= had_memory + MEMORY_MAX
        for each in silent:
            while not is_closed(each):
                continue  # its half of the greeting
    serves(nodes)
    nodes.stats(0)


class Flood:
    """Silent connections from one address, which reconnect as soon as the node closes them."""

    def __init__(self, port: str, count: int) -> None:
        host, number = port.rsplit(":", 1)
        self._to = (host, int(number))
        self.come = 0
        self._is_over = threading.Event()
        self._silent = [self._knock() for _ in range(count)]
        self._thread = threading.Thread(target=self._stay)

    def __enter__(self) -> Flood:
        self._thread.start()
        return self

    def __exit__(self, *how: object) -> None:
        self._is_over.set()
        self._thread.join()
        for each in self._silent:
            each.close()

    def _knock(self) -> socket.socket:
        self.come += 1
        return socket.create_connection(self._to, WAIT_S)

    def _stay(self) -> None:
        looks = select.poll()
        at = {each.fileno(): each for each in self._silent}
        for descriptor in at:
            looks.register(descriptor, select.POLLIN)
        while not self._is_over.is_set():
            for descriptor, _ in looks.poll(100):
                looks.unregister(descriptor)
                at.pop(descriptor).close()
                again = self._knock()
                at[again.fileno()] = again
                looks.register(again, select.POLLIN)
        self._silent = list(at.values())


def test_a_node_that_joins_finds_a_place_among_the_strangers_of_one_address(
    cluster: MakeNodes,
) -> None:
    nodes = cluster(3)
    flooded = max(range(3), key=lambda rank: nodes.processes[rank].node_id)
    array = numbers(MIB)
    object_id = nodes.put(flooded, array)
    with Flood(nodes.processes[flooded].rails[0], TAKEN_MAX["data"] + 10) as strangers:
        joined = nodes.add(listen=["127.0.0.9:0"])
        while nodes.processes[-1].node_id > nodes.processes[flooded].node_id:  # it would be dialled
            joined = nodes.add(listen=["127.0.0.9:0"])
        np.testing.assert_array_equal(joined.get(object_id, timeout_s=WAIT_S), array)
        assert strangers.come > TAKEN_MAX["data"]
    assert nodes.counters(flooded)["link_connections_refused"] > 0
