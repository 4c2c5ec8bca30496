"""The only test that compares durations: an issue gives the bound, and one run gives both times."""

from __future__ import annotations

import cluster
import pytest
import two_hops


@pytest.mark.wall_clock
@pytest.mark.skipif(
    cluster.why_impossible() is not None, reason="needs root for network namespaces"
)
def test_a_relay_streams_while_it_receives(capsys: pytest.CaptureFixture[str]) -> None:
    result = two_hops.measure(size_bytes=128 << 20, rate_mbit=500, repeats=1)
    with capsys.disabled():
        print(f"\n{result}, ratio {result.ratio:.3f}")  # noqa: T201 - the figure is the point
    assert result.asked_after_s < two_hops.ASKS_WITHIN_S
    assert result.ratio < 1.1
