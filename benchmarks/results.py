"""Measures every table at one clean commit, and writes the page of results from the lines.

    sudo -E make results                       # all tables, one after the other
    sudo -E make results TABLES="small local"  # some of them
    python benchmarks/results.py --list

A finished table of this commit and machine is not measured again, so that an interrupted run goes
on where it ended. Lines are kept in build/results/ until all chosen tables are there; then they
replace those in docs/measured/, and docs/explain/results.md and docs/pictures/ are made from them.
A tree with changes is refused, because its lines would name a commit that gives other figures.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

import report
import results_page
from meters import machine
from network import why_impossible
from records import Line, RecordError, read
from tables import BY_NAME, TABLES, Table

ROOT = report.ROOT
HERE = Path(__file__).parent
MEASURED = ROOT / "docs/measured"
PATIENCE = 4  # times as long as a table should take; then it is given up
LIMIT_S_MIN = 600.0
TOY_S_MAX = 460.0
CHANGED_MAX = 20  # files that an error names
LOOK_S = 0.2  # between two looks at what a program has printed
END_S = 60.0  # for a program to take its network away after SIGTERM


class RefusedError(Exception):
    """Nothing can be measured: what is wrong, and what to do."""


def clean_commit(root: Path) -> str:
    """Return the commit of a tree without changes.

    Raises: RefusedError if there is none, as in a source archive, or if files have changed.
    """
    top = _git(root, "rev-parse", "--show-toplevel", "HEAD")
    folder, _, commit = top.stdout.strip().partition("\n")
    if top.returncode != 0 or Path(folder).resolve() != root.resolve():
        why = top.stderr.strip() or f"the nearest repository is {folder}"
        raise RefusedError(
            f"no commit is known of {root} ({why}): results name the commit that gives them, so "
            "measure in a git clone and not in a source archive"
        )
    status = _git(root, "status", "--porcelain")
    if status.returncode != 0:
        raise RefusedError(f"git status fails in {root}: {status.stderr.strip()}")
    if changed := status.stdout.splitlines():
        raise RefusedError(
            f"{len(changed)} files differ from commit {commit[:12]}: commit them or take them "
            "away, then measure\n" + "\n".join(changed[:CHANGED_MAX])
        )
    return commit


def _git(root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = ["git", "-C", str(root), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def why_not(table: Table) -> str | None:
    """Say why this machine can't measure a table; None if it can."""
    if table.needs_root and (impossible := why_impossible()):
        return impossible
    if table.needs_gpu and not Path("/dev/nvidiactl").exists():
        return "needs a GPU"
    return None


def duration_text(seconds: float) -> str:
    minutes = max(1, round(seconds / 60))
    return f"{minutes // 60} h {minutes % 60:02} min" if minutes >= 60 else f"{minutes} min"


class Run:
    """The tables of one commit on one machine, and which of them are finished."""

    def __init__(self, commit: str, folder: Path) -> None:
        self._commit = commit
        self._folder = folder

    @classmethod
    def at(cls, commit: str, build: Path) -> Run:
        """The run of this commit on this machine, whether it has begun or not."""
        where = machine()
        words = re.sub(r"[^\w.]+", "-", f"{where['machine']}-{where['kernel']}")
        return cls(commit, build / f"{commit[:12]}-{words}")

    def file(self, table: Table) -> Path:
        """Where the lines of a finished table lie."""
        return self._folder / f"{table.name}.jsonl"

    def is_finished(self, table: Table) -> bool:
        return self.file(table).exists()

    def measure(self, table: Table) -> str | None:
        """Measure a table and keep its lines; returns what went wrong, or None."""
        self._folder.mkdir(parents=True, exist_ok=True)
        log = self._folder / f"{table.name}.log"
        log.write_text("")
        limit_s = max(LIMIT_S_MIN, PATIENCE * table.about_s)
        lines: list[str] = []
        for command in table.commands:
            told, failure = play([*shlex.split(command), "--json"], log, limit_s)
            if failure:
                return f"{failure}: see {log}"
            lines += [line for line in told if line.startswith("{")]
        try:
            self._check(read({table.name: "\n".join(lines)}))
        except (RecordError, RefusedError) as error:
            return str(error)
        part = self.file(table).with_suffix(".part")
        part.write_text("".join(f"{line}\n" for line in lines))
        part.rename(self.file(table))  # only a whole table has this name
        return None

    def _check(self, lines: Sequence[Line]) -> None:
        commits = {line.place.commit for line in lines}
        if commits != {self._commit[:12]}:
            raise RefusedError(
                f"its lines are of {', '.join(sorted(commits)) or 'no commit'}, not of "
                f"{self._commit[:12]}: the tree has changed meanwhile"
            )

    def publish(self, tables: Sequence[Table]) -> None:
        """Replace the kept lines of these tables, the page and the pictures."""
        for table in tables:
            shutil.copyfile(self.file(table), MEASURED / f"{table.name}.jsonl")
        files = report.measured()
        report.PAGE.write_text(report.page(files))
        records = read({str(file): file.read_text() for file in files})
        report.save(report.pictures(records), ROOT / "docs/pictures")


