"""The page of results, made of nothing but the lines in docs/measured.

A row of another commit than most of its table's names its own commit. Lines of an unknown commit,
or of a tree with changes, are refused.
"""

from __future__ import annotations

import math
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from figures import OURS, Figure, number_text, scale_of, value_text
from records import Line, Place, RecordError, figures_of
from tables import BY_NAME, TABLES, Table

COLUMNS_MAX = 100
SHORT_COMMIT = 7
DIRTY = "-dirty"
INTRODUCTION = """\
# Results

This page shows what hoplite_ray reaches beside its bounds and its peers.
You need nothing to read it.
[How we measure](../internals/performance/methodology.md) explains the network, the peers and the
terms.

!!! note

    `make results` measures every table at one clean commit.
    It writes this page from the lines in `docs/measured`, so no line is written by hand.
"""
MIXED = """\
!!! warning "More than one commit"

    These tables come from {count} commits, so compare within a table only.
    Each table names its commit, and a row of another commit names its own.
"""
READING = """\
## How to read a table

- A figure is the median of all rounds. The least and the most stand in parentheses.
- *Bound* is what the links or the machine allow. *x bound* is the distance from it: 1 is best.
- *Goal* is what the project has set itself. A missed one is marked with ✗.
- **Bold** marks a peer that is ahead of hoplite_ray.
- "hoplite_ray, …" is hoplite_ray used in another way.
"""
AHEAD = """\
## Where we lose

Every row of this page in which a peer is ahead, by how much, the largest lead first.
[Performance notes](../internals/performance/README.md) explain the larger ones, as far as they are
understood.
"""
NOT_AHEAD = """\
## Where we lose

No peer is ahead in any row of this page.
"""
MISSED = """\
### Goals that are missed

Every row in which hoplite_ray misses its own goal, the farthest first.
"""
UNMEASURED = """\
## Not measured yet

`make results` measures these tables as well; `docs/measured` has no figures of them yet.
"""


@dataclass(slots=True)
class Row:
    """One case of a table, by all contenders."""

    case: str
    figures: dict[str, Figure] = field(default_factory=dict)  # by contender
    places: dict[str, Place] = field(default_factory=dict)  # the same

    @property
    def ours(self) -> Figure | None:
        return self.figures.get(OURS)

    @property
    def commits(self) -> str:
        return ", ".join(_unique(_short(place.commit) for place in self.places.values()))

    @property
    def peers(self) -> list[Figure]:
        """All contenders that are not hoplite_ray, in whatever way it is used."""
        return [each for by, each in self.figures.items() if not by.startswith(OURS)]

    def ahead(self) -> list[Figure]:
        """The peers that are better than hoplite_ray."""
        ours = self.ours
        return [] if ours is None else [each for each in self.peers if each.is_better_than(ours)]


@dataclass(slots=True)
class Part:
    """A table with its rows, and the names of its pictures."""

    table: Table
    rows: list[Row]
    pictures: Sequence[str]

    @property
    def places(self) -> list[Place]:
        return [place for row in self.rows for place in row.places.values()]

    @property
    def commit(self) -> str:
        """The commit of most rows."""
        return Counter(place.commit for place in self.places).most_common(1)[0][0]

    def case_text(self, row: Row) -> str:
        """The case, and the commits that are not the table's."""
        other = _unique(p.commit for p in row.places.values() if p.commit != self.commit)
        return f"{row.case} (at {', '.join(map(_short, other))})" if other else row.case


def page(lines: Mapping[str, Sequence[Line]], pictures: Mapping[str, Sequence[str]]) -> str:
    """Write the page from the lines of each table, by its name, and the names of its pictures.

    Raises: RecordError for a name that is no table, and for a dirty or an unknown commit.
    """
    for name, of_table in lines.items():
        if name not in BY_NAME:
            raise RecordError(f"{name}: no table has this name: benchmarks/tables.py has them all")
        for place in {line.place for line in of_table}:
            if place.commit.endswith(DIRTY) or place.commit in ("", "?"):
                raise RecordError(
                    f"{name}: has lines of commit {place.commit or '?'}, which nobody can check "
                    "out: measure again by `make results` in a clean clone"
                )
    return text(lines, pictures)


