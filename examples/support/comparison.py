"""The display of `async_sgd.py`: a bar for each run while they take turns, then a table."""

from __future__ import annotations

from collections.abc import Callable, Generator
from statistics import median
from time import perf_counter
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Table

ACCURACY_MIN = 0.95  # on images that no worker sees
TURNS = 10  # for each run, so that other load on the machine meets all runs alike


class Run:
    """One training. `trained` yields the parameters after each of `steps` steps."""

    def __init__(self, name: str, trained: Generator[Any], steps: int) -> None:
        self.name, self.trained, self.steps = name, trained, steps
        self.params: Any = None
        self.accuracy = float("nan")
        self.seconds: list[float] = []  # of each step

    def step(self) -> None:
        started = perf_counter()
        self.params = next(self.trained)
        self.seconds.append(perf_counter() - started)

    def figures(self, count: int) -> list[str]:
        """Return ms, gradients/s, MB/s and accuracy, without the first step, which starts things.

        The MB are those of the gradients taken in, and of the parameters handed out for them.
        """
        seconds = self.seconds[1:] or self.seconds
        gradients_per_s = count * len(seconds) / sum(seconds)
        return [
            f"{median(seconds) * 1e3:.0f}",
            f"{gradients_per_s:.1f}",
            f"{2 * self.params.nbytes * gradients_per_s / 1e6:.0f}",
            f"{self.accuracy:.4f}",
        ]

    def line(self, count: int) -> str:
        return ": {1} gradients/s, {2} MB/s, accuracy {3}".format(*self.figures(count))


def compare(runs: list[Run], count: int, accuracy: Callable[[Any], float]) -> bool:
    """Let the runs take turns until each has done its steps; show how it goes, then a table.

    Returns whether all have learnt to read.
    """
    console = Console()
    line = "step {task.completed} of {task.total}{task.fields[figures]}"
    columns = TextColumn("{task.description}"), BarColumn(), TextColumn(line)
    with Progress(*columns, console=console) as progress:
        bars = [progress.add_task(run.name, total=run.steps, figures="") for run in runs]
        while not progress.finished:
            for run, bar in zip(runs, bars, strict=True):
                for _ in range(min(-(-run.steps // TURNS), run.steps - len(run.seconds))):
                    run.step()
                    progress.update(bar, completed=len(run.seconds), figures=run.line(count))
                run.accuracy = accuracy(run.params)  # outside of the measured time
                progress.update(bar, figures=run.line(count))
                if not console.is_terminal:
                    console.print(f"{run.name}, step {len(run.seconds)}{run.line(count)}")
    for run in runs:
        run.trained.close()  # it holds references
    table = Table("", "ms a step (median)", "gradients/s", "MB/s moved", "test accuracy")
    for run in runs:
        table.add_row(run.name, *run.figures(count))
    console.print(table)
    return all(run.accuracy >= ACCURACY_MIN for run in runs)
