"""The command line of `async_sgd.py`."""

from __future__ import annotations

import argparse
from typing import Any

from support.perceptron import Perceptron


def parse_options(description: str) -> dict[str, Any]:
    """Return the options of the main function, in the full size or the toy's."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--plain", action="store_true", help="over Ray's own object store only")
    parser.add_argument("--kill", action="store_true", help="a worker, every 5 s, with kill -9")
    parser.add_argument("--torch", action="store_true", help="tensors instead of numpy arrays")
    parser.add_argument("--toy", action="store_true", help="a small network on two nodes")
    parser.add_argument("--steps", type=int, help="of the server, for each run (default: 100)")
    parser.add_argument("--workers", type=int, default=8, help="(default: 8)")
    parser.add_argument("--nodes", type=int, help="of the Ray cluster, with the head (default: 4)")
    parser.add_argument("--seed", type=int, default=0, help="of data and parameters (default: 0)")
    options = parser.parse_args()
    hidden = 500 if options.toy else 3100  # units in each of two layers
    options.network = _network(options.torch, 64, hidden, hidden, 10)
    options.nodes = options.nodes or (2 if options.toy else 4)
    options.steps = options.steps or (250 if options.toy else 100)
    if options.workers < 2 or options.nodes < 1 or options.steps < 1:
        parser.error("at least two workers, one node and one step")
    del options.toy, options.torch
    return vars(options)


def _network(in_torch: bool, *widths: int) -> Any:
    if not in_torch:
        return Perceptron(*widths)
    try:
        from support.torch_perceptron import TorchPerceptron
    except ModuleNotFoundError as error:
        raise SystemExit(f"{error}: `make demo ARGS=--torch` installs it") from None
    return TorchPerceptron(*widths)