def text(lines: Mapping[str, Sequence[Line]], pictures: Mapping[str, Sequence[str]]) -> str:
    """The page, whatever the commits are."""
    parts = [
        Part(table, _rows(lines[table.name]), pictures.get(table.name, ()))
        for table in TABLES
        if lines.get(table.name)
    ]
    commits = _unique(place.commit for part in parts for place in part.places)
    blocks = [INTRODUCTION]
    if len(commits) > 1:
        blocks.append(MIXED.format(count=len(commits)))
    blocks += [READING, *_where_we_lose(parts)]
    for part in parts:
        blocks += _part(part)
    if missing := [table for table in TABLES if not lines.get(table.name)]:
        blocks.append(UNMEASURED)
        head = ["table", "program"]
        programs = [", ".join(f"`benchmarks/{p}.py`" for p in each.programs) for each in missing]
        blocks.append(_markdown(head, zip((t.title for t in missing), programs, strict=True)))
    return "\n".join(blocks)


def _rows(lines: Iterable[Line]) -> list[Row]:
    networks = _unique(line.place.network for line in lines)
    rows: dict[tuple[str, str], Row] = {}
    for line in lines:
        for figure in figures_of(line):
            also = f", {line.place.network}" if len(networks) > 1 else ""
            case = f"{figure.case}{also}"
            row = rows.setdefault((case, figure.unit), Row(case))
            row.figures[figure.by] = figure
            row.places[figure.by] = line.place
    return list(rows.values())


def _where_we_lose(parts: Sequence[Part]) -> Iterator[str]:
    lost, missed = [], []
    for part in parts:
        for row in part.rows:
            ours = row.ours
            if ours is None or ours.median is None:
                continue
            where = [_link(part.table), row.commits]
            for peer in row.ahead():
                times = peer.times(ours)
                assert peer.median is not None and times is not None
                values = [value_text(each, ours.unit) for each in (peer.median, ours.median)]
                lost.append((times, [row.case, peer.by, *values, f"{times:.2f} x", *where]))
            if ours.misses_its_goal():
                assert ours.goal is not None
                by = _times_over(ours)
                values = [value_text(each, ours.unit) for each in (ours.goal, ours.median)]
                off = f"{by:.2f} x" if math.isfinite(by) else "-"
                missed.append((by, [row.case, *values, off, *where]))
    if not lost:
        yield NOT_AHEAD
    else:
        yield AHEAD
        head = ["case", "ahead", "its figure", "hoplite_ray", "ahead by", "table", "commit"]
        yield _markdown(head, _farthest_first(lost))
    if missed:
        yield MISSED
        head = ["case", "goal", "hoplite_ray", "off by", "table", "commit"]
        yield _markdown(head, _farthest_first(missed))


def _times_over(figure: Figure) -> float:
    """How far a figure is from its goal, as a factor above 1; infinite from a goal of 0."""
    assert figure.goal is not None and figure.median is not None
    better, worse = sorted((figure.goal, figure.median))
    return worse / better if better else float("inf")


def _farthest_first(found: list[tuple[float, list[str]]]) -> list[list[str]]:
    return [cells for _, cells in sorted(found, key=lambda each: -each[0])]


def _part(part: Part) -> Iterator[str]:
    places = part.places
    yield f"## {part.table.title}\n\n{_where(part)}"
    if commands := _unique(place.command for place in places if place.command):
        yield "\n".join(["```text", *commands, "```\n"])
    yield _markdown(*_cells(part))
    if failures := list(_failures(part)):
        yield "\n".join([*failures, ""])
    for picture in part.pictures:
        yield f"![{part.table.title}](../pictures/{picture})\n"


