"""Whether what a process sends must be encrypted, which worlds are not able to do.

A world's edge between machines is a plain TCP connection, and one in shared memory needs nothing.
"""

from __future__ import annotations

from hoplite_ray.config import Config
from hoplite_ray.worlds.rendezvous import ray_runs

REMEDY = "encrypt below the nodes, by WireGuard or IPsec, and leave data_tls off"


def needs_encryption() -> bool:
    """Tell whether nodes encrypt what they send here: by this environment, or by Ray's cluster.

    Raises:  ControlError if Ray's GCS does not answer.
    """
    if Config.from_environment().data_tls == "on":
        return True
    if not ray_runs():
        return False
    from hoplite_ray.plugin import flag, seams, start

    return not seams.is_client() and start.has_data_tls(flag.asked())
