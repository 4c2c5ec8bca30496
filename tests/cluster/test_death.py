"""Deaths whose proof needs much memory or a network, as benchmarks measure them."""

from __future__ import annotations

import cluster
import death
import pytest
import world_death

GIB = 1 << 30


@pytest.mark.wall_clock
def test_a_large_process_is_dead_before_its_memory_is_freed() -> None:
    with death.Observer() as observer:
        deaths = [observer.see(size_bytes=GIB, in_transfer=each) for each in (False, True, False)]
    # In the rare case that the liveness thread is its last thread, both come together.
    assert any(ours < plain for ours, plain in deaths), deaths


@pytest.mark.skipif(
    cluster.why_impossible() is not None, reason="needs root for network namespaces"
)
def test_a_cut_cable_is_known_from_the_kernel_and_not_from_silence() -> None:
    assert death.cuts(1).n == 2  # it raises at any other verdict


@pytest.mark.skipif(
    cluster.why_impossible() is not None, reason="needs root for network namespaces"
)
def test_a_world_whose_cable_is_cut_ends_at_both_members() -> None:
    assert [row.n for row in world_death.cuts(1)] == [2] * 4  # it raises at any other cause
