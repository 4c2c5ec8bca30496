"""Gets over a link that is slow, at a terminal: how far they are is seen while they last."""

from __future__ import annotations

import cluster
import numpy as np
import pytest

from hoplite_ray.store import Store, new_id
from tests.process.terminal import terminal

MIB = 1 << 20
GET = """
from hoplite_ray.store import Store
store = Store.attach({socket!r})
ids = [bytes.fromhex(each) for each in {ids!r}]
print("got", sum(each.nbytes for each in {how}))
"""

needs_root = pytest.mark.skipif(
    cluster.why_impossible() is not None, reason="needs root for network namespaces"
)


@needs_root
@pytest.mark.parametrize(
    ("count", "how", "line"),
    [
        (1, "[store.get(ids[0])]", r"get of object \S+: "),
        (2, "store.gather(ids)", r"get of 2 objects: \d of 2 have come; "),
    ],
    ids=["get", "gather"],
)
def test_a_slow_transfer_is_seen_to_grow(count: int, how: str, line: str) -> None:
    size_bytes = 12 * MIB // count
    with cluster.Cluster(2, rate_mbit=25, arena_bytes=32 * MIB) as made:
        with Store.attach(made.nodes[0].socket) as store:
            ids = [new_id() for _ in range(count)]
            for object_id in ids:
                store.put(object_id, np.zeros(size_bytes, np.uint8))
            source = GET.format(
                socket=made.nodes[1].socket, ids=[each.hex() for each in ids], how=how
            )
            with terminal(source, before=made.network.within(1)) as window:
                bar = rf"{line}(?:\[#*-*\] )?(\d+)% of [\d.]+ MiB, [\d.]+ MiB/s, \d+ s left"
                first = int(window.until(bar)[1])
                window.seen = ""
                while int(window.until(bar)[1]) <= first:
                    window.seen = ""
                window.until(rf"got {12 * MIB}\r\n")
