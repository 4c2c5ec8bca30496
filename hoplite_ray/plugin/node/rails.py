"""At which addresses of its machine a node listens under Ray, and why: one rail each.

By default there is one: Ray's own address of the node, which all others reach already. The option
`rails` names networks instead, which mean the same on every machine, as its addresses don't.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hoplite_ray.config import networks_of


@dataclass(frozen=True, slots=True)
class Rail:
    """One address, and in words why it was taken."""

    address: str
    why: str

    @property
    def listen(self) -> str:
        """As the node's command line takes it, with any port."""
        return with_port(self.address, 0)


def with_port(address: str, port: int) -> str:
    """ADDRESS:PORT; [ADDRESS]:PORT if it is one of IPv6."""
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def chosen(
    rails: str | None, rays_address: str, interfaces: Mapping[str, Sequence[str]]
) -> list[Rail]:
    """The rails of this machine, whose `interfaces` have addresses by name.

    Raises: ValueError if none of them has an address in one of the networks, naming what they have.
    """
    if rails is None:
        name = next((n for n, has in interfaces.items() if rays_address in has), "no interface")
        why = "Ray's own address of the node; the option rails takes others"
        return [Rail(rays_address, f"{name}: {why}")]
    return [_within(network, interfaces) for network in networks_of(rails)]


def _within(network: str, interfaces: Mapping[str, Sequence[str]]) -> Rail:
    within = ipaddress.ip_network(network)
    for name, addresses in interfaces.items():
        for address in addresses:
            if ipaddress.ip_address(address) in within:
                return Rail(address, f"{name}: in {network}, of the option rails")
    present = [f"{name} {address}" for name, has in interfaces.items() for address in has]
    raise ValueError(
        f"no interface of this machine is in {network}, of the option rails; it has "
        f"{', '.join(present)}: name networks that every node of the cluster is in"
    )