def play(words: Sequence[str], log: Path, limit_s: float) -> tuple[list[str], str | None]:
    """Run a program of this folder and print what it prints.

    Returns: its lines, and what went wrong: its status, or that it took too long.
    """
    command = [sys.executable, str(HERE / f"{words[0]}.py"), *words[1:]]
    print(f"$ python benchmarks/{words[0]}.py {shlex.join(words[1:])}", flush=True)
    deadline_s = time.monotonic() + limit_s
    with log.open("ab") as kept, log.open() as shown:
        shown.seek(0, os.SEEK_END)
        told = Told(shown)
        running = subprocess.Popen(
            command,
            cwd=ROOT,
            env=os.environ | {"RAY_ADDRESS": "local", "PYTHONUNBUFFERED": "1"},
            stdout=kept,
            stderr=subprocess.STDOUT,
        )
        try:
            while running.poll() is None and time.monotonic() < deadline_s:
                told.show()
                with suppress(subprocess.TimeoutExpired):
                    running.wait(LOOK_S)
            told.show()
            status = running.poll()
        finally:
            end(running)
    if status is None:
        return told.lines, f"{words[0]} took more than {limit_s:.0f} s"
    return told.lines, f"{words[0]} ended with status {status}" if status else None


class Told:
    """The output of a program, from its log: kept as lines, shown without those of JSON."""

    def __init__(self, log: IO[str]) -> None:
        self.lines: list[str] = []
        self._log = log
        self._begun = ""

    def show(self) -> None:
        """Take what is new. The last line may not be whole yet, and waits for its end."""
        *whole, self._begun = (self._begun + self._log.read()).split("\n")
        self.lines += whole
        for line in whole:
            if not line.startswith("{"):
                print(line, flush=True)


def end(running: subprocess.Popen[bytes]) -> None:
    """End a program that still runs: first let it clear its network away."""
    for sent in (signal.SIGTERM, signal.SIGKILL):
        if running.poll() is None:
            running.send_signal(sent)
            with suppress(subprocess.TimeoutExpired):
                running.wait(END_S)


def main() -> int:
    options = parse_options()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # else a program would go on
    if options.list:
        for table in TABLES:
            print(f"{table.name:16} about {duration_text(table.about_s):>10}  {table.title}")
        return 0
    if options.toy:
        return toys(options)
    tables = [BY_NAME[name] for name in options.tables] or list(TABLES)
    try:
        run = Run.at(clean_commit(ROOT), ROOT / "build/results")
        return measure_all(run, tables)
    except (RefusedError, RecordError) as error:
        print(f"results: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("results: interrupted; the same command goes on with the table that it measured")
        return 130


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("tables", nargs="*", type=table_name, help="some tables (default: all)")
    parser.add_argument("--list", action="store_true", help="print the tables' names and times")
    parser.add_argument("--toy", action="store_true", help="every program once, at toy size")
    parser.add_argument("--program", help="with --toy: this one alone")
    return parser.parse_args()


def table_name(text: str) -> str:
    if text not in BY_NAME:
        raise argparse.ArgumentTypeError(f"no table {text!r}; there are {', '.join(BY_NAME)}")
    return text


def measure_all(run: Run, tables: Sequence[Table]) -> int:
    """Say what will be done, do it table by table, and write the page once all are there."""
    plan = {table: why_not(table) for table in tables}
    wanted = [table for table, why in plan.items() if why is None]
    left = [table for table in wanted if not run.is_finished(table)]
    for table, why in plan.items():
        about = duration_text(table.about_s)
        state = why or (f"about {about}" if table in left else "is finished")
        print(f"{table.name:16} {'left out: ' if why else ''}{state}")
    print(f"{len(left)} tables, about {duration_text(sum(t.about_s for t in left))} in all\n")
    failures = []
    for table in left:
        print(f"=== {table.title}", flush=True)
        began_s = time.monotonic()
        if failure := run.measure(table):
            failures.append(f"{table.name}: {failure}")
        took_s = time.monotonic() - began_s
        print(f"=== {table.name}: {failure or 'finished'} after {took_s:.0f} s\n", flush=True)
    if failures:
        words = "not measured, so that docs/ stays as it is:"
        print(f"results: {words}", *failures, sep="\n  ", file=sys.stderr)
        return 1
    if not wanted:
        print("results: this machine can measure none of these tables", file=sys.stderr)
        return 1
    run.publish(wanted)
    print(f"{report.PAGE.relative_to(ROOT)}, docs/measured and docs/pictures are written: commit")
    return 0


def toys(options: argparse.Namespace) -> int:
    """Run programs at toy size; lines of those that a table is made of must make a page."""
    of_tables = [program for table in TABLES for program in table.programs]
    programs = [options.program] if options.program else list(dict.fromkeys(of_tables))
    folder = ROOT / "build/results/toy"
    folder.mkdir(parents=True, exist_ok=True)
    for program in programs:
        log = folder / f"{program}.log"
        log.write_text("")
        has_lines = program in of_tables
        told, failure = play([program, *(["--json"] if has_lines else []), "--toy"], log, TOY_S_MAX)
        lines = [line for line in told if line.startswith("{")]
        if not failure and has_lines and not lines and not _is_impossible(program):
            failure = f"{program} printed no line of JSON"
        if failure:
            print(f"results: {failure}", file=sys.stderr)
            return 1
        if lines and has_lines:
            table = next(table.name for table in TABLES if program in table.programs)
            page = results_page.text({table: read({program: "\n".join(lines)})}, {})
            (folder / f"{program}.md").write_text(page)
            print(f"{len(lines)} lines make {folder / program}.md")
    return 0


def _is_impossible(program: str) -> bool:
    return all(why_not(table) for table in TABLES if program in table.programs)


if __name__ == "__main__":
    sys.exit(main())
