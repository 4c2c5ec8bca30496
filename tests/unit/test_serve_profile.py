"""Profiles: distributions between measured sizes, the knee, the file."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hoplite_ray.serve.slo.profile import BatchProfile, Profile
from tests.unit.serve_profiles import line


def test_a_quantile_lies_on_the_line_between_two_measurements() -> None:
    batch = BatchProfile(4, (0.3, 0.1, 0.2))
    assert batch.service_s == (0.1, 0.2, 0.3), "sorted"
    assert [batch.quantile_s(share) for share in (0, 0.25, 0.5, 1)] == pytest.approx(
        [0.1, 0.15, 0.2, 0.3]
    )
    assert batch.mean_s == pytest.approx(0.2) and batch.throughput_per_s == pytest.approx(20)


def test_sizes_between_and_beyond_the_measured_ones_are_on_their_lines() -> None:
    profile = line(0.02, 0.002, sizes=(2, 8))
    for size in (3, 5, 8, 12):
        assert profile.mean_s(size) == pytest.approx(0.02 + 0.002 * size)
    assert profile.mean_s(1) == pytest.approx(0.024), "as much as the smallest"
    falling = Profile("S", (BatchProfile(1, (0.5,) * 3), BatchProfile(2, (0.4,) * 3)))
    assert falling.mean_s(8) == pytest.approx(0.4), "a larger batch is never faster than measured"
    single = line(0.0, 0.01, sizes=(4,))
    assert single.mean_s(8) == pytest.approx(0.08)


def test_the_knee_is_where_throughput_stops_to_grow() -> None:
    flat = tuple(BatchProfile(n, (max(0.02, 0.002 * n),) * 3) for n in (1, 2, 4, 8, 16, 32))
    assert Profile("S", flat).knee == 16  # 10 queries fill the device, 500 a second
    assert line(0.04, 0.001).knee == 32


def test_memory_is_that_of_the_largest_batch_so_far() -> None:
    sizes = ((1, 50), (2, 40), (4, 90))
    profile = Profile("S", tuple(BatchProfile(n, (0.1,) * 3, m) for n, m in sizes))
    assert [profile.memory_bytes(size) for size in (1, 2, 3, 4, 9)] == [50, 50, 90, 90, 90]


@given(
    st.lists(
        st.tuples(st.integers(1, 500), st.lists(st.floats(1e-5, 100), min_size=3, max_size=9)),
        min_size=1,
        max_size=6,
        unique_by=lambda each: each[0],
    ),
    st.floats(0, 1),
)
def test_a_file_gives_the_profile_back(
    tmp_path_factory: pytest.TempPathFactory,
    batches: list[tuple[int, list[float]]],
    share: float,
) -> None:
    path = tmp_path_factory.mktemp("profile") / "stage.json"
    made = tuple(BatchProfile(n, tuple(times), 7, 9) for n, times in sorted(batches))
    profile = Profile("Vision", made, 1.25, {"options": {"num_cpus": 2}}, (0.5, 0.25), 0.75)
    profile.save(path)
    read = Profile.load(path)
    assert (read.stage, read.start_s, read.where) == ("Vision", 1.25, profile.where)
    assert (read.hops_s, read.loop_share) == ((0.25, 0.5), 0.75)
    for before, after in zip(profile.batches, read.batches, strict=True):
        assert after.quantile_s(share) == pytest.approx(before.quantile_s(share), rel=0.01)
        assert (after.size, after.memory_bytes, after.gpu_bytes) == (before.size, 7, 9)


def test_a_file_can_be_read_by_people(tmp_path: Path) -> None:
    path = tmp_path / "vision.json"
    line(0.02, 0.002, sizes=(1, 4), name="Vision").save(path)
    lines = path.read_text().splitlines()
    assert sum('"size"' in each for each in lines) == 2, "one size a line"
    assert "Vision: starts in 0.00 s, knee at 4" in str(Profile.load(path))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "no profile"),
        ('{"format": 99}', "its format is 99"),
        ('{"format": 1, "stage": "S", "start_s": 0, "where": {}, "batches": []}', "at least one"),
        ('{"format": 1, "stage": "S", "batches": [{"size": 1, "what": 2}]}', "no profile"),
    ],
)
def test_what_is_no_profile_is_refused(tmp_path: Path, text: str, why: str) -> None:
    path = tmp_path / "file.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=why) as raised:
        Profile.load(path)
    assert str(path) in str(raised.value) and "serve.profile" in str(raised.value)


@pytest.mark.parametrize(
    ("size", "times", "why"),
    [
        (0, (1.0, 1.0, 1.0), "whole numbers"),
        (1, (1.0, 1.0), "at least 3"),
        (1, (1.0, 0.0, 1.0), "above 0"),
        (1, (1.0, float("nan"), 1.0), "above 0"),
    ],
)
def test_batches_that_can_not_be_are_refused(size: int, times: tuple[float, ...], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        BatchProfile(size, times)


def test_sizes_ascend() -> None:
    one = BatchProfile(2, (0.1,) * 3)
    with pytest.raises(ValueError, match="ascend"):
        Profile("S", (one, one))


def test_drift_counts_sizes_by_how_often_they_were_seen() -> None:
    profile = line(0.02, 0.002, sizes=(1, 8))
    seen = Profile("S", (BatchProfile(1, (0.044,) * 3), BatchProfile(4, (0.028,) * 9)))
    assert profile.drift(seen) == pytest.approx(
        (3 * 2 * 0.022 + 9 * 0.028) / (3 * 0.022 + 9 * 0.028)
    )
    assert profile.drift(profile) == pytest.approx(1)
