"""The display of `async_sgd.py`: a rate for each run while they take turns, then a table."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from itertools import product
from statistics import median
from time import perf_counter
from typing import Any

import ray
from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text
from support.options import Options
from support.trees import Trees

TURNS = 6  # for each run, so that other load on the machine meets all runs alike
TRAINING_SHARE = 0.85  # of the time until the end; a step that has begun goes on beyond its turn
FINISH_S = 60.0  # for the gradients that are under way when a turn ends
BAR, REDRAWS_PER_S = 24, 4

Judge = Callable[[Any], tuple[float, float]]  # loss and accuracy of parameters


class Run:
    """One training. `trained` yields, after each step, its parameters and the refs under way."""

    def __init__(self, name: str, trained: Generator[Any]) -> None:
        self.name, self.trained = name, trained
        self.params: Any = None
        self.loss = self.accuracy = float("nan")
        self.seconds: list[float] = []  # of each step
        self._finishes_s = 0.0  # of all turns' ends

    @property
    def used_s(self) -> float:
        return sum(self.seconds) + self._finishes_s

    def train(self, steps: float, seconds: float) -> None:
        """Go on until one of both is used; then let the workers finish.

        So no run leaves bytes on the links for the next one, and each pays for all it has begun.
        """
        under_way: list[Any] = []
        while len(self.seconds) < steps and self.used_s < seconds:
            started = perf_counter()
            self.params, under_way = next(self.trained)
            self.seconds.append(perf_counter() - started)
        if under_way:
            started = perf_counter()
            ray.wait(under_way, num_returns=len(under_way), timeout=FINISH_S, fetch_local=False)
            self._finishes_s += perf_counter() - started

    def gradients_per_s(self, count: int) -> float:
        """Return the rate without the first step, which starts things; 0 before there is one."""
        steps, seconds = len(self.seconds) - 1, self.used_s - sum(self.seconds[:1])
        return count * steps / seconds if steps > 0 else 0.0

    def figures(self, count: int) -> list[str]:
        """Return ms, gradients/s, MB/s, loss and accuracy.

        The MB are those of the gradients taken in, and of the parameters handed out for them.
        """
        rate = self.gradients_per_s(count)
        return [
            f"{median(self.seconds[1:] or self.seconds) * 1e3:.0f}",
            f"{rate:.1f}",
            f"{2 * self.params.nbytes * rate / 1e6:.0f}",
            f"{self.loss:.2f}",
            f"{self.accuracy:.4f}",
        ]

    def line(self) -> str:
        learnt = f", loss {self.loss:.2f}, accuracy {self.accuracy:.2f}"
        text = f"step {len(self.seconds)}, {self.used_s:.0f} s"
        return text + ("" if self.params is None else learnt)


def compare(runs: list[Run], options: Options, address: str, judge: Judge) -> bool:
    """Let the runs take turns until the budget of each is used; show how it goes, then a table.

    The trees that are drawn are of the Ray cluster at `address`. Returns whether all have learnt
    to read.
    """
    with Trees(address) as trees:
        comparison = Comparison(runs, options, trees)
        comparison.play(judge)
    print(comparison.result(options.link_bytes_per_s), flush=True)
    return all(run.accuracy >= options.budget.accuracy_min for run in runs)


class Comparison:
    """Runs that take turns; `trees` are drawn beside their rates."""

    def __init__(self, runs: list[Run], options: Options, trees: Trees) -> None:
        self._runs, self._budget, self._trees = runs, options.budget, trees
        self._count = options.workers // 2  # gradients in a step
        self._turn_of: Run | None = None

    def play(self, judge: Judge) -> None:
        """Let the runs take turns until the budget of each is used."""
        console = Console()
        if console.is_terminal:
            with Live(
                get_renderable=self.picture, console=console, refresh_per_second=REDRAWS_PER_S
            ):
                self._play(judge, lambda line: None)
        else:
            self._play(judge, lambda line: print(line, flush=True))
            for title, lines in self._trees.drawn.items():
                print("\n".join([f"{title}, the last that were seen:", *lines]), flush=True)

    def _play(self, judge: Judge, told: Callable[[str], None]) -> None:
        most_s = (self._budget.end_s - time.monotonic()) * TRAINING_SHARE / len(self._runs)
        seconds = max(0.1, min(self._budget.seconds, most_s))
        for turn, run in product(range(1, TURNS + 1), self._runs):
            if run.seconds and time.monotonic() > self._budget.end_s:
                break
            self._turn_of = run
            run.train(turn / TURNS * self._budget.steps, turn / TURNS * seconds)
            run.loss, run.accuracy = judge(run.params)  # outside of the measured time
            rate = run.gradients_per_s(self._count)
            told(f"{run.name}: {rate:.1f} gradients/s, {run.line()}")
        for run in self._runs:
            run.trained.close()  # it holds references

    def picture(self) -> Table:
        """Return the rates, and the trees beside them."""
        rates = [run.gradients_per_s(self._count) for run in self._runs]
        left = Table.grid(padding=(0, 1))
        for run, rate in zip(self._runs, rates, strict=True):
            bar = ProgressBar(total=max(*rates, 1e-9), completed=rate, width=BAR)
            style = "bold" if run is self._turn_of else ""
            left.add_row(Text(run.name, style), bar)
            left.add_row("", Text(f"{rate:.1f} gradients/s", style))
            left.add_row("", run.line())
        right = Group(
            *(
                Text("\n".join([title, *lines]), no_wrap=True, overflow="crop")
                for title, lines in self._trees.drawn.items()
            )
        )
        beside = Table.grid(padding=(0, 2))
        beside.add_row(left, right)
        return beside

    def result(self, link_bytes_per_s: float | None) -> str:
        """Return a table of all figures, with what the links allow if that is known; the ratio."""
        heads = ("ms a step (median)", "gradients/s", "MB/s moved", "test loss", "test accuracy")
        table = Table("", *heads)
        for run in self._runs:
            table.add_row(run.name, *run.figures(self._count))
        if link_bytes_per_s is not None:
            # The sum of a step crosses the server's link once, and so do the parameters.
            step_s = self._runs[0].params.nbytes / link_bytes_per_s
            rate, moved = self._count / step_s, 2 * self._count * link_bytes_per_s
            figures = f"{step_s * 1e3:.0f}", f"{rate:.1f}", f"{moved / 1e6:.0f}"
            table.add_row("the links allow", *figures)
        console = Console()
        with console.capture() as drawn:
            console.print(table)
        return drawn.get() + self._ratio()

    def _ratio(self) -> str:
        if len(self._runs) < 2:
            return ""
        ours, other = self._runs
        rates = [run.gradients_per_s(self._count) for run in self._runs]
        if not all(rates):
            return "There was no time for two steps of each, so there is no ratio"
        ratio = f"{rates[0] / rates[1]:.1f} x"
        return f"{ours.name} took in {ratio} as many gradients per second as {other.name}"
