"""Tables of devices: the layouts of MIG are NVIDIA's, and fit on their GPU."""

from __future__ import annotations

from typing import Any

import pytest

from hoplite_ray.errors import InvalidArgumentError
from hoplite_ray.serve.placement.devices import (
    A30,
    A100_40GB,
    A100_80GB,
    H100_80GB,
    DeviceKind,
    cpu_slots,
)


def describe(kind: DeviceKind, *, without: str = "") -> set[str]:
    """The layouts by MIG as NVIDIA writes them: 4+3 and so on."""
    cut = [[each.name.rpartition("-")[2] for each in layout] for layout in kind.layouts[1:]]
    return {"+".join(name[0] for name in names) for names in cut if without not in names}


def test_layouts_are_those_of_nvidia() -> None:
    assert describe(A30) == {"4", "2+2", "2+1+1", "1+1+1+1"}
    of_sevenths = {
        *("7", "4+3", "4+2+1", "4+1+1+1", "3+3", "3+2+2", "3+2+1+1", "3+1+1+1+1"),
        *("2+2+2+1", "2+2+1+1+1", "2+1+1+1+1+1", "1+1+1+1+1+1+1"),
    }
    assert describe(A100_40GB, without="1g.10gb") == of_sevenths
    assert describe(A100_80GB, without="1g.20gb") == of_sevenths
    assert describe(H100_80GB, without="1g.20gb") == of_sevenths


@pytest.mark.parametrize("kind", [A30, A100_40GB, A100_80GB, H100_80GB], ids=lambda kind: kind.name)
def test_slices_of_a_layout_fit_on_their_device(kind: DeviceKind) -> None:
    (whole,) = kind.layouts[0]
    assert whole.name == kind.name
    for layout in kind.layouts:
        assert sum(each.memory_bytes for each in layout) <= whole.memory_bytes * 1.01
        assert sum(each.compute for each in layout) <= whole.compute
    assert [each.memory_bytes for each in kind.slices] == sorted(
        (each.memory_bytes for each in kind.slices), reverse=True
    )


@pytest.mark.parametrize(
    "arguments", [{"count": 0}, {"count": 1, "cores": 0}, {"count": 1, "cores": 1.5}]
)
def test_a_machine_has_whole_slots(arguments: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgumentError, match="at least one slot"):
        cpu_slots(**arguments)
