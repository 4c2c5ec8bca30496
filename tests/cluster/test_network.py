"""The emulated network does what faults are made of, and says what it can't do."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import cluster
import network
import numpy as np
import pytest
from carried import OverloadError, check_carried
from meters import Links

from hoplite_ray.store import Store, new_id

# Nobody listens there: a refusal is an answer of the other node's kernel.
KNOCK = "import socket, sys; socket.create_connection((sys.argv[1], 9), timeout=0.5)"

needs_root = pytest.mark.skipif(
    cluster.why_impossible() is not None, reason="needs root for network namespaces"
)


def reaches(network: cluster.Network, rank: int, other: int, rail: int = 0) -> bool:
    command = [*network.within(rank), sys.executable, "-c", KNOCK, network.address(other, rail)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return "ConnectionRefusedError" in done.stderr


def comes_to_reach(network: cluster.Network, rank: int, other: int, rail: int = 0) -> None:
    """Wait for it: the kernel looks for carriers in its own time; the test's limit ends it else."""
    while not reaches(network, rank, other, rail):
        pass


@needs_root
def test_a_cut_link_carries_nothing_until_it_is_healed() -> None:
    with cluster.Network(3, rate_mbit=100) as network:
        comes_to_reach(network, 0, 1)
        comes_to_reach(network, 0, 2)
        network.cut(1)
        assert not reaches(network, 0, 1)
        assert not reaches(network, 1, 0)
        assert reaches(network, 0, 2)
        network.heal(1)
        comes_to_reach(network, 0, 1)


@needs_root
def test_each_rail_has_links_of_its_own() -> None:
    with cluster.Network(2, rate_mbit=100, second_rail_mbit=[50, 25]) as network:
        assert str(network) == "2 x 100 and 25 or 50 Mbit/s"
        for rail in (0, 1):
            comes_to_reach(network, 0, 1, rail)
        network.cut(1, rail=0)
        assert not reaches(network, 0, 1, rail=0)
        comes_to_reach(network, 0, 1, rail=1)


@needs_root
def test_nodes_with_two_rails_use_both() -> None:
    array = np.arange(4 << 20, dtype=np.uint8)
    with cluster.Cluster(2, rate_mbit=200, second_rail_mbit=200, arena_bytes=32 << 20) as made:
        with Store.attach(made.nodes[0].socket) as a, Store.attach(made.nodes[1].socket) as b:
            object_id = new_id()
            a.put(object_id, array)
            np.testing.assert_array_equal(b.get(object_id), array)
        links = Links(made.network)
        for rail in made.network.rails:
            assert links.sent_bytes(0, rail) > array.nbytes / 4
        links.close()


@needs_root
def test_a_get_goes_on_over_the_other_rail_when_one_is_cut() -> None:
    array = np.arange(24 << 20, dtype=np.uint8)
    with cluster.Cluster(2, rate_mbit=100, second_rail_mbit=100, arena_bytes=64 << 20) as made:
        links = Links(made.network)
        with Store.attach(made.nodes[0].socket) as a, Store.attach(made.nodes[1].socket) as b:
            object_id = new_id()
            a.put(object_id, array)
            get = b.begin_get(object_id)
            while links.sent_bytes(0, 1) < array.nbytes // 8:
                pass
            made.network.cut(1, rail=1)
            np.testing.assert_array_equal(get.result(timeout_s=60).value, array)
        links.close()


@needs_root
def test_a_network_that_the_cores_cannot_carry_is_refused() -> None:
    with cluster.Network(2, rate_mbit=1_000_000) as network:
        with pytest.raises(OverloadError, match="its cores would be measured"):
            check_carried(network)


@needs_root
def test_nothing_that_runs_at_a_node_outlives_the_network() -> None:
    with cluster.Network(1, rate_mbit=100) as network:
        command = [*network.within(0), "sleep", "1000"]
        process = subprocess.Popen(command, start_new_session=True)
        while network.processes(0) != [process.pid]:
            pass
    assert process.wait() == -9
    assert not list(Path("/run/netns").glob(f"hop{os.getpid()}-*"))


# Lays a network, starts a process in it, says so, and waits to be killed.
OWNER = """
import subprocess, sys, time
from network import Network
with Network(1, rate_mbit=100) as network:
    inside = subprocess.Popen([*network.within(0), "sleep", "1000"], start_new_session=True)
    while network.processes(0) != [inside.pid]:
        pass
    print(inside.pid, network.folder, flush=True)
    time.sleep(1000)
"""


@needs_root
def test_the_next_network_removes_what_a_killed_one_has_left_and_no_live_one() -> None:
    with cluster.Network(1, rate_mbit=100) as living:
        paths = {"PYTHONPATH": os.pathsep.join(sys.path)}
        command = [sys.executable, "-c", OWNER]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, env=os.environ | paths
        ) as owner:
            assert owner.stdout is not None
            inside, folder = owner.stdout.readline().split()
            owner.kill()
        assert Path(folder).exists()
        assert Path(f"/proc/{inside}").exists()
        with cluster.Network(1, rate_mbit=100):
            assert not Path(folder).exists()
            assert not list(Path("/run/netns").glob(f"hop{owner.pid}-*"))
            assert not list(Path("/run/hoplite-networks").glob(f"hop{owner.pid}-*"))
            assert network.has_ended(int(inside))
            assert living.processes(0) == []  # asks its namespace, which is still there
        assert living.folder.exists()


def test_rates_are_one_for_all_or_one_for_each() -> None:
    assert cluster.Network(3, rate_mbit=[1, 2, 3]).rates_mbit == [[1, 2, 3]]
    with pytest.raises(ValueError, match="2 rates for 3 nodes"):
        cluster.Network(3, rate_mbit=[1, 2])
