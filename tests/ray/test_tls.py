"""Ray's TLS settings reach our nodes by themselves: each node of such a cluster has them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import ray.util

from tests.certificates import Authority
from tests.process.command import hoplite_ray

PROGRAM = Path(__file__).with_name("over_tls.py")


@pytest.mark.timeout(90)  # a Ray of its own starts and ends
def test_a_cluster_with_tls_has_nodes_with_tls(tmp_path: Path) -> None:
    here = ray.util.get_node_ip_address()
    settings = Authority(tmp_path / "ours").certify("node", "127.0.0.1", here)
    with subprocess.Popen(
        [sys.executable, str(PROGRAM)],
        env=os.environ | settings,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as program:
        assert program.stdin is not None and program.stdout is not None
        directory = program.stdout.readline().strip()
        with_tls = hoplite_ray("status", "--directory", directory, **settings)
        without = hoplite_ray("status", "--directory", directory)
        options = json.loads((Path(directory) / "node.json").read_text())["options"]
        program.stdin.close()
        assert program.wait() == 0
    assert with_tls.status == 0, with_tls.out
    assert options["data_tls"] == "on"
    assert without.status == 1
    assert "set it here as well" in without.out
