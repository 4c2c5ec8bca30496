"""Arrivals over time, by source: as lines of text, and as an SVG if matplotlib is installed."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

PICTURES = Path(__file__).parents[2] / "build" / "examples"
STEPS = 30  # of the whole time
LOOK_S, LIMIT_S = 0.01, 60.0
BARS = " ▁▂▃▄▅▆▇█"


class Timeline:
    """Arrivals, and what happened meanwhile, in seconds since it was made."""

    def __init__(self) -> None:
        self._begun_s = time.monotonic()
        self._arrivals: dict[str, list[float]] = {}
        self._marks: list[tuple[float, str]] = []
        self._numbers: list[int] = []

    def arrived(self, source: str, number: int | None = None) -> None:
        """Count a message from `source`; `number` counts from 0 over all sources together."""
        self._arrivals.setdefault(source, []).append(self._now_s)
        if number is not None:
            self._numbers.append(number)

    def mark(self, text: str) -> None:
        """Print an event at once, and remember it for the picture."""
        self._marks.append((self._now_s, text))
        print(f"{self._now_s:6.2f} s  {text}", flush=True)

    async def arrivals(self, source: str, count: int) -> None:
        """Wait until `count` more messages have come from `source`."""
        arrivals = self._arrivals.setdefault(source, [])
        wanted = len(arrivals) + count
        end_s = time.monotonic() + LIMIT_S
        while len(arrivals) < wanted:
            if time.monotonic() > end_s:
                raise TimeoutError(f"{source} has brought {len(arrivals)} messages of {wanted}")
            await asyncio.sleep(LOOK_S)

    def show(self, title: str, name: str) -> int:
        """Print a bar for each step of time, and draw it; return how many numbers are missing."""
        end_s = self._now_s
        step_s = end_s / STEPS
        print(f"\n{title}, {end_s:.1f} s")
        for source, rates in self._rates(step_s).items():
            most = max(rates)
            bars = "".join(BARS[round(rate / most * (len(BARS) - 1))] for rate in rates)
            print(f"  {source:10} |{bars}| at most {most:,.0f}/s")
        under = [" "] * STEPS
        for at_s, _ in self._marks:
            under[min(STEPS - 1, int(at_s / step_s))] = "^"
        print(f"  {'':10}  {''.join(under)}")
        if picture := self._draw(title, name, step_s):
            print(f"drawn: {picture}")
        if not self._numbers:
            return 0
        numbers = {*self._numbers}
        lost = len({*range(max(numbers) + 1)} - numbers)
        twice = len(self._numbers) - len(numbers)
        print(f"{len(self._numbers)} messages: {lost} lost, {twice} came twice")
        return lost

    @property
    def _now_s(self) -> float:
        return time.monotonic() - self._begun_s

    def _rates(self, step_s: float) -> dict[str, list[float]]:
        """Messages a second in each step."""
        rates = {}
        for source, arrivals in self._arrivals.items():
            counts = [0] * STEPS
            for at_s in arrivals:
                counts[min(STEPS - 1, int(at_s / step_s))] += 1
            rates[source] = [count / step_s for count in counts]
        return rates

    def _draw(self, title: str, name: str, step_s: float) -> Path | None:
        try:
            from matplotlib.figure import Figure
        except ModuleNotFoundError:
            return None
        figure = Figure(figsize=(8, 3), layout="constrained")
        panel = figure.add_subplot()
        middles = [(step + 0.5) * step_s for step in range(STEPS)]
        for source, rates in self._rates(step_s).items():
            panel.plot(middles, rates, label=source)
        for at_s, text in self._marks:
            panel.axvline(at_s, color="k", ls=":", lw=1)
            panel.annotate(f" {text}", (at_s, 0), rotation=90, va="bottom", ha="right", fontsize=7)
        panel.set(title=title, xlabel="s", ylabel="messages/s", ylim=(0, None))
        panel.legend(loc="upper right")
        PICTURES.mkdir(parents=True, exist_ok=True)
        picture = PICTURES / f"{name}.svg"
        figure.savefig(picture)
        return picture
