"""The command line of `async_sgd.py`."""

from __future__ import annotations

import argparse
import math
import re
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import repeat
from typing import Any

from support.perceptron import Perceptron

TAKEN_OVER = ("plain", "kill", "address", "nodes", "workers", "batch", "link_bytes_per_s", "seed")


@dataclass(frozen=True, slots=True)
class Budget:
    """How long each run trains, whichever is over first, and how well it must read in the end."""

    steps: float
    seconds: float
    end_s: float  # of all runs, by time.monotonic()
    accuracy_min: float  # on images that no worker sees


@dataclass(frozen=True, slots=True)
class Options:
    """The arguments of `main`."""

    network: Any  # a Perceptron, or a TorchPerceptron
    budget: Budget
    rates: Callable[[], Iterable[float]]  # of learning, at each step
    plain: bool
    kill: bool
    address: str | None
    nodes: int
    workers: int
    batch: int
    link_bytes_per_s: float | None
    seed: int


def parse_options(description: str) -> Options:
    """Return the options, in the full size or the toy's."""
    sys.excepthook = _short_at_ctrl_c
    parser = _parser(description)
    asked = parser.parse_args()
    _complete(parser, asked)
    return Options(
        network=_network(asked.torch, 64, asked.hidden, asked.hidden, 10),
        budget=_budget(asked),
        rates=_rates(asked),
        **{name: getattr(asked, name) for name in TAKEN_OVER},
    )


def _parser(description: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=description)
    add = parser.add_argument
    add("--plain", action="store_true", help="over Ray's own object store only")
    add("--kill", action="store_true", help="a worker, every 5 s, with kill -9")
    add("--torch", action="store_true", help="tensors instead of numpy arrays")
    add("--toy", action="store_true", help="a small network on two nodes")
    add("--steps", type=int, help="of the server, for each run (default: 100)")
    add("--seconds", type=float, help="for each run, instead of --steps")
    add("--within", type=float, help="seconds from now: the end of the training with --seconds")
    add("--workers", type=int, default=8, help="(default: 8)")
    add("--nodes", type=int, help="of the Ray cluster, with the head (default: 4)")
    add("--address", help="of the head of a Ray cluster to use, ADDRESS:PORT, instead of --nodes")
    add("--hidden", type=int, help="units in each of two layers (default: 3100)")
    add("--batch", type=int, default=64, help="images for a gradient (default: 64)")
    add("--link-bytes-per-s", type=float, help="what a node's link carries, for the table's bound")
    add("--seed", type=int, default=0, help="of data and parameters (default: 0)")
    return parser


def _complete(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    options.hidden = options.hidden or (500 if options.toy else 3100)
    options.nodes = options.nodes or (2 if options.toy else 4)
    if options.seconds is None:
        options.steps = options.steps or (250 if options.toy else 100)
    if options.workers < 2 or options.nodes < 1 or options.hidden < 1 or options.batch < 1:
        parser.error("at least two workers, one node, one unit and one image")
    if (options.steps or 1) < 1 or not (options.seconds or 1) > 0 or not (options.within or 1) > 0:
        parser.error("at least one step, and more than no seconds")
    if options.within is not None and options.seconds is None:
        parser.error("--within: only with --seconds")
    if options.address and not re.fullmatch(r"[\w.-]+:\d+", options.address):
        parser.error(
            f"--address {options.address}: give ADDRESS:PORT, as `ray start --head` prints it"
        )


def _budget(options: argparse.Namespace) -> Budget:
    if options.seconds is None:
        return Budget(options.steps, math.inf, math.inf, accuracy_min=0.95)
    end_s = time.monotonic() + (options.within or math.inf)
    return Budget(options.steps or math.inf, options.seconds, end_s, accuracy_min=0.3)


def _rates(options: argparse.Namespace) -> Callable[[], Iterable[float]]:
    """Return learning rates that fall to 0, or a small one where the last step is not known."""
    if options.seconds is not None:
        return lambda: repeat(0.01)
    steps = options.steps
    return lambda: (0.1 * (1 - step / steps) for step in range(steps))


def _network(in_torch: bool, *widths: int) -> Any:
    if not in_torch:
        return Perceptron(*widths)
    try:
        from support.torch_perceptron import TorchPerceptron
    except ModuleNotFoundError as error:
        raise SystemExit(f"{error}: `make demo ARGS=--torch` installs it") from None
    return TorchPerceptron(*widths)


def _short_at_ctrl_c(kind: type[BaseException], error: BaseException, trace: Any) -> None:
    if issubclass(kind, KeyboardInterrupt):
        print("stopped by Ctrl-C", file=sys.stderr)
    else:
        sys.__excepthook__(kind, error, trace)
