"""A Ray node with Ray's TLS settings, by test_tls.py: the program is given them, and starts it."""

from __future__ import annotations

import sys

import numpy as np
import ray

import hoplite_ray as hop
from hoplite_ray.plugin.process.attachment import attachment


@ray.remote(num_cpus=0)
def total(array: hop.Array) -> float:
    return float(np.asarray(array).sum())


ray.init(
    address="local",
    num_cpus=1,
    object_store_memory=100 << 20,
    include_dashboard=False,
    log_to_driver=False,
    runtime_env={"hoplite": {"arena_bytes": 32 << 20, "data_tls": "on"}},
)
while True:  # a line of standard input asks for one more use of the store; its end ends the program
    assert ray.get(total.remote(hop.array(np.ones(1 << 20)))) == 1 << 20
    sys.stdout.write(f"{attachment().place.directory}\n")
    sys.stdout.flush()
    if not sys.stdin.readline():
        break
