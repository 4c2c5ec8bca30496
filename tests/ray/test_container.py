"""Ray in a container of its own kind: no IPv4 towards others, two networks, a /dev/shm of 64 MB."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from typing import Any

import pytest

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root for network namespaces")

INSIDE = """
ip link set lo up
ip link add left type veth peer name right
ip link set left up
ip link set right up
ip addr add fd00::7/64 dev left nodad
ip addr add 10.1.0.7/16 dev left
ip addr add 10.2.0.7/16 dev right
mount -t tmpfs -o size=64m tmpfs /dev/shm
exec "$0" "$@"
"""

PROGRAM = """
import json, subprocess, sys
from pathlib import Path
import numpy as np, ray, hoplite_ray as hop

@ray.remote(num_cpus=0)
def double(array):
    return hop.array(2 * np.asarray(array))

options, directory = json.loads(sys.argv[1]), sys.argv[2]
ray.init(
    "local", num_cpus=1, include_dashboard=False, object_store_memory=100 << 20,
    _node_ip_address="fd00::7", _temp_dir=directory, runtime_env={"hoplite": options},
)
try:
    total = hop.get(hop.reduce([double.remote(hop.put(np.ones(3 << 20))) for _ in range(2)])).sum()
    address = ray.get_runtime_context().gcs_address
    command = [sys.executable, "-m", "hoplite_ray.cli", "status", "--address", address]
    [log] = Path(directory).glob("session_2*/hoplite-*/node.log")
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    doctor = subprocess.run([*command[:3], "doctor", *command[4:]], capture_output=True, text=True)
    print(json.dumps([total, text, doctor.stdout, log.read_text()]))
except ValueError as error:
    print(json.dumps(str(error)))
"""


def run(**options: object) -> Any:
    """The output of the program in the container."""
    with tempfile.TemporaryDirectory(prefix="ray-") as directory:  # short, for Ray's sockets
        arguments = [sys.executable, "-c", PROGRAM, json.dumps(options), directory]
        done = subprocess.run(
            ["unshare", "-n", "-m", "sh", "-e", "-c", INSIDE, *arguments],
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@needs_root
@pytest.mark.slow  # what is taken without the option: tests/unit/test_rails.py
@pytest.mark.timeout(90)  # a Ray of its own starts
def test_rays_own_address_is_taken_also_one_of_ipv6() -> None:
    total, status, doctor, log = run()
    assert total == 4 * (3 << 20)
    assert " [fd00::7]:" in status
    assert "ok    rails: 1 of each node, Ray's own address of the node\n" in doctor
    assert "rail at fd00::7 of left: Ray's own address of the node; the option rails takes" in log


@needs_root
@pytest.mark.timeout(90)  # a Ray of its own starts
def test_the_networks_of_the_option_rails_are_taken_instead() -> None:
    total, status, doctor, log = run(rails="10.2.0.0/16, 10.1.0.0/16")
    assert total == 4 * (3 << 20)
    assert " [fd00::7]:" in status  # control calls go where Ray's own go
    assert "rails: 2 of each node, in 10.2.0.0/16, 10.1.0.0/16, of the option rails\n" in doctor
    assert "rail at 10.2.0.7 of right: in 10.2.0.0/16, of the option rails\n" in log
    assert '"rails": ["10.2.0.7:' in log
