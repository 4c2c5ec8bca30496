"""The options of a cluster: the first start fixes only those with which its machine can start."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, cast

import pytest

from hoplite_ray import _native
from hoplite_ray.config import Config, Memory
from hoplite_ray.errors import ControlError, WireVersionMismatchError
from hoplite_ray.plugin.node import agreement
from hoplite_ray.plugin.node.agreement import agree
from hoplite_ray.plugin.seams.table import KeyValues

GIB = 1 << 30
SPACIOUS = Memory(total_bytes=100 * GIB, available_bytes=90 * GIB)
NARROW = Memory(total_bytes=10 * GIB, available_bytes=9 * GIB)


class Table(dict[str, bytes]):
    """Ray's table, in this process."""

    def read(self, key: str) -> bytes | None:
        return self.get(key)

    def put_if_absent(self, key: str, value: bytes) -> bytes:
        return self.setdefault(key, value)


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> Iterator[Table]:
    """An empty table, and a spacious machine whose only network is 10.1.0.0/16."""
    monkeypatch.setattr(agreement.seams, "this_job", lambda: "01000000 (python first.py)")
    monkeypatch.setattr(agreement.seams, "node_address", lambda: "10.1.0.7")
    monkeypatch.setattr(agreement, "interfaces", lambda: {"eth0": ["10.1.0.7"]})
    monkeypatch.setattr(Memory, "read", lambda: SPACIOUS)
    monkeypatch.delenv("RAY_USE_TLS", raising=False)
    yield Table()


def values(table: Table) -> KeyValues:
    return cast(KeyValues, table)


@pytest.mark.parametrize(
    ("asked", "error", "told"),
    [
        (
            {"arena_bytes": 1 << 40},
            ValueError,
            r"arena_bytes=1099511627776 does not fit: \d+ of \d+ bytes .* ask for at most \d+$",
        ),
        ({"rails": "10.9.0.0/16"}, ValueError, r"no interface .* is in 10\.9\.0\.0/16"),
        ({"data_tls": "on"}, ControlError, "data_tls is on and RAY_USE_TLS is not"),
        (
            {"when_full": "spill", "spill_directory": "/nowhere"},
            ValueError,
            r"spill_directory=/nowhere takes no file .*\(No such file or directory\); make that",
        ),
    ],
)
def test_what_this_machine_lacks_is_not_fixed_for_the_cluster(
    table: Table, asked: dict[str, Any], error: type[Exception], told: str
) -> None:
    with pytest.raises(error, match=told):
        agree(values(table), Config.from_options(asked), {})
    assert not table
    assert agree(values(table), Config(), {}).options == Config()  # the next job is free to ask


def test_the_first_job_fixes_what_a_later_one_inherits(table: Table) -> None:
    fixed = agree(values(table), Config(arena_bytes=2 * GIB), {"arena_bytes": "flag"})
    assert agree(values(table), Config(), {}) == fixed
    assert (fixed.options, fixed.fixed_by[:8]) == (Config(arena_bytes=2 * GIB), "01000000")
    stored = json.loads(table["options"])
    assert stored["origins"] == {"arena_bytes": "flag"}
    with pytest.raises(ValueError, match=r"asks for arena_bytes=\d+, but .* leave arena_bytes out"):
        agree(values(table), Config(arena_bytes=GIB), {})


def test_an_arena_that_fills_the_machine_is_not_asked_for_twice(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = Config(arena_bytes=80 * GIB)
    agree(values(table), asked, {})
    monkeypatch.setattr(Memory, "read", lambda: Memory(100 * GIB, 10 * GIB))  # the node has it
    assert agree(values(table), asked, {}).options == asked


def test_a_smaller_machine_is_told_of_the_first_job(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    agree(values(table), Config(arena_bytes=20 * GIB), {})
    monkeypatch.setattr(Memory, "read", lambda: NARROW)
    fixed = agree(values(table), Config(), {})
    told = (
        r"arena_bytes=\d+ does not fit: .* ask for at most \d+; the first job has fixed .*: "
        r"01000000 \(python first\.py\) of user \d+; mend this machine, .* restart the Ray "
        r"cluster .*\(docs/operate/configure\.md\)"
    )
    with pytest.raises(ValueError, match=told):
        fixed.find_resources()


def test_another_wire_version_is_told_of_the_first_job(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    agree(values(table), Config(), {})
    monkeypatch.setattr(_native, "WIRE_VERSION", _native.WIRE_VERSION + 1)
    with pytest.raises(WireVersionMismatchError, match=r"of user \d+; install one release"):
        agree(values(table), Config(), {})