def _where(part: Part) -> str:
    """Sentences on what was measured, where and when, one a line."""
    networks = _unique(place.network for place in part.places if place.network)
    machines = _unique(f"{place.machine}, Linux {place.kernel}" for place in part.places)
    days = _unique(place.day for place in part.places if place.day)
    has_command = any(place.command for place in part.places)
    lines = [part.table.question]
    if networks:
        lines.append(f"Network: {'; '.join(networks)}.")
    lines.append(f"Machine: {'; '.join(machines)}.")
    when = f", measured on {' and '.join(days)}" if days else "; date not recorded"
    lines.append(f"Commit: {_short(part.commit)}{when}.")
    if not has_command:
        lines.append("Command not recorded.")
    wrapped = ["\n".join(textwrap.wrap(line, COLUMNS_MAX)) for line in lines]
    return "\n".join(wrapped) + "\n"


def _cells(part: Part) -> tuple[list[str], list[list[str]]]:
    """The table's head and its rows, without empty columns and rows without any figure."""
    contenders = _unique(by for row in part.rows for by in row.figures)
    contenders.sort(key=lambda by: (by != OURS, not by.startswith(OURS)))
    head = ["case", "unit", "bound", "goal", OURS, "x bound"]
    head += [by for by in contenders if by != OURS]
    played = [row for row in part.rows if any(each.samples for each in row.figures.values())]
    rows = [_row_cells(part, row, head) for row in played]
    kept = [at for at in range(len(head)) if at == 0 or any(row[at] for row in rows)]
    return [head[at] for at in kept], [[row[at] for at in kept] for row in rows]


def _row_cells(part: Part, row: Row, head: Sequence[str]) -> list[str]:
    known = [each for each in row.figures.values() if each.median is not None]
    divisor, unit = scale_of([each.median for each in known if each.median], known[0].unit)
    ours, ahead = row.ours, row.ahead()
    cells = {"case": part.case_text(row), "unit": unit}
    if (bound := next((each.bound for each in known if each.bound), None)) is not None:
        cells["bound"] = number_text(bound / divisor)
    if ours is not None and ours.goal is not None:
        mark = " ✗" if ours.misses_its_goal() else ""
        cells["goal"] = number_text(ours.goal / divisor) + mark
    if ours is not None and ours.bound and ours.median:
        ratio = ours.median / ours.bound
        cells["x bound"] = f"{1 / ratio if ours.is_more_better else ratio:.2f}"
    for by, figure in row.figures.items():
        cell = _figure_cell(figure, divisor)
        cells[by] = f"**{cell}**" if figure in ahead else cell
    return [cells.get(name, "") for name in head]


def _figure_cell(figure: Figure, divisor: float) -> str:
    if figure.median is None:
        return "-"
    cell = number_text(figure.median / divisor)
    if len(figure.samples) == 1:
        return cell
    least, most = (number_text(f(figure.samples) / divisor) for f in (min, max))
    return f"{cell} ({least} to {most})"


def _failures(part: Part) -> Iterator[str]:
    """Each reason for a missing figure once, with the number of its rows."""
    reasons = Counter(
        f"{by}: {figure.failure}"
        for row in part.rows
        for by, figure in row.figures.items()
        if figure.failure
    )
    for reason, count in reasons.items():
        rows = "all rows" if count == len(part.rows) else f"{count} of {len(part.rows)} rows"
        item = f"- {rows} without {' '.join(reason.split())}"
        yield "\n".join(textwrap.wrap(item, COLUMNS_MAX, subsequent_indent="  "))


def _markdown(head: Sequence[str], rows: Iterable[Iterable[str]]) -> str:
    lines = [list(head), ["---"] * len(head), *(list(row) for row in rows)]
    escaped = [[cell.replace("|", "\\|") for cell in line] for line in lines]
    return "\n".join(f"| {' | '.join(line)} |" for line in escaped) + "\n"


def _link(table: Table) -> str:
    """A link to the table's heading, as the site's and GitHub's anchors are made."""
    kept = "".join(c for c in table.title.lower() if c.isalnum() or c in " -_")
    return f"[{table.title}](#{kept.replace(' ', '-')})"


def _short(commit: str) -> str:
    whole = commit.removesuffix(DIRTY)
    return whole[:SHORT_COMMIT] + commit[len(whole) :]


def _unique(items: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(items))
