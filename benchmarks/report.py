"""Draws what the benchmarks print with --json, as SVG, and writes the page of results from it.

    sudo .venv/bin/python benchmarks/collectives.py --json | tee collectives.jsonl
    python benchmarks/report.py collectives.jsonl

Pictures show the lines of collectives.py, training.py and canonical.py; the tables between them are
no JSON and are skipped. Without files it draws those of docs/measured/ into docs/pictures/, and
writes docs/explain/results.md from all of them, so that both can be made again. Equal lines give
equal files, byte by byte, with one version of matplotlib. If two lines are for one bar or point,
the later one counts. A peer that failed, or is not installed, is named below the picture.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import results_page
from records import Canonical, Latency, Line, RecordError, Rounds, read, size_text

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/explain/results.md"
COLOURS = {
    "hoplite": "#d1495b",
    "hoplite, through Ray": "#e8919c",
    "openmpi": "#30638e",
    "openmpi tuned": "#7fa8d1",
    "gloo": "#edae49",
    "ray": "#66a182",
    "ray tree": "#a9cdbb",
}
OTHER_COLOURS = ("#8d6a9f", "#5d737e", "#a44a3f", "#3f7d20")
PANELS_PER_ROW = 3
PANEL_INCHES = (4.2, 3.2)
BAR_INCHES = 0.22
RATIO_LEFT = 0.8  # where the bars of a logarithmic axis begin
RATIO_TICKS = (1, 2, 5, 10, 20, 50, 100, 200, 500)


def pictures(records: Sequence[Line]) -> dict[str, Any]:
    """Return a matplotlib Figure for each picture, by file name."""
    return {name: draw() for name, draw in drawings(records).items()}


def drawings(records: Sequence[Line]) -> dict[str, Callable[[], Any]]:
    """Return what draws each picture, by file name."""
    drawn: dict[str, Callable[[], Any]] = {}
    latencies = [each for each in records if isinstance(each, Latency)]
    rounds = [each for each in records if isinstance(each, Rounds)]
    for network in _unique(each.place.network for each in latencies):
        here = [each for each in latencies if each.place.network == network]
        sizes = {each.title: set[int]() for each in here}
        for each in here:
            sizes[each.title].add(each.size_bytes)
        curves = [each for each in here if len(sizes[each.title]) > 1]
        single = [each for each in here if len(sizes[each.title]) == 1]
        if curves:
            drawn[f"collectives-{_slug(network)}.svg"] = partial(_curves, curves)
        if single:
            drawn[f"cases-{_slug(network)}.svg"] = partial(_cases, single)
    for network in _unique(each.place.network for each in rounds):
        here_too = [each for each in rounds if each.place.network == network]
        drawn[f"training-{_slug(network)}.svg"] = partial(_applications, here_too)
    if canonical := [each for each in records if isinstance(each, Canonical)]:
        drawn["canonical.svg"] = partial(_canonical, canonical)
    return drawn


def measured() -> list[Path]:
    """The files of lines that are kept."""
    return sorted((ROOT / "docs/measured").glob("*.jsonl"))


def page(files: Sequence[Path]) -> str:
    """The page of results from these files, each of which has the name of its table.

    Raises: RecordError for a file or a line that can't be read, and as `results_page.page` does.
    """
    lines = {file.stem: read({str(file): _text(file)}) for file in files}
    return results_page.page(lines, {name: [*drawings(each)] for name, each in lines.items()})


def save(drawn: Mapping[str, Any], folder: Path) -> list[Path]:
    """Write the pictures into a folder and return their paths."""
    from matplotlib import rc_context

    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, figure in drawn.items():
        written.append(folder / name)
        # No date, no version, no random ids: a picture changes only when its lines do.
        with rc_context({"svg.hashsalt": "hoplite_ray", "svg.fonttype": "none"}):
            figure.savefig(written[-1], metadata={"Date": None, "Creator": None})
    return written


def main() -> int:
    options = parse_options()
    try:
        if not options.files:
            options.files = measured()
            written = page(options.files)
            if not options.toy:
                PAGE.write_text(written)
                print(PAGE)
        records = read({str(file): _text(file) for file in options.files})
        drawn = pictures(records)
    except RecordError as error:
        print(error, file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory() as scratch:
        for path in save(drawn, Path(scratch) if options.toy else options.into):
            print(f"{path.name} in {'a folder that goes again' if options.toy else path.parent}")
    return 0


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("files", nargs="*", type=Path, help="lines of JSON; none: docs/measured")
    parser.add_argument("--into", type=Path, default=ROOT / "docs/pictures")
    parser.add_argument("--toy", action="store_true", help="proves only that it runs")
    return parser.parse_args()


def _text(file: Path) -> str:
    try:
        return file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise RecordError(f"{file}: can't be read: {error}") from error


def _curves(records: Sequence[Latency]) -> Any:
    """A panel for each collective: seconds over size, a line for each peer, the bound dashed."""
    titles = _unique(each.title for each in records)
    figure, panels = _figure(titles)
    colours = _colours(records)
    for panel, title in zip(panels, titles, strict=True):
        here = [each for each in records if each.title == title]
        bounds = dict(sorted((each.size_bytes, each.bound_s) for each in here))
        panel.plot(list(bounds), list(bounds.values()), "k--", lw=1, label="bound")
        for peer, colour in colours.items():
            line = {e.size_bytes: e.seconds for e in here if e.peer == peer and e.seconds}
            sizes = sorted(line)
            if not sizes:
                continue
            medians = [statistics.median(line[size]) for size in sizes]
            panel.plot(sizes, medians, "o-", color=colour, lw=1.5, ms=4, label=peer)
            least, most = ([f(line[size]) for size in sizes] for f in (min, max))
            panel.fill_between(sizes, least, most, color=colour, alpha=0.15, lw=0)
        panel.set_title(title)
        panel.set_xscale("log", base=2)
        panel.set_yscale("log")
        panel.set_xticks(list(bounds), [size_text(size) for size in bounds], fontsize=7)
        panel.set_ylabel("s, median; shaded: least to most", fontsize=7)
        panel.grid(alpha=0.3)
    _finish(figure, panels, records)
    return figure


def _cases(records: Sequence[Latency]) -> Any:
    """Cases that have one size each: bars of times the bound, a bar for each peer."""
    names = _unique(f"{each.title}, {size_text(each.size_bytes)}" for each in records)
    colours = _colours(records)
    height = 1.5 + BAR_INCHES * len(names) * (len(colours) + 1)
    figure, (panel,) = _figure([""], inches=(8.0, height))
    for index, (peer, colour) in enumerate(colours.items()):
        for row, name in enumerate(names):
            for each in records:
                of_this = f"{each.title}, {size_text(each.size_bytes)}" == name
                if not of_this or each.peer != peer or not each.seconds:
                    continue
                ratio = statistics.median(each.seconds) / each.bound_s
                at = row * (len(colours) + 1) + index
                panel.barh(at, ratio, color=colour, label=peer)
                panel.annotate(f" {ratio:.2f}", (ratio, at), va="center", fontsize=7)
    middles = [row * (len(colours) + 1) + (len(colours) - 1) / 2 for row in range(len(names))]
    panel.set_yticks(middles, names, fontsize=8)
    panel.margins(x=0.08, y=0.02)
    panel.invert_yaxis()
    panel.set_xscale("log")
    ratios = [statistics.median(each.seconds) / each.bound_s for each in records if each.seconds]
    ticks = [tick for tick in RATIO_TICKS if tick <= max([2.0, *ratios])]
    panel.set_xticks(ticks, [str(tick) for tick in ticks], minor=False)
    panel.set_xticks([], minor=True)
    panel.set_xlim(left=RATIO_LEFT)
    panel.axvline(1, color="k", ls="--", lw=1, label="bound")
    panel.set_xlabel("median, times the bound")
    _finish(figure, [panel], records)
    return figure


def _applications(records: Sequence[Rounds]) -> Any:
    """A panel for each application: rounds per second, by model size, a bar for each peer."""
    titles = _unique(each.application for each in records)
    figure, panels = _figure(titles)
    for panel, title in zip(panels, titles, strict=True):
        here = [each for each in records if each.application == title]
        colours = _colours(here)
        width = 0.8 / len(colours)
        models = sorted({each.parameters for each in here})
        for index, (peer, colour) in enumerate(colours.items()):
            for each in here:
                if each.peer != peer or not each.seconds:
                    continue
                at = models.index(each.parameters) + (index - (len(colours) - 1) / 2) * width
                rate = 1 / statistics.median(each.seconds)
                panel.bar(at, rate, width * 0.92, color=colour, label=peer)
                panel.annotate(f"{rate:.2f}", (at, rate), ha="center", va="bottom", fontsize=7)
        panel.set_title(title)
        panel.set_xticks(range(len(models)), [f"{model / 1e6:.3g} M" for model in models])
        panel.set_xlabel("float32 parameters", fontsize=8)
        panel.set_ylabel("rounds/s, of the median round", fontsize=8)
    _finish(figure, panels, records)
    return figure


def _canonical(records: Sequence[Canonical]) -> Any:
    """The two numbers, commit by commit."""
    panels: list[Any]
    figure, panels = _figure(["broadcast goodput, share of the bound", "small get p99, us"])
    values: list[Callable[[Canonical], float]] = [
        lambda each: each.goodput_share,
        lambda each: each.small_get_p99_s * 1e6,
    ]
    commits = [each.place.commit for each in records]
    for panel, value in zip(panels, values, strict=True):
        panel.plot(
            range(len(records)), [value(each) for each in records], "o-", color=COLOURS["hoplite"]
        )
        panel.set_xticks(range(len(records)), commits, rotation=45, ha="right", fontsize=6)
        panel.set_ylim(bottom=0)
    _finish(figure, panels, records)
    return figure


def _figure(titles: Sequence[str], inches: tuple[float, float] = PANEL_INCHES) -> tuple[Any, Any]:
    """A figure with a panel for each title, in rows."""
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise RecordError(f"{error}: pip install '.[benchmarks]' brings what draws") from None
    columns = min(len(titles), PANELS_PER_ROW)
    rows = -(-len(titles) // columns)
    figure = Figure(figsize=(inches[0] * columns, inches[1] * rows + 0.5), layout="constrained")
    panels = [figure.add_subplot(rows, columns, index + 1) for index in range(len(titles))]
    for panel, title in zip(panels, titles, strict=True):
        panel.set_title(title)
    return figure, panels


def _finish(figure: Any, panels: Sequence[Any], records: Sequence[Line]) -> None:
    """Add what all panels share: the network, the legend, the machine, and the failures."""
    handles: dict[str, Any] = {}
    for panel in panels:
        for handle, label in zip(*panel.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    if handles:
        figure.legend(handles.values(), handles, loc="outside upper right", ncols=6, fontsize=8)
    places = [each.place for each in records]
    if places[0].network:
        figure.suptitle(places[0].network, x=0.01, ha="left", fontsize=10)
    words = _unique([*(each.machine for each in places), *(each.commit for each in places)])
    failures = _unique(
        f"{each.peer}: {each.failure}"
        for each in records
        if not isinstance(each, Canonical) and each.failure
    )
    figure.supxlabel("\n".join(["; ".join(words), *failures]), fontsize=6)


def _colours(records: Sequence[Latency] | Sequence[Rounds]) -> dict[str, str]:
    """A colour for each peer, ours first; the same in every picture for those that are known."""
    peers = _unique(each.peer for each in records)
    known = [peer for peer in COLOURS if peer in peers]
    others = [peer for peer in peers if peer not in COLOURS]
    colours = {peer: COLOURS[peer] for peer in known}
    for index, peer in enumerate(others):
        colours[peer] = OTHER_COLOURS[index % len(OTHER_COLOURS)]
    return colours


def _unique(items: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(items))


def _slug(network: str) -> str:
    """`8 nodes x 500 Mbit/s` as `8x500`."""
    nodes, _, _, rate, _ = network.split(" ")
    return f"{nodes}x{rate}"


if __name__ == "__main__":
    sys.exit(main())
