"""One client of test_memory's over-commitment: far more puts under way than its arena can hold.

`python -m tests.process.overcommit OWN_SOCKET OTHER_SOCKET COUNT SEED WINDOW_BYTES SIZE_MAX`
prints one line, "<objects> <bytes>", when every byte that came back was right.
"""

from __future__ import annotations

import sys
from collections import deque

import numpy as np

from hoplite_ray.store import Store, new_id

WAIT_S = 120.0


def content(seed: int, size_bytes: int) -> np.ndarray:
    """Words that tell the object, the position and any shift."""
    words = np.arange(size_bytes // 8 + 1, dtype=np.uint64) * np.uint64(2 * seed + 1)
    return words.view(np.uint8)[:size_bytes]


def main(own: str, other: str, count: int, seed: int, window: int, size_max: int) -> None:
    """Keep `window` bytes of `count` puts under way; read each back, here or there; delete it."""
    store, elsewhere = Store.attach(own), Store.attach(other)
    random = np.random.default_rng(seed)
    under_way: deque[tuple[bytes, np.ndarray, object]] = deque()
    bytes_under_way = begun = done = done_bytes = 0
    while begun < count or under_way:
        while begun < count and bytes_under_way < window:
            size = int(random.integers(1, size_max))
            array = content(int(random.integers(1 << 30)), size)
            object_id = new_id()
            put = store.begin_put(object_id, array)  # answered when there is room
            under_way.append((object_id, array, put))
            begun += 1
            bytes_under_way += size
        object_id, array, put = under_way.popleft()
        put.result(WAIT_S)  # type: ignore[attr-defined]
        reader = store if random.integers(4) else elsewhere
        value = reader._client.begin_get(object_id, exists=True).result(WAIT_S).value
        if not np.array_equal(value, array):
            sys.exit(f"object {object_id.hex()} of {array.nbytes} bytes came back wrong")
        del value
        store.delete(object_id, timeout_s=WAIT_S)
        bytes_under_way -= array.nbytes
        done += 1
        done_bytes += array.nbytes
    store.close()
    elsewhere.close()
    sys.stdout.write(f"{done} {done_bytes}\n")


if __name__ == "__main__":
    main(
        sys.argv[1],
        sys.argv[2],
        int(sys.argv[3]),
        int(sys.argv[4]),
        int(sys.argv[5]),
        int(sys.argv[6]),
    )
