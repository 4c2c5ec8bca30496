"""What a ReduceError says of each source."""

from __future__ import annotations

from typing import Any

from hoplite_ray.plugin.steward.source import Source


class FakeRef:
    def hex(self) -> str:
        return "ab" * 28


def test_only_a_lost_source_is_called_lost() -> None:
    ref: Any = FakeRef()
    handle: Any = object()
    ready = Source(0, ref, handle)
    assert ready.describe_fate().endswith(": ready")
    assert ready.describe_fate(is_lost=True).endswith(": had been ready, then lost")
    assert Source(1, ref).describe_fate().endswith(": pending")
