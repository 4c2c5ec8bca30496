"""`make results`: what it refuses, how it goes on, and that its page says what the lines say."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import records
import report
import results
import results_page
import tables
from figures import OURS, Figure

ROOT = Path(__file__).parents[2]
WHERE = {"machine": "x86_64, 2 cores", "kernel": "6.1", "commit": "c0ffee0" + 33 * "0"}
WHERE |= {"command": "python benchmarks/local.py --json", "date": "2026-11-28T05:00:00Z"}


def line(case: str, *samples: float, by: str = OURS, **fields: Any) -> str:
    record = {"unit": "s", "better": "less", "bound": None, "goal": None, "failure": None}
    return json.dumps(
        {"benchmark": "local", "case": case, "by": by, "samples": samples, **record, **WHERE}
        | fields
    )


def page(*lines: str, name: str = "local") -> str:
    return results_page.page({name: records.read({name: "\n".join(lines)})}, {})


def section(text: str, heading: str) -> list[list[str]]:
    """The rows of the first table below a heading, without its head."""
    _, _, below = text.partition(f"{heading}\n")
    found = re.search(r"(?:^\|.*\n)+", below.partition("\n## ")[0], re.M)
    if found is None:
        return []
    rows = [[cell.strip() for cell in row.strip("|").split(" | ")] for row in found[0].splitlines()]
    return rows[2:]


def git(folder: Path, *words: str) -> str:
    identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
    command = ["git", "-C", str(folder), *identity, *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    git(tmp_path, "init", "--quiet")
    (tmp_path / ".gitignore").write_text("build/\n")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "--message", "all")
    return tmp_path


# ---- what it refuses ----


def test_the_commit_of_a_clean_clone_is_known(clone: Path) -> None:
    (clone / "build").mkdir()
    (clone / "build/log").write_text("ignored")
    assert results.clean_commit(clone) == git(clone, "rev-parse", "HEAD")


def test_a_changed_file_and_a_new_one_are_refused_by_name(clone: Path) -> None:
    (clone / ".gitignore").write_text("")
    (clone / "new.py").write_text("")
    with pytest.raises(results.RefusedError, match=r"(?s)2 files differ.*\.gitignore.*new\.py"):
        results.clean_commit(clone)


def test_a_source_archive_is_refused_also_inside_of_another_repository(
    clone: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    archive = clone / "build/archive"
    archive.mkdir(parents=True)
    for folder in (archive, tmp_path_factory.mktemp("archive")):
        with pytest.raises(results.RefusedError, match=r"no commit is known .* in a git clone"):
            results.clean_commit(folder)


@pytest.mark.parametrize("commit", ["c0ffee-dirty", "", "?"])
def test_the_page_takes_no_line_of_a_commit_that_cannot_be_checked_out(commit: str) -> None:
    with pytest.raises(records.RecordError, match="local: has lines of commit"):
        page(line("a put", 1.0, commit=commit))


def test_lines_of_a_file_that_is_no_table_are_refused() -> None:
    with pytest.raises(records.RecordError, match="lost: no table has this name"):
        page(line("a put", 1.0), name="lost")


# ---- how it runs ----


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> results.Run:
    """A run whose programs are of a folder of this test."""
    programs = tmp_path / "benchmarks"
    programs.mkdir()
    (tmp_path / "measured").mkdir()
    monkeypatch.setattr(results, "HERE", programs)
    monkeypatch.setattr(results, "MEASURED", tmp_path / "measured")
    monkeypatch.setattr(results, "ROOT", tmp_path)
    monkeypatch.setattr(report, "PAGE", tmp_path / "results.md")
    monkeypatch.setattr(report, "measured", lambda: sorted((tmp_path / "measured").iterdir()))
    return results.Run(str(WHERE["commit"]), tmp_path / "build")


def program(run: results.Run, name: str, *said: str, status: int = 0) -> Path:
    """A program that prints lines, and counts how often it runs."""
    counter = results.HERE / f"{name}.count"
    counter.write_text("")
    (results.HERE / f"{name}.py").write_text(
        f"import sys\nopen({str(counter)!r}, 'a').write('x')\n"
        f"print('a table for people')\nprint({chr(10).join(said)!r})\nsys.exit({status})\n"
    )
    return counter


LOCAL, SMALL = tables.BY_NAME["local"], tables.BY_NAME["small"]


def test_a_run_says_what_it_will_do_measures_in_turn_and_writes_page_and_lines(
    run: results.Run, capsys: pytest.CaptureFixture[str]
) -> None:
    program(run, "local", line("a put", 1.0))
    program(run, "small", line("gets", 2.0, benchmark="small"))
    assert results.measure_all(run, [LOCAL, SMALL]) == 0
    told = capsys.readouterr().out
    begins = told.index("=== ")
    assert "local            about 1 min" in told[:begins]
    assert "2 tables, about 2 min in all" in told[:begins]
    assert told.index("local: finished") < told.index("=== Small objects")
    kept = (results.MEASURED / "small.jsonl").read_text()
    assert [json.loads(each)["case"] for each in kept.splitlines()] == ["gets"]
    assert section(report.PAGE.read_text(), f"## {LOCAL.title}") == [["a put", "s", "1.00"]]


def test_a_finished_table_is_not_measured_again_and_a_failed_one_is(
    run: results.Run, capsys: pytest.CaptureFixture[str]
) -> None:
    first = program(run, "local", line("a put", 1.0))
    second = program(run, "small", status=3)
    assert results.measure_all(run, [LOCAL, SMALL]) == 1
    assert "small: small ended with status 3: see " in capsys.readouterr().err
    assert not list(results.MEASURED.iterdir())
    assert not report.PAGE.exists()
    program(run, "small", line("gets", 2.0))
    assert results.measure_all(run, [LOCAL, SMALL]) == 0
    assert "local            is finished" in capsys.readouterr().out
    assert first.read_text() == "x"
    assert second.read_text() == "x"  # of the second try: `program` has begun to count anew


def test_an_interruption_ends_the_program_and_leaves_no_half_table(
    run: results.Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    (results.HERE / "local.py").write_text(
        f"import time\nprint({line('a put', 1.0)!r}, flush=True)\ntime.sleep(60)\n"
    )
    ended = []
    true_end = results.end

    def end(running: subprocess.Popen[bytes]) -> None:
        true_end(running)
        ended.append(running.poll())

    def interrupt(told: results.Told) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(results, "end", end)
    monkeypatch.setattr(results.Told, "show", interrupt)
    with pytest.raises(KeyboardInterrupt):
        run.measure(LOCAL)
    assert ended == [-signal.SIGTERM]
    assert not run.is_finished(LOCAL)


def test_a_program_that_takes_too_long_is_ended(run: results.Run, tmp_path: Path) -> None:
    (results.HERE / "local.py").write_text("import time\ntime.sleep(60)\n")
    _, failure = results.play(["local"], tmp_path / "log", limit_s=1.0)
    assert failure == "local took more than 1 s"


def test_lines_of_another_commit_are_not_kept(run: results.Run) -> None:
    program(run, "local", line("a put", 1.0, commit="decade0"))
    assert "its lines are of decade0, not of c0ffee0" in str(run.measure(LOCAL))
    assert not run.is_finished(LOCAL)


def test_a_table_that_the_machine_cannot_measure_is_left_out_with_the_reason(
    run: results.Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(results, "why_impossible", lambda: "needs root for network namespaces")
    assert results.measure_all(run, [tables.BY_NAME["training"]]) == 1
    told = capsys.readouterr()
    assert "training         left out: needs root for network namespaces" in told.out
    assert "can measure none of these tables" in told.err


def test_an_unknown_table_is_answered_with_the_known_ones(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["results.py", "lost"])
    with pytest.raises(SystemExit):
        results.parse_options()
    assert "no table 'lost'; there are canonical, collectives," in capsys.readouterr().err


def test_every_table_has_a_program_with_lines_and_a_toy() -> None:
    for table in tables.TABLES:
        for name in table.programs:
            program = (ROOT / f"benchmarks/{name}.py").read_text() + (
                (ROOT / "benchmarks/world_death.py").read_text() if name == "world_gpu" else ""
            )
            if "import add_output_options" in program:  # which has all three
                continue
            assert '"--json"' in program
            assert '"--toy"' in program
            assert "print_figures(" in program or "json.dumps" in program, name


# ---- the page ----


def test_a_row_has_all_contenders_beside_bound_and_goal() -> None:
    text = page(
        line("a put", 0.002, 0.003, 0.004, bound=0.0015, goal=0.0025),
        line("a put", 0.005, by="Ray"),
        line("a put", by="Gloo", samples=[], failure="not installed"),
    )
    assert section(text, f"## {LOCAL.title}") == [
        ["a put", "ms", "1.50", "2.50 ✗", "3.00 (2.00 to 4.00)", "2.00", "5.00", "-"]
    ]
    assert "- all rows without Gloo: not installed" in text
    assert "Commit: c0ffee0, measured on 2026-11-28." in text
    assert "python benchmarks/local.py --json" in text


def test_a_case_that_no_contender_played_is_a_reason_and_no_row() -> None:
    nothing: dict[str, Any] = {"samples": [], "failure": "not played under Ray"}
    text = page(line("a put", 1.0), line("a get", **nothing))
    assert [row[0] for row in section(text, f"## {LOCAL.title}")] == ["a put"]
    assert "- 1 of 2 rows without hoplite_ray: not played under Ray" in text


def test_where_we_lose_has_every_row_with_a_peer_ahead_the_largest_lead_first() -> None:
    more = {"unit": "bytes/s", "better": "more"}
    text = page(
        line("a put", 3.0),
        line("a put", 2.0, by="Ray"),
        line("a put", 4.0, by="Gloo"),
        line("a rate", 1e9, **more),
        line("a rate", 2e9, by="Gloo", **more),
        line("a get", 1.0),
        line("a get", 5.0, by="Ray"),
        line("a get", 0.5, by=f"{OURS}, by id"),  # no peer
    )
    lost = section(text, "## Where we lose")
    assert [row[:5] for row in lost] == [
        ["a rate", "Gloo", "2.00 GB/s", "1.00 GB/s", "2.00 x"],
        ["a put", "Ray", "2.00 s", "3.00 s", "1.50 x"],
    ]
    assert lost[0][5:] == ["[Put and get on one node](#put-and-get-on-one-node)", "c0ffee0"]
    assert "**2.00**" in text


def test_where_no_peer_is_ahead_the_section_says_so() -> None:
    assert "No peer is ahead" in page(line("a put", 1.0), line("a put", 2.0, by="Ray"))


def test_missed_goals_are_listed_the_farthest_first() -> None:
    text = page(
        line("a put", 1.1, goal=1.0),
        line("lost", 2.0, goal=0.0, unit="queries"),
        line("a rate", 2.0, goal=4.0, better="more", unit="1/s"),
        line("a get", 1.0, goal=2.0),
    )
    assert [row[:4] for row in section(text, "### Goals that are missed")] == [
        ["lost", "0 queries", "2.00 queries", "-"],
        ["a rate", "4.00 /s", "2.00 /s", "2.00 x"],
        ["a put", "1.00 s", "1.10 s", "1.10 x"],
    ]


def test_a_row_of_another_commit_names_its_own() -> None:
    text = page(line("a put", 1.0), line("a get", 1.0), line("old", 1.0, commit="decade0"))
    assert "These tables come from 2 commits" in text
    assert [row[0] for row in section(text, f"## {LOCAL.title}")] == [
        "a put",
        "a get",
        "old (at decade0)",
    ]


def test_of_a_table_without_lines_the_page_says_so() -> None:
    missing = section(page(line("a put", 1.0)), "## Not measured yet")
    assert [SMALL.title, "`benchmarks/small.py`"] in missing
    assert len(missing) == len(tables.TABLES) - 1


def test_a_figure_survives_its_line() -> None:
    figure = Figure(case="a put", unit="1/s", samples=(1.0, 2.0), goal=3.0, is_more_better=True)
    assert Figure.of(json.loads(json.dumps(figure.record()))) == figure
    failed = replace(figure, samples=(), failure="not installed")
    assert Figure.of(json.loads(json.dumps(failed.record()))) == failed


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"samples": []}, "neither samples nor a failure"),
        ({"samples": 1.0}, "neither samples nor a failure"),
        ({"better": "most"}, "field better is 'most'"),
        ({"unit": ""}, "field unit is '', not text"),
        ({"bound": "1"}, "field bound is '1', not a number"),
        ({"samples": ["a"]}, "could not convert"),
    ],
)
def test_a_bad_figure_is_named_with_what_is_wrong(fields: dict[str, Any], complaint: str) -> None:
    with pytest.raises(records.RecordError, match=f"local:1: .*{complaint}"):
        records.read({"local": line("a put", 1.0, **fields)})


# ---- what is committed ----


def test_the_committed_page_is_what_the_committed_lines_give() -> None:
    assert report.PAGE.read_text() == report.page(report.measured()), "run `make pictures`"


def test_the_committed_pictures_show_the_committed_lines() -> None:
    """By their texts: outlines differ between versions of matplotlib."""
    lines = records.read({str(file): file.read_text() for file in report.measured()})
    for name, figure in report.pictures(lines).items():
        outlines = (ROOT / "docs/pictures" / name).read_text()
        kept = {text.strip() for text in re.findall(r">([^<]*)<", outlines)}
        drawn = {
            text.get_text().strip()
            for axes in figure.axes
            for text in axes.texts  # the numbers at the bars
        }
        assert drawn <= kept, f"{name}: run `make pictures`"


def medians(name: str) -> dict[tuple[str, str], float]:
    file = ROOT / "docs/measured" / f"{name}.jsonl"
    figures = [
        each for one in records.read({name: file.read_text()}) for each in records.figures_of(one)
    ]
    return {(each.case, each.by): each.median for each in figures if each.median is not None}


def test_the_numbers_of_the_readme_are_those_of_the_lines() -> None:
    readme = " ".join((ROOT / "README.md").read_text().split())
    training = medians("training")
    ratios: dict[str, list[float]] = {"async": [], "sync": []}
    for (case, by), seconds in training.items():
        if by == OURS and case.startswith("a round of broadcast"):
            theirs = training[case, "Ray"]
            assert f"to 7 nodes takes {seconds:.2f} s instead of {theirs:.2f} s" in readme
        elif by == "Ray" and "async" in case:
            ratios["async"].append(seconds / training[case, OURS])
        elif by == "Gloo":
            ratios["sync"].append(1 - seconds / training[case, OURS])
    least, most = min(ratios["async"]), max(ratios["async"])
    assert f"asynchronous SGD runs {least:.1f} to {most:.1f} times as fast" in readme
    least, most = (f(ratios["sync"]) for f in (min, max))
    assert f"Gloo takes {least * 100:.0f} to {most * 100:.0f} % less time" in readme
