"""Where a Ray cluster's nodes are: `python -m hoplite_ray.plugin.node.discovery [RAY_ADDRESS]`.

The program prints a line when Ray is imported, then one line of JSON, and ends. The `hoplite-ray`
command runs it as a process of its own and ends that at its limit, because Ray's client of a
cluster that does not answer waits for a minute and then aborts.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from pathlib import Path
from typing import Any

import ray

from hoplite_ray.errors import ControlError
from hoplite_ray.plugin.node.start import node_number
from hoplite_ray.plugin.seams import core as seams
from hoplite_ray.plugin.seams import table

_CONNECT_S = 2.0


def discover(asked: str | None) -> dict[str, Any]:
    """Return Ray's knowledge of the nodes of the cluster at `asked`, or of the cluster here.

    Returns: a dict with these keys:
             address, ray, memory_threshold;
             secret and view (hexadecimal), None if no job has used hoplite_ray yet;
             options, and first: the job that has fixed them, its user, each option's origin;
             directories of this user -> True if the raylet lives;
             raylets: each Ray node's id, the id of its node, its address, its host, if it lives.
    Raises:  ConnectionError if there is no cluster there; ControlError if it does not answer.
    """
    address = seams.cluster_address(asked)
    machine, _, port = address.rpartition(":")
    try:
        socket.create_connection((machine.strip("[]"), int(port)), _CONNECT_S).close()
    except (OSError, ValueError) as error:
        raise ConnectionError(f"no Ray cluster answers at {address} ({error})") from None
    values = table.KeyValues(address)
    secret = values.read("secret")
    _, view = table.RayViewStore(address).read()
    stored = values.read("options")
    fixed: dict[str, Any] = json.loads(stored) if stored else {}
    raylets = seams.raylets(address)
    alive = {each.node_id[-16:] for each in raylets if each.is_alive}
    folders = {
        folder
        for each in raylets
        for folder in Path(each.directory).glob(f"hoplite-{os.getuid()}-*")
    }
    return {
        "address": address,
        "ray": ray.__version__,
        "memory_threshold": seams.memory_threshold(),
        "secret": secret and secret.decode(),
        "view": view.hex() or None,
        "options": fixed.get("options", {}),
        "first": {key: fixed.get(key) for key in ("job", "user", "origins")},
        "directories": {str(f): f.name.rpartition("-")[2] in alive for f in sorted(folders)},
        "raylets": [
            {
                "ray_node_id": each.node_id,
                "node_id": node_number(each.node_id),
                "address": each.address,
                "hostname": each.hostname,
                "alive": each.is_alive,
            }
            for each in raylets
        ],
    }


if __name__ == "__main__":
    sys.stdout.write("Ray is imported\n")
    sys.stdout.flush()
    try:
        line = json.dumps(discover(sys.argv[1] if sys.argv[1:] else None))
    except (ConnectionError, ValueError, ControlError) as problem:
        sys.exit(f"{problem}")
    sys.stdout.write(f"{line}\n")
