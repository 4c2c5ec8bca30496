"""`make demo`: asynchronous SGD over hoplite_ray and over plain Ray, in turns, on a network.

    sudo .venv/bin/python benchmarks/demo.py

Eight Ray nodes, each in a network namespace with a full-duplex link of 500 Mbit/s; or four, where
memory is small. The parameter server is at the first node, and eight workers are on all nodes.
Where there can be no such network, it says why, and examples/async_sgd.py runs over loopback: there
both stores do the same work.

The model's size makes the network the bottleneck. A link carries B = 59.7 MB/s. A step takes in
four gradients of S bytes, and hands new parameters of S bytes to four workers. Plain Ray sends four
copies over the server's link each way, which takes 4 S/B. Trees send one: S/B. Two hidden layers of
2,200 units have 5.0 million parameters, so that S is 20 MB and S/B 0.34 s. Two cores have 0.67 core
seconds in that time, of which four gradients of 32 images take 0.08.
"""

from __future__ import annotations

import argparse
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import bounds
from network import Network
from peers.ray_cluster import RayCluster

from hoplite_ray.config import Memory

GIB = 1 << 30
PROGRAM = Path(__file__).parents[1] / "examples" / "async_sgd.py"
NODES = (8, 4)  # as many as memory allows
NODE_BYTES = 3 * GIB // 4  # of a Ray node with its workers, both stores in use
WORKERS, HIDDEN, BATCH, STORE_BYTES = 8, 2200, 32, GIB
NO_NETWORK = {"--kill", "--address"}  # these options are about something else
LIMIT_S = 180.0  # for all, unless the machine is busy
SECONDS = 30.0  # of training, for each store
END_S = 12.0  # from the end of the training to the end of all
WITHIN_MIN_S = 75.0  # for workers and training, where a busy machine has taken the time before
LATE_S = 45.0  # after which a training that should have ended is stopped
STOP_S = 10.0  # for the program to end by itself after Ctrl-C, and again after another one


class NoNetworkError(Exception):
    """There can be no emulated network; the text says why, and what to do about it."""


def main() -> int:
    began_s = time.monotonic()
    options, passed_on = parse_options()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, frame: sys.exit(128 + number))
    try:
        if options.place != "loopback":
            try:
                return over_network(options, passed_on, began_s)
            except NoNetworkError as error:
                print(f"No emulated network: {error}", flush=True)
                if options.place == "network":
                    return 1
                print("So it runs over loopback, where both stores do the same work.", flush=True)
        return over_loopback(options, passed_on)
    except KeyboardInterrupt:
        print("Stopped: nothing is left behind.")
        return 128 + signal.SIGINT
    except OSError as error:  # of a Ray node
        print(f"\n{error}")
        return 1


def parse_options() -> tuple[argparse.Namespace, list[str]]:
    """Return our options, and those of async_sgd.py."""
    parser = argparse.ArgumentParser(
        description="Asynchronous SGD over hoplite_ray and over plain Ray, in turns, on a network.",
        epilog="All other options are those of examples/async_sgd.py; --help there lists them.",
    )
    place = parser.add_mutually_exclusive_group()
    for name, words in (
        ("network", "on an emulated network, or not at all (default: there if it can be)"),
        ("loopback", "over this machine's loopback (default with --kill or --address)"),
    ):
        place.add_argument(f"--{name}", dest="place", action="store_const", const=name, help=words)
    parser.add_argument("--nodes", type=int, help="of the Ray cluster (default: 8 on a network)")
    parser.add_argument("--workers", type=int, help="on all nodes together (default: 8)")
    parser.add_argument("--rate-mbit", type=float, default=500, help="of each link (default: 500)")
    parser.add_argument("--seconds", type=float, help="of training, for each store (default: 30)")
    parser.add_argument("--toy", action="store_true", help="proves only that it runs")
    options, passed_on = parser.parse_known_args()
    if options.nodes is not None and options.nodes < 1:
        parser.error("--nodes: at least one")
    if options.workers is not None and options.workers < 2:
        parser.error("--workers: at least two")
    if not options.rate_mbit > 0 or not (options.seconds is None or options.seconds > 0):
        parser.error("--rate-mbit and --seconds: more than 0")
    if options.place is None and {word.partition("=")[0] for word in passed_on} & NO_NETWORK:
        options.place = "loopback"
    return options, passed_on


def over_loopback(options: argparse.Namespace, passed_on: list[str]) -> int:
    command = [sys.executable, str(PROGRAM), *passed_on]
    for name in ("nodes", "workers", "seconds"):
        if (value := getattr(options, name)) is not None:
            command += [f"--{name}", str(value)]
    command += ["--toy"] * options.toy
    return _play(command, dict(os.environ), None)


