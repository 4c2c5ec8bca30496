"""The emulated network does what faults are made of: a cable that is pulled and put back."""

from __future__ import annotations

import subprocess
import sys

import cluster
import pytest

# Nobody listens there: a refusal is an answer of the other node's kernel.
KNOCK = "import socket, sys; socket.create_connection((sys.argv[1], 9), timeout=0.5)"


def reaches(network: cluster.Network, rank: int, other: int) -> bool:
    command = [*network.within(rank), sys.executable, "-c", KNOCK, network.address(other)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return "ConnectionRefusedError" in done.stderr


@pytest.mark.skipif(
    cluster.why_impossible() is not None, reason="needs root for network namespaces"
)
def test_a_cut_link_carries_nothing_until_it_is_healed() -> None:
    with cluster.Network(3, rate_mbit=100) as network:
        assert reaches(network, 0, 1)
        network.cut(1)
        assert not reaches(network, 0, 1)
        assert not reaches(network, 1, 0)
        assert reaches(network, 0, 2)
        network.heal(1)
        while not reaches(network, 0, 1):  # the kernel looks for carriers in its own time
            pass
