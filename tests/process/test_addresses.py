"""Nodes at addresses of IPv6, and beside a /dev/shm that holds nothing."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

from hoplite_ray.store import new_id
from tests.process.command import at, hoplite_ray
from tests.process.conftest import MakeNodes
from tests.process.nodes import MIB, numbers


def test_nodes_meet_and_transfer_over_ipv6_and_are_shown_in_brackets(cluster: MakeNodes) -> None:
    nodes = cluster(2, listen=["[::1]:0"])
    array = numbers(4 * MIB)
    object_id = nodes.put(0, array)
    np.testing.assert_array_equal(nodes.get(1, object_id), array)
    target = new_id()
    nodes[1].reduce(target, [object_id, nodes.put(1, array)], op="max")
    np.testing.assert_array_equal(nodes.get(0, target), array)
    shown = hoplite_ray("status", *at(nodes.processes[0])).out
    for node in nodes.processes:
        assert node.control.startswith("[::1]:")
        assert f" {node.control} " in shown
        assert '"rails": ["[::1]:' in (node.directory / "node.log").read_text()


SMALL_SHM = """
import numpy as np
from hoplite_ray.store import Store, new_id

size = {"arena_bytes": 64 << 20}
with Store.start(**size) as first, Store.start(join=first, **size) as second:
    object_id = new_id()
    first.put(object_id, np.full(32 << 20, 7, np.uint8))
    print((second.get(object_id) == 7).all())
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root for network namespaces")
def test_an_arena_needs_nothing_of_dev_shm() -> None:
    mounted = 'mount -t tmpfs -o size=64k tmpfs /dev/shm && exec "$0" -c "$1"'
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", mounted, sys.executable, SMALL_SHM],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "True\n", done.stderr
