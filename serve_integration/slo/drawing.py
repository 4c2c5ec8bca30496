"""Curves of plans, drawn with matplotlib: latencies above, misses below, over a growing rate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hoplite_ray.serve.slo.objective import SLO, Prediction

_INCHES = (6.4, 5.6)
_HEIGHT = 2.5  # of the latencies' axis, times the longest latency that is promised


def draw_curves(
    curves: Mapping[str, tuple[SLO, Sequence[Prediction]]],
    places: Sequence[float],
    *,
    axis: str,
    promised_at: float,
    title: str,
    path: str | Path | None,
) -> Any:
    """Draw the predictions of pipelines, each with what it promises; returns the figure.

    curves:       by pipeline, its objective and a prediction for each place; "" is the only one.
    places:       on the axis.
    axis:         what the places are.
    promised_at:  the place of the objectives' rates.
    path:         of a file to write the figure to; None: no file.

    Raises:  ImportError without matplotlib.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("plot() needs matplotlib: pip install matplotlib") from error
    figure = Figure(figsize=_INCHES, layout="constrained")
    above, below = figure.subplots(2, sharex=True)
    for number, (name, (slo, points)) in enumerate(curves.items()):
        # Colours of one pipeline tell p50 from p99; those of several tell the pipelines apart.
        colours = ("C0", "C1", "black") if len(curves) == 1 else (f"C{number}",) * 3
        before = f"{name} " if name else ""
        for share, colour, dashes in (("p50", colours[0], ":"), ("p99", colours[1], "-")):
            latencies_ms = [1000 * getattr(each, f"{share}_s") for each in points]
            style = {"color": colour, "linestyle": dashes if name else "-"}
            label = f"{before}{share}"
            above.plot(places, latencies_ms, marker="o", markersize=3, label=label, **style)
        limit = {"color": colours[2], "linewidth": 0.8}
        above.axhline(1000 * slo.latency_s, label=f"{before}promised", **limit)
        misses = [100 * each.miss for each in points]
        below.plot(places, misses, marker="o", markersize=3, color=colours[0])
        below.axhline(100 * slo.miss, **limit)
    highest_ms = 1000 * max(slo.latency_s for slo, _ in curves.values())
    above.set(ylabel="ms", ylim=(0, _HEIGHT * highest_ms), title=title)
    above.legend()
    below.axvline(promised_at, color="black", linewidth=0.8, linestyle=":")
    below.set(xlabel=axis, ylabel="misses, %", ylim=(0, 100))
    if path is not None:
        figure.savefig(path)
    return figure
