"""The addresses of this machine, on interfaces that are there and on some that a test makes up."""

from __future__ import annotations

import socket
from types import SimpleNamespace

import psutil
import pytest

from hoplite_ray.base.interfaces import interfaces, own_addresses


def test_own_addresses_end_with_the_loopback() -> None:
    assert "127.0.0.1" in own_addresses()
    assert own_addresses()[-1] in ("127.0.0.1", "::1")


def test_every_own_address_is_of_an_interface() -> None:
    of_interfaces = {each for has in interfaces().values() for each in has}
    assert {*own_addresses()} <= of_interfaces


def test_own_addresses_are_sorted_and_of_use_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    there = {
        "lo": [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")],
        "eth0": [(socket.AF_INET6, "fe80::1%eth0"), (socket.AF_INET6, "fd00::5")],
        "eth1": [(socket.AF_INET, "10.0.0.5"), (socket.AF_PACKET, "02:00:00:00:00:01")],
        "eth1:1": [(socket.AF_INET, "10.0.0.6"), (socket.AF_INET, "10.0.0.5")],
    }
    rows = {
        name: [SimpleNamespace(family=family, address=address) for family, address in has]
        for name, has in there.items()
    }
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: rows)
    assert own_addresses() == ["10.0.0.5", "10.0.0.6", "fd00::5", "127.0.0.1", "::1"]
    assert interfaces()["eth0"] == ["fe80::1", "fd00::5"]
