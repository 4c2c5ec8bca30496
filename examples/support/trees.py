"""The trees of the parameters and of the gradients under way, for the display of `async_sgd.py`.

A process of its own asks the nodes once a second, so that the parameter server does not wait.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
from argparse import Namespace
from types import TracebackType
from typing import Any, Self

LOOK_EVERY_S, RATE_OVER_S = 1.0, 0.1  # two looks in short succession tell the rates
ASK_S = 2.0  # for the answers to a look
FIND_S = 30.0  # for finding the nodes, once
LINES_MAX = 10  # of a tree: a terminal has 24

Drawn = dict[str, list[str]]  # a tree's lines, by its title


class Trees:
    """The last trees that were seen. A context manager: the process that asks ends with it."""

    def __init__(self, address: str) -> None:
        """`address` is the Ray cluster's."""
        from support.local_cluster import own_address  # the process itself needs no Ray

        self._command = [sys.executable, __file__, address, own_address(address)]
        self._looked = threading.Event()
        self.drawn: Drawn = {}

    def __enter__(self) -> Self:
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            self._command, stdout=pipe, stderr=subprocess.DEVNULL, text=True
        )
        threading.Thread(target=self._read, daemon=True).start()
        self._looked.wait(2 * FIND_S)  # without an answer there are no trees, and all else is
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.wait()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as told:
            for line in told:
                self.drawn = self.drawn | json.loads(line)
                self._looked.set()
        self._looked.set()


def largest(
    transfers: list[dict[str, Any]], names: dict[str, str], server: str | None = None
) -> Drawn:
    """Draw the tree of most nodes each way: from the parameters' root on, and to the sum's.

    A copy that goes to the server is of a sum; on loopback it is not known which node that is.
    """
    from hoplite_ray.cli.live.flows import trees_of
    from hoplite_ray.cli.live.top import tree_lines

    inwards = [row for row in transfers if row["kind"] == "member" or row["receiver"] == server]
    outwards = [row for row in transfers if row not in inwards]
    turned = [
        row | {"sender": row["receiver"], "receiver": row["sender"]} for row in inwards
    ]  # so that the sum's root is at the top
    drawn = {}
    for title, rows in (("parameters", outwards), ("gradients", turned)):
        if trees := trees_of(rows):
            tree = max(trees, key=lambda tree: len(tree["lines"]))
            drawn[title] = tree_lines(tree, names)[:LINES_MAX]
    return drawn


async def watch(address: str, here: str) -> None:
    """Print a line with the largest trees, again and again until the reader ends."""
    from hoplite_ray.cli.cluster.places import find_cluster
    from hoplite_ray.cli.cluster.survey import survey
    from hoplite_ray.cli.live.flows import take_snapshot, transfers_of

    asked = Namespace(control=None, directory=None, address=address)
    cluster = find_cluster(asked, timeout_s=FIND_S)
    seen = await survey(cluster, timeout_s=FIND_S)
    nodes = sorted(seen.nodes, key=lambda node: _place(node.control))
    names = {f"{node.node_id:x}": f"node {number + 1}" for number, node in enumerate(nodes)}
    servers = [node for node in nodes if node.control.rpartition(":")[0] == here]
    server = f"{servers[0].node_id:x}" if len(servers) == 1 else None
    if server is not None:
        names[server] += ", the server"
    while True:
        before = await take_snapshot(cluster, timeout_s=ASK_S, seen=seen)
        await asyncio.sleep(RATE_OVER_S)
        now = await take_snapshot(cluster, timeout_s=ASK_S, seen=seen)
        print(json.dumps(largest(transfers_of(before, now), names, server)), flush=True)
        await asyncio.sleep(LOOK_EVERY_S)


def _place(control: str) -> list[int]:
    """Return the numbers of an address and its port, to sort by."""
    return [int(word) for word in control.replace(":", ".").split(".") if word.isdigit()]


if __name__ == "__main__":
    asyncio.run(watch(sys.argv[1], sys.argv[2]))