def over_network(options: argparse.Namespace, passed_on: list[str], began_s: float) -> int:
    """Lay the nodes into namespaces, have the program run at the first, and remove all.

    Raises:  NoNetworkError if there can be no such network.
    """
    nodes = options.nodes or (3 if options.toy else nodes_that_fit())
    workers = options.workers or (4 if options.toy else WORKERS)
    # The nodes' processes take it over: each of eight workers would have a thread for each core.
    os.environ |= {
        "OPENBLAS_NUM_THREADS": "1",
        "HOPLITE_RAY_LINK_MBIT": str(max(1, round(options.rate_mbit))),
    }
    with ExitStack() as stack:
        network = stack.enter_context(lay_network(nodes, options.rate_mbit))
        stack.callback(_ignore_signals)  # nothing interrupts the removal
        print(f"{network}, one Ray node at the end of each. Started:", end="", flush=True)
        cluster = RayCluster.start(
            network,
            store_bytes=STORE_BYTES,
            cpus=-(-workers // nodes),
            told=lambda rank: print(f" {rank + 1}", end="", flush=True),
        )
        used_s = time.monotonic() - began_s
        print(f", after {used_s:.0f} s. Now {workers} workers.", flush=True)
        within_s = max(WITHIN_MIN_S, LIMIT_S - END_S - used_s)
        arguments = {
            "--address": cluster.address,
            "--workers": str(workers),
            "--hidden": str(500 if options.toy else HIDDEN),
            "--batch": str(BATCH),
            "--seconds": str(options.seconds or (3.0 if options.toy else SECONDS)),
            "--within": f"{within_s:.0f}",
            "--link-bytes-per-s": str(bounds.payload_bytes_per_s(options.rate_mbit)),
        }
        words = [word for pair in arguments.items() for word in pair]
        command = [*network.within(0), sys.executable, str(PROGRAM), *words, *passed_on]
        status = _play(command, cluster.environment, within_s + LATE_S)
    took_s, command_again = time.monotonic() - began_s, again(options, nodes, passed_on)
    print(f"It took {took_s:.0f} s. Once more: {command_again}")
    return status


def nodes_that_fit() -> int:
    """Return the number of nodes for which there is memory.

    Raises:  NoNetworkError if there is too little for the fewest.
    """
    available_bytes = Memory.read().available_bytes
    for nodes in NODES:
        if nodes * NODE_BYTES <= available_bytes:
            return nodes
    raise NoNetworkError(
        f"{min(NODES)} Ray nodes need {min(NODES) * NODE_BYTES / GIB:.0f} GiB of memory, of which "
        f"{available_bytes / GIB:.1f} GiB are available. Free some, or ask for fewer --nodes."
    )


@contextmanager
def lay_network(nodes: int, rate_mbit: float) -> Iterator[Network]:
    """Lay the network, and remove it in the end.

    Raises:  NoNetworkError if this process can't lay it.
    """
    with ExitStack() as stack:
        try:
            network = stack.enter_context(Network(nodes, rate_mbit=rate_mbit))
        except OSError as error:
            if os.geteuid() != 0:
                command = shlex.join(["sudo", sys.executable, *sys.argv])
                step = f"Run it as root: {command}"
            elif isinstance(error, FileNotFoundError) or "not installed" in str(error):
                step = "Install it."
            else:
                step = "In a container, --privileged allows it."
            raise NoNetworkError(f"it {error}. {step}") from None
        yield network


def again(options: argparse.Namespace, nodes: int, passed_on: list[str]) -> str:
    """Return the command that shows the same once more."""
    words = ["--network", f"--nodes={nodes}", f"--rate-mbit={options.rate_mbit:g}", *passed_on]
    words += ["--toy"] * options.toy
    if options.seconds is not None:
        words.append(f"--seconds={options.seconds:g}")
    return f"make demo ARGS={shlex.quote(shlex.join(words))}"


def _play(command: list[str], environment: dict[str, str], limit_s: float | None) -> int:
    """Run the program, and return its exit status; end it in time, and at every signal."""
    with subprocess.Popen(command, env=environment) as program:
        try:
            return program.wait(limit_s)
        except subprocess.TimeoutExpired:
            print(f"The training has not ended within {limit_s:.0f} s. Is the machine busy?")
            return 1
        except KeyboardInterrupt:
            with suppress(subprocess.TimeoutExpired):
                program.wait(STOP_S)  # the terminal has sent it Ctrl-C, too
            raise
        finally:
            _stop(program)


def _stop(program: subprocess.Popen[bytes]) -> None:
    for number in (signal.SIGINT, signal.SIGKILL):
        if program.poll() is None:
            program.send_signal(number)
            with suppress(subprocess.TimeoutExpired):
                program.wait(STOP_S)


def _ignore_signals() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)


if __name__ == "__main__":
    sys.exit(main())
