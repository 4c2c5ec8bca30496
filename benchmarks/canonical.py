"""The canonical benchmark: broadcast goodput as a share of its bound, p99 of a small remote get.

Nodes on this machine's loopback, no Ray. The bound of a broadcast is size / bandwidth, where the
bandwidth is that of one plain TCP stream in the same run. Everything else is a flag.
"""

from __future__ import annotations

import argparse
import json
import socket
import statistics
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import numpy as np
from meters import machine

from hoplite_ray import Store, new_id
from hoplite_ray.launch import NodeProcess

TCP_PROBE_BYTES = 256 << 20
TCP_WRITE_BYTES = 1 << 20
TIMEOUT_S = 60.0


def main() -> None:
    options = parse_options()
    with ExitStack() as stack:
        stores = start_nodes(stack, options)
        before = tcp_bytes_per_s(options.probe_bytes)
        rounds = [broadcast_s(stores, options.size_bytes) for _ in range(options.rounds + 1)][1:]
        latencies = [small_get_s(stores) for _ in range(options.small_gets)]
        bandwidth = statistics.median([before, tcp_bytes_per_s(options.probe_bytes)])
    bound_s = options.size_bytes / bandwidth
    share = bound_s / statistics.median(rounds)
    p99_s = float(np.percentile(latencies, 99))
    print(f"broadcast goodput  {share:7.2f} of the bound ({bandwidth / 1e9:.2f} GB/s, one stream)")
    print(f"small get p99      {p99_s * 1e6:7.0f} us")
    if options.json:
        print(json.dumps(record(options, rounds, bandwidth, share, p99_s)))


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--size-bytes", type=int, default=128 << 20)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--small-gets", type=int, default=1000)
    parser.add_argument("--probe-bytes", type=int, default=TCP_PROBE_BYTES)
    parser.add_argument(
        "--json", action="store_true", help="add one line with all that was measured"
    )
    parser.add_argument(
        "--toy", action="store_true", help="seconds, for the gate: proves that it runs"
    )
    options = parser.parse_args()
    if options.toy:
        options.nodes, options.rounds, options.small_gets = 3, 1, 20
        options.size_bytes = options.probe_bytes = 4 << 20
    return options


def start_nodes(stack: ExitStack, options: argparse.Namespace) -> list[Store]:
    """One store per node; the later nodes join the first."""
    arena_bytes = 4 * options.size_bytes + (64 << 20)
    stores: list[Store] = []
    first: NodeProcess | None = None
    for _ in range(options.nodes):
        node = NodeProcess.start(beside=first, arena_bytes=arena_bytes)
        stack.callback(node.stop)
        first = first or node
        stores.append(stack.enter_context(Store.attach(node.socket)))
    return stores


def broadcast_s(stores: list[Store], size_bytes: int) -> float:
    """From put's return at the first node until every other node holds the object."""
    object_id = new_id()
    array = np.frombuffer(np.random.default_rng(0).bytes(size_bytes), np.uint8)
    stores[0].put(object_id, array)
    with ThreadPoolExecutor(len(stores)) as executor:
        started = time.perf_counter()
        gets = [executor.submit(store.get, object_id, timeout_s=TIMEOUT_S) for store in stores[1:]]
        received = [get.result() for get in gets]
        elapsed = time.perf_counter() - started
    assert all(np.array_equal(copy, array) for copy in received)
    del received, gets
    stores[0].delete(object_id)
    return elapsed


def small_get_s(stores: list[Store]) -> float:
    object_id = new_id()
    stores[0].put(object_id, np.zeros(128, np.float64))
    started = time.perf_counter()
    stores[-1].get(object_id, timeout_s=TIMEOUT_S)
    elapsed = time.perf_counter() - started
    stores[0].delete(object_id)
    return elapsed


def tcp_bytes_per_s(size_bytes: int) -> float:
    """Return the rate of one plain stream between two threads: the broadcast's bound."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        sender = threading.Thread(target=_send, args=(listener.getsockname(), size_bytes))
        sender.start()
        connection, _ = listener.accept()
        with connection:
            elapsed = _timed(lambda: _receive(connection, size_bytes))
        sender.join()
    return size_bytes / elapsed


def _send(address: tuple[str, int], size_bytes: int) -> None:
    payload = bytes(TCP_WRITE_BYTES)
    with socket.create_connection(address) as connection:
        for _ in range(size_bytes // len(payload)):
            connection.sendall(payload)


def _receive(connection: socket.socket, size_bytes: int) -> None:
    buffer = bytearray(TCP_WRITE_BYTES)
    received = 0
    while received < size_bytes:
        received += connection.recv_into(buffer)


def _timed(deed: Callable[[], None]) -> float:
    started = time.perf_counter()
    deed()
    return time.perf_counter() - started


def record(
    options: argparse.Namespace,
    rounds: list[float],
    bandwidth: float,
    share: float,
    small_get_p99_s: float,
) -> dict[str, object]:
    return {
        "benchmark": "canonical",
        **machine(),
        "nodes": options.nodes,
        "size_bytes": options.size_bytes,
        "broadcast_s": rounds,
        "bandwidth_bytes_per_s": bandwidth,
        "goodput_share": share,
        "small_get_p99_s": small_get_p99_s,
    }


if __name__ == "__main__":
    main()
