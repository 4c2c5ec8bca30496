"""The pictures of `benchmarks/report.py`: they show what the lines say, and bad lines are named."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import records
import report

WHERE = {"nodes": 8, "rate_mbit": 500, "machine": "x86_64, 2 cores", "commit": "c0ffee"}


def samples(*seconds: float) -> list[dict[str, float]]:
    return [{"seconds": each} for each in seconds]


def latency(size_bytes: int, *seconds: float, **fields: Any) -> str:
    record = {
        "benchmark": "collectives",
        "peer": "hoplite",
        "level": "store",
        "collective": "broadcast",
        "variant": "plain",
        "case": "broadcast",
        "size_bytes": size_bytes,
        "bound_s": size_bytes / 1e6,
        "failure": None,
        "samples": samples(*seconds),
    }
    return json.dumps(record | WHERE | fields)


def rounds(parameters: float, *seconds: float, **fields: Any) -> str:
    record = {
        "benchmark": "training",
        "application": "async SGD",
        "peer": "hoplite",
        "parameters": parameters,
        "failure": None,
        "samples": samples(*seconds),
    }
    return json.dumps(record | WHERE | fields)


def canonical(share: float, p99_s: float, commit: str) -> str:
    record = {"benchmark": "canonical", "goodput_share": share, "small_get_p99_s": p99_s}
    return json.dumps(record | {"machine": "x86_64", "commit": commit})


ALL = "\n".join(
    [
        "                  size     bound    median",  # the table that comes before the lines
        latency(1024, 0.003, 0.001, 0.002),
        latency(2**20, 1.1, 1.2, 1.3),
        latency(1024, 0.004, peer="gloo"),
        latency(2**20, 4.0, peer="gloo"),
        latency(2**20, peer="openmpi", failure="not installed: mpirun is missing"),
        latency(2**25, 50.0, variant="staggered", case="  after the last"),
        rounds(25_000_000, 0.5, 0.25, 1.0),
        rounds(25_000_000, 4.0, peer="ray"),
        canonical(0.4, 90e-6, "c0ffee"),
        canonical(0.5, 80e-6, "decade"),
    ]
)


def drawn(text: str) -> dict[str, Any]:
    return report.pictures(records.read({"lines": text}))


def texts(figure: Any) -> str:
    return "\n".join(
        each.get_text() for each in figure.findobj(lambda one: hasattr(one, "get_text"))
    )


def test_equal_lines_give_equal_files(tmp_path: Path) -> None:
    first, second = (report.save(drawn(ALL), tmp_path / name) for name in ("a", "b"))
    assert [path.name for path in first] == [
        "collectives-8x500.svg",
        "cases-8x500.svg",
        "training-8x500.svg",
        "canonical.svg",
    ]
    for one, other in zip(first, second, strict=True):
        assert one.read_bytes() == other.read_bytes()


def test_a_curve_is_the_medians_over_size_beside_the_bound() -> None:
    (panel,) = drawn(ALL)["collectives-8x500.svg"].axes
    lines = {line.get_label(): (*line.get_xdata(), *line.get_ydata()) for line in panel.lines}
    assert lines == {
        "bound": (1024, 2**20, 1024 / 1e6, 2**20 / 1e6),
        "hoplite": (1024, 2**20, 0.002, 1.2),
        "gloo": (1024, 2**20, 0.004, 4.0),
    }
    assert panel.get_title() == "broadcast"
    assert (panel.get_xscale(), panel.get_yscale()) == ("log", "log")


def test_a_case_of_one_size_is_a_bar_of_times_its_bound() -> None:
    (panel,) = drawn(ALL)["cases-8x500.svg"].axes
    assert [bar.get_width() for bar in panel.patches] == [pytest.approx(50.0 / (2**25 / 1e6))]
    assert [label.get_text() for label in panel.get_yticklabels()] == [
        "broadcast, after the last, 32 MiB"
    ]


def test_an_application_is_a_bar_of_rounds_per_second_for_each_peer() -> None:
    (panel,) = drawn(ALL)["training-8x500.svg"].axes
    assert [bar.get_height() for bar in panel.patches] == [2.0, 0.25]
    assert panel.get_title() == "async SGD"
    assert [label.get_text() for label in panel.get_xticklabels()] == ["25 M"]


def test_the_two_numbers_stand_in_the_order_of_their_lines() -> None:
    shares, gets = drawn(ALL)["canonical.svg"].axes
    assert list(shares.lines[0].get_ydata()) == [0.4, 0.5]
    assert list(gets.lines[0].get_ydata()) == [pytest.approx(90), pytest.approx(80)]
    assert [label.get_text() for label in gets.get_xticklabels()] == ["c0ffee", "decade"]


def test_ours_through_ray_is_a_line_of_its_own() -> None:
    both = [latency(size, 1.0, level=level) for size in (1024, 2048) for level in ("store", "ray")]
    (panel,) = drawn("\n".join(both))["collectives-8x500.svg"].axes
    assert [line.get_label() for line in panel.lines] == [
        "bound",
        "hoplite",
        "hoplite, through Ray",
    ]


def test_who_failed_is_named_and_where_it_was_measured() -> None:
    words = texts(drawn(ALL)["collectives-8x500.svg"])
    assert "openmpi: not installed: mpirun is missing" in words
    assert "x86_64, 2 cores; c0ffee" in words
    assert "8 nodes x 500 Mbit/s" in words


def test_each_network_has_its_own_pictures() -> None:
    two = "\n".join([rounds(1, 1.0), rounds(1, 1.0, nodes=16, rate_mbit=250)])
    assert list(drawn(two)) == ["training-8x500.svg", "training-16x250.svg"]


def test_of_two_lines_for_the_same_the_later_one_counts() -> None:
    (panel,) = drawn("\n".join([rounds(1, 1.0), rounds(1, 0.5)]))["training-8x500.svg"].axes
    assert [bar.get_height() for bar in panel.patches] == [2.0]


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("{broken", "lines:1: begins like a record and is no JSON"),
        ('{"benchmark": "death"}', "lines:1: its benchmark is 'death', and it is no figure"),
        ("{}", "lines:1: its benchmark is None"),
        ('{"benchmark": "small", "unit": "s"}', "lines:1: it has no field"),
        (rounds(1, 1.0, application=3), "its field application is 3, not text"),
        (rounds(1, 1.0, peer=None), "it has no field peer"),
        (rounds(1, 1.0, nodes="8"), "its field nodes is '8', not a number"),
        (rounds(0.5, 1.0), "its field parameters is 0.5, not a whole number"),
        (rounds(1, 1.0, rate_mbit=True), "its field rate_mbit is True, not a number above 0"),
        (rounds(1, 0.0), r"its field samples\[0\].seconds is 0.0, not a number above 0"),
        (rounds(1, float("nan")), r"samples\[0\].seconds is nan, not a number above 0"),
        (rounds(1), "it has neither samples nor a failure"),
        (rounds(1, samples={}), "its field samples is {}, not a list"),
        (rounds(1, samples=[1.0]), "its field samples is not a list of objects"),
        (latency(1, 1.0, bound_s=-1), "its field bound_s is -1, not a number above 0"),
        ("a table only", "no line of lines is a record"),
    ],
)
def test_a_bad_line_is_named_with_what_is_wrong(line: str, complaint: str) -> None:
    with pytest.raises(records.RecordError, match=complaint):
        records.read({"lines": line})


def test_a_file_that_is_not_there_is_said_without_a_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["report.py", str(tmp_path / "gone.jsonl")])
    assert report.main() == 1
    assert "gone.jsonl: can't be read" in capsys.readouterr().err


def test_without_matplotlib_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(records.RecordError, match=r"pip install '.\[benchmarks\]'"):
        drawn(ALL)


def test_a_run_writes_its_pictures_where_it_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "all.jsonl").write_text(ALL)
    into = tmp_path / "pictures"
    monkeypatch.setattr(
        sys, "argv", ["report.py", str(tmp_path / "all.jsonl"), "--into", str(into)]
    )
    assert report.main() == 0
    assert len(list(into.glob("*.svg"))) == 4
