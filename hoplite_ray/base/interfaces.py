"""The addresses of this machine's network interfaces."""

from __future__ import annotations

import ipaddress
import socket


def interfaces() -> dict[str, list[str]]:
    """Return the IPv4 and IPv6 addresses of each interface, by the interface's name."""
    import psutil  # late: it takes longer to import than all of hoplite_ray's top level

    kinds = (socket.AF_INET, socket.AF_INET6)
    return {
        name: [each.address.partition("%")[0] for each in has if each.family in kinds]
        for name, has in psutil.net_if_addrs().items()
    }


def own_addresses() -> list[str]:
    """Return the addresses at which other machines may reach this one, and then the loopback's.

    IPv4 comes before IPv6. Addresses of one link only (fe80::/10) are left out, because they mean
    nothing on another machine.
    """
    found = [ipaddress.ip_address(each) for has in interfaces().values() for each in has]
    usable = [each for each in dict.fromkeys(found) if each.version == 4 or not each.is_link_local]
    return [str(each) for each in sorted(usable, key=lambda each: (each.is_loopback, each.version))]
