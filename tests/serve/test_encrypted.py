"""With data_tls an application's stages reach each other by TLS, as Ray's processes do."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import ray.util

from tests.certificates import Authority

PROGRAM = Path(__file__).with_name("over_tls.py")
ROOT = Path(__file__).parents[2]


def test_a_query_passes_by_tls_and_a_replica_of_another_authority_is_named(tmp_path: Path) -> None:
    here = ray.util.get_node_ip_address()
    ours = Authority(tmp_path / "ours").certify("node", "127.0.0.1", here)
    theirs = tmp_path / "theirs.json"
    theirs.write_text(json.dumps(Authority(tmp_path / "theirs").certify("node", here)))
    more = {"HOPLITE_RAY_WORLD_TRANSPORT": "tcp", "PYTHONPATH": str(ROOT)}
    said, told = tmp_path / "said", tmp_path / "told"
    with said.open("w") as output:  # a pipe would stay open as long as Ray's last process
        done = subprocess.run(
            [sys.executable, str(PROGRAM), str(theirs), str(told)],
            env=os.environ | ours | more,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    assert done.returncode == 0, said.read_text()
    [line] = told.read_text().splitlines()
    assert "of stage last now: RefusedError: its certificate is refused" in line
    assert "our RAY_TLS_CA_CERT must have signed it" in line
