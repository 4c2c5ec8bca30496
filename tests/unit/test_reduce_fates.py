"""What a ReduceError says of each source."""

from __future__ import annotations

from typing import Any

from hoplite_ray.plugin.steward.reducing import lost_sources
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


def test_the_stores_text_names_the_lost_sources() -> None:
    text = (
        "reduce of 12ab failed: needs 3 of 3 sources, and only 1 can still come: "
        "source 1: all its holders are gone; source 12: all its holders are gone;"
    )
    assert lost_sources(text) == {1, 12}
