"""Leaves of one value at many readers: when the first, each and the last one is usable everywhere.

    sudo .venv/bin/python benchmarks/stream.py
    sudo .venv/bin/python benchmarks/stream.py --only file --file-mib 256

layers  one origin and readers that wait. The origin puts a model of equal layers, and each reader
        streams it. The time of a layer is from the put's begin until the last reader has it. The
        bound is the time of all bytes up to the layer's end over one link.
file    the origin opens a .safetensors file, and each reader streams its tensors. The origin reads
        each byte once. The bound is the time of all bytes over one link.

Every node has a link of its own, and no Ray. The readers are threads of the benchmark's process,
each attached to its node. Needs root, for network namespaces.
"""

from __future__ import annotations

import argparse
import json
import struct
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import bounds
import numpy as np
from cluster import Cluster, why_impossible
from figures import Figure, print_figures
from meters import machine

from hoplite_ray.store import Store, new_id

MIB = 1 << 20
CASES = ("layers", "file")
LIMIT_S = 120.0
ALLOWED_S = 0.05  # of the first layer, beyond its share of the time


class Reader(threading.Thread):
    """A thread that streams one object, and notes when it has each leaf."""

    def __init__(self, store: Store, object_id: bytes) -> None:
        super().__init__(daemon=True)
        self._stream = store.stream(object_id, timeout_s=LIMIT_S)
        self.had_s: list[float] = []
        self.error: BaseException | None = None
        self.start()

    def run(self) -> None:
        """Read until the end."""
        try:
            for number, (path, leaf) in enumerate(self._stream):
                self.had_s.append(time.monotonic())
                if path != (name_of(number),) or leaf[0] != number or leaf[-1] != number:
                    raise AssertionError(f"leaf {number} has other bytes")
        except BaseException as error:
            self.error = error


def name_of(number: int) -> str:
    """Return the name of a layer."""
    return f"layer.{number}"


def stream_all(
    asked: argparse.Namespace, readers: int, size_bytes: int, give: Callable[[Store, bytes], None]
) -> list[float]:
    """Let all readers stream what `give` puts.

    Returns: for each leaf the seconds from the call of `give` until the last reader had it.
    """
    with ExitStack() as stack:
        arena_bytes = 2 * size_bytes + 64 * MIB
        cluster = stack.enter_context(
            Cluster(1 + readers, rate_mbit=asked.rate_mbit, arena_bytes=arena_bytes)
        )
        origin, *stores = (stack.enter_context(Store.attach(node.socket)) for node in cluster.nodes)
        object_id = new_id()
        reading = [Reader(store, object_id) for store in stores]
        time.sleep(1.0)  # all wait by then
        began_s = time.monotonic()
        give(origin, object_id)
        for each in reading:
            each.join(LIMIT_S)
            if each.error is not None:
                raise each.error
        return [max(had) - began_s for had in zip(*(each.had_s for each in reading), strict=True)]


def stream_layers(asked: argparse.Namespace) -> Iterator[Figure]:
    """Measure a model that is put."""
    size_bytes = asked.size_mib * MIB
    elements = size_bytes // asked.layers // 4
    model = {name_of(n): np.full(elements, n, np.float32) for n in range(asked.layers)}
    took = stream_all(
        asked,
        asked.readers,
        size_bytes,
        lambda origin, object_id: origin.put(object_id, model, timeout_s=LIMIT_S),
    )
    whole_s = bounds.hop_s(size_bytes, rate_mbit=asked.rate_mbit)
    name = f"{asked.size_mib} MiB in {asked.layers} layers to {asked.readers} readers"
    for number, seconds in enumerate(took):
        bound_s = whole_s * (number + 1) / asked.layers
        print(f"{name}: layer {number + 1:3} after {seconds:.3f} s, bound {bound_s:.3f} s")
    first_s = whole_s / asked.layers
    goal_s = first_s + ALLOWED_S
    yield Figure(case=f"{name}: first", unit="s", samples=(took[0],), bound=first_s, goal=goal_s)
    yield Figure(case=f"{name}: all", unit="s", samples=(took[-1],), bound=whole_s)


def write_file(path: Path, size_bytes: int, tensors: int) -> None:
    """Write a .safetensors file of equal tensors."""
    elements = size_bytes // tensors // 4
    header: dict[str, Any] = {
        name_of(n): {
            "dtype": "F32",
            "shape": [elements],
            "data_offsets": [4 * elements * n, 4 * elements * (n + 1)],
        }
        for n in range(tensors)
    }
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for number in range(tensors):
            file.write(np.full(elements, number, np.float32).data)


def stream_file(asked: argparse.Namespace) -> Iterator[Figure]:
    """Measure a file that is opened."""
    size_bytes = asked.file_mib * MIB
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "model.safetensors"
        write_file(path, size_bytes, asked.layers)
        took = stream_all(
            asked,
            asked.file_readers,
            size_bytes,
            lambda origin, object_id: origin.open_safetensors(
                object_id, path, kind="numpy", timeout_s=LIMIT_S
            ),
        )
    whole_s = bounds.hop_s(size_bytes, rate_mbit=asked.rate_mbit)
    name = f"a file of {asked.file_mib} MiB to {asked.file_readers} readers"
    first_s = whole_s / asked.layers
    yield Figure(case=f"{name}: first", unit="s", samples=(took[0],), bound=first_s)
    yield Figure(case=f"{name}: all", unit="s", samples=(took[-1],), bound=whole_s)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", default=",".join(CASES), help=f"some of {','.join(CASES)}")
    parser.add_argument("--readers", type=int, default=15)
    parser.add_argument("--size-mib", type=int, default=256)
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--file-readers", type=int, default=8)
    parser.add_argument("--file-mib", type=int, default=954, help="1 GB by default")
    parser.add_argument("--rate-mbit", type=int, default=250)
    parser.add_argument("--json", action="store_true", help="add a line for each figure")
    parser.add_argument("--toy", action="store_true", help="proves only that it runs, in seconds")
    asked = parser.parse_args()
    chosen = asked.only.split(",")
    if unknown := [each for each in chosen if each not in CASES]:
        parser.error(f"--only {unknown[0]} is none of {','.join(CASES)}")
    impossible = why_impossible()
    if impossible:
        print(f"{impossible}; nothing was measured")
        return 0 if asked.toy else 1
    if asked.toy:
        asked.readers = asked.file_readers = 2
        asked.size_mib = asked.file_mib = 8
        asked.layers = 4
    where = machine()
    print(", ".join(f"{what} {value}" for what, value in where.items()))
    figures: list[Figure] = []
    for case in chosen:
        for figure in stream_layers(asked) if case == "layers" else stream_file(asked):
            figures.append(figure)
            took, bound = figure.samples[0], figure.bound
            print(f"{figure.case} after {took:.3f} s, bound {bound:.3f} s", flush=True)
    if asked.toy:
        print("toy sizes: they prove only that it runs")
    if asked.json:
        print_figures("stream", figures, where)
    return 0


if __name__ == "__main__":
    sys.exit(main())
