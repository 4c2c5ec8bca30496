"""The checks of this folder's fixtures at the end of a cluster."""

from __future__ import annotations

from pathlib import Path

from tests.ray.raycluster import leaks_told


def test_a_leak_that_a_worker_tells_of_is_found_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "worker-1.out").write_text("all is well\n")
    assert leaks_told(tmp_path) == []
    (tmp_path / "worker-2.err").write_text("ended\nnanobind: leaked 2 instances!\n - of Node\n")
    (tmp_path / "raylet.err").write_text("nanobind: leaked is what a worker would say\n")
    (found,) = leaks_told(tmp_path)
    assert found == f"{tmp_path}/worker-2.err:2: nanobind: leaked 2 instances!"
