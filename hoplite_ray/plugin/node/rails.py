"""The addresses of its machine at which a node listens under Ray: each is one rail.

By default there is one rail: Ray's own address of the node, which all other nodes reach already.
The option `rails` names networks, because a network means the same on every machine and an address
does not.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hoplite_ray.config import networks_of
from hoplite_ray.errors import InvalidArgumentError


@dataclass(frozen=True, slots=True)
class Rail:
    """One address, and in words the reason for it."""

    address: str
    why: str

    @property
    def listen(self) -> str:
        """The address for the node's command line, with any port."""
        return with_port(self.address, 0)


def with_port(address: str, port: int) -> str:
    """Return ADDRESS:PORT, or [ADDRESS]:PORT for IPv6."""
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def choose(
    rails: str | None, rays_address: str, interfaces: Mapping[str, Sequence[str]]
) -> list[Rail]:
    """Return the rails of this machine, whose `interfaces` have addresses by name.

    Raises: InvalidArgumentError if no interface has an address in one of the networks; it names
            all of them.
    """
    if rails is None:
        name = next((n for n, has in interfaces.items() if rays_address in has), "no interface")
        why = "Ray's own address of the node; the option rails takes others"
        return [Rail(rays_address, f"{name}: {why}")]
    return [_find_rail(network, interfaces) for network in networks_of(rails)]


def _find_rail(network: str, interfaces: Mapping[str, Sequence[str]]) -> Rail:
    within = ipaddress.ip_network(network)
    for name, addresses in interfaces.items():
        for address in addresses:
            if ipaddress.ip_address(address) in within:
                return Rail(address, f"{name}: in {network}, of the option rails")
    present = [f"{name} {address}" for name, has in interfaces.items() for address in has]
    raise InvalidArgumentError(
        f"no interface of this machine is in {network}, of the option rails; it has "
        f"{', '.join(present)}: name networks that every node of the cluster is in"
    )
