"""Ray's TLS settings reach our nodes by themselves: each node of such a cluster has them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import ray.util

from hoplite_ray.base.locks import is_held
from tests.certificates import Authority, serial_of, serial_shown
from tests.process.command import hoplite_ray
from tests.ray.raycluster import eventually

PROGRAM = Path(__file__).with_name("over_tls.py")


@pytest.mark.timeout(90)  # a Ray of its own starts and ends
def test_a_cluster_with_tls_has_nodes_with_tls_and_the_next_life_has_renewed_files(
    tmp_path: Path,
) -> None:
    here = ray.util.get_node_ip_address()
    authority = Authority(tmp_path / "ours")
    settings = authority.certify("node", "127.0.0.1", here)
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
        first = json.loads((Path(directory) / "node.json").read_text())
        renewed = serial_of(authority.certify("node", "127.0.0.1", here))
        assert serial_shown(first["control"], settings) != renewed
        os.kill(first["pid"], signal.SIGTERM)
        assert eventually(lambda: not is_held(Path(directory, "node.lock")), within_s=30)
        program.stdin.write("once more\n")
        program.stdin.flush()
        assert program.stdout.readline().strip() == directory
        second = json.loads((Path(directory) / "node.json").read_text())
        assert second["incarnation"] == first["incarnation"] + 1
        assert serial_shown(second["control"], settings) == renewed
        program.stdin.close()
        assert program.wait() == 0
    assert with_tls.status == 0, with_tls.out
    assert first["options"]["data_tls"] == "on"
    assert without.status == 1
    assert "set it here as well" in without.out
