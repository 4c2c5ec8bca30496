"""Which addresses of a machine are taken, and what is said of it."""

from __future__ import annotations

import pytest

from hoplite_ray.config import Config
from hoplite_ray.plugin.node.rails import choose

INTERFACES = {
    "lo": ["127.0.0.1", "::1"],
    "eth0": ["192.0.2.7", "2001:db8::7"],
    "ib0": ["10.1.0.7"],
    "ib1": ["10.2.0.7", "fd00::7"],
}


@pytest.mark.parametrize(
    ("option", "listens"),
    [
        (None, ["192.0.2.7:0"]),
        ("10.1.0.0/16", ["10.1.0.7:0"]),
        ("10.2.0.0/16, 10.1.0.0/16", ["10.2.0.7:0", "10.1.0.7:0"]),
        ("fd00::/64", ["[fd00::7]:0"]),
        ("10.1.0.7", ["10.1.0.7:0"]),
    ],
)
def test_each_network_gives_one_rail_in_its_order(option: str | None, listens: list[str]) -> None:
    assert [rail.listen for rail in choose(option, "192.0.2.7", INTERFACES)] == listens


@pytest.mark.parametrize(
    ("option", "why"),
    [
        (None, "eth0: Ray's own address of the node; the option rails takes others"),
        ("10.2.0.0/16", "ib1: in 10.2.0.0/16, of the option rails"),
    ],
)
def test_it_is_said_which_interface_and_why(option: str | None, why: str) -> None:
    assert choose(option, "192.0.2.7", INTERFACES)[0].why == why


def test_an_address_that_is_translated_is_taken_as_it_is() -> None:
    assert choose(None, "203.0.113.1", INTERFACES)[0].why.startswith("no interface: Ray's own")


def test_a_network_that_the_machine_is_not_in_is_named_with_those_that_it_is_in() -> None:
    with pytest.raises(
        ValueError, match=r"no interface .* is in 10\.9\.0\.0/16.* ib0 10\.1\.0\.7,"
    ):
        choose("10.9.0.0/16", "192.0.2.7", INTERFACES)


@pytest.mark.parametrize(
    "value", ["eth0", "10.1.0.7/16", "", "10.1.0.0/16,", ",".join(["::/0"] * 9)]
)
def test_what_is_no_list_of_networks_is_refused(value: str) -> None:
    with pytest.raises(ValueError, match=r"'rails' is .*; it takes 1 to 8 networks, as"):
        Config(rails=value)
