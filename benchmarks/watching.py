"""Pictures of what an operator sees of a broadcast to 16 nodes, of which one relay is killed.

    python benchmarks/watching.py --to docs/pictures

Writes `web.png`, the page of `hoplite-ray web`, and `top.svg`, a page of `hoplite-ray top`. The
nodes are in network namespaces with slow links, so that the broadcast lasts. Needs root, Chromium
(apt-get install chromium), and the wheels rich and Pillow.
"""

from __future__ import annotations

import argparse
import io
import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from browser import Browser
from browser import why_impossible as why_no_browser
from cluster import Cluster, why_impossible
from PIL import Image
from rich.console import Console
from rich.text import Text

from hoplite_ray.store import Store, new_id

MIB = 1 << 20
RATE_MBIT = 12
LIMIT_S = 100.0
COLOURS = 16  # of the page's picture: a quarter of the bytes, and looks the same
_PATIENT = ("--timeout-s", "60", "--interval-s")  # a call waits in the queue of a full link


@contextmanager
def page(cluster: Cluster) -> Iterator[str]:
    """Run `hoplite-ray web` beside the first node; gives the address that it prints."""
    node = cluster.nodes[0]
    where = ["--control", node.control, "--secret-file", str(node.directory / "secret")]
    with _command(cluster, "web", *_PATIENT, "1", *where) as running:
        assert running.stdout is not None
        try:
            yield running.stdout.readline().strip()
        finally:
            running.kill()


def top(cluster: Cluster, *arguments: str, ranks: tuple[int, ...] = (0,)) -> str:
    """Return the output of `hoplite-ray top` beside the first node, two looks 2 s apart."""
    where = [word for rank in ranks for word in ("--directory", cluster.nodes[rank].directory)]
    with _command(cluster, "top", *_PATIENT, "2", *arguments, *map(str, where)) as running:
        return running.communicate()[0]


def _command(cluster: Cluster, *words: str) -> subprocess.Popen[str]:
    command = [*cluster.network.within(0), sys.executable, "-m", "hoplite_ray.cli", *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def until(shown: Browser, script: str) -> None:
    """Wait until a condition holds in the page."""
    limit_s = time.monotonic() + LIMIT_S
    while not shown.run(script):
        if time.monotonic() > limit_s:
            raise TimeoutError(f"not so: {script}")
        time.sleep(0.1)


def relay_of(told: dict[str, Any], origin: str) -> str:
    """Return the node that feeds the most others, except the origin."""
    senders = [row["sender"] for row in told["transfers"] if row["sender"] != origin]
    return max(sorted(set(senders)), key=senders.count)


def drawn(text: str) -> str:
    """Return a page of text as an SVG that needs no font from elsewhere."""
    width = max(map(len, text.splitlines()))
    console = Console(record=True, width=width, file=io.StringIO())
    console.print(Text(text, no_wrap=True))
    svg = console.export_svg(title="hoplite-ray top --once", unique_id="top")
    return re.sub(r"@font-face \{.*?\}", "", svg, flags=re.S)


def play(folder: Path, *, receivers: int, size_bytes: int) -> None:
    """Broadcast, kill a relay, and write both pictures while the rest goes on."""
    with ExitStack() as stack:
        cluster = stack.enter_context(
            Cluster(receivers + 1, rate_mbit=RATE_MBIT, arena_bytes=size_bytes * 5 // 4)
        )
        stores = [stack.enter_context(Store.attach(node.socket)) for node in cluster.nodes]
        url = stack.enter_context(page(cluster))
        shown = stack.enter_context(Browser(before=cluster.network.within(0)))
        shown.open(url)
        until(shown, f"document.querySelectorAll('tr[data-node]').length === {receivers + 1}")
        object_id = new_id()
        value = np.random.default_rng(0).integers(0, 256, size_bytes, np.uint8)
        stores[0].put(object_id, value, timeout_s=LIMIT_S)
        gets = [store.begin_get(object_id) for store in stores[1:]]
        names = [f"{node.node_id:x}" for node in cluster.nodes]
        victim = names.index(relay_of(json.loads(top(cluster, "--json")), names[0]))
        cluster.kill(victim)
        label = f"svg text.unwell[data-node='{names[victim]}']"
        until(shown, f'document.querySelector("{label}")?.textContent.endsWith("gone")')
        until(shown, "/iB\\/s/.test(document.querySelector('svg').textContent)")
        shown.picture(folder / "web.png")
        with Image.open(folder / "web.png") as picture:
            few = picture.convert("RGB").quantize(COLOURS)
        few.save(folder / "web.png", optimize=True)
        said = top(cluster, "--once", ranks=(0, victim))
        said = said.replace(str(cluster.network.folder), "/run/hoplite")
        (folder / "top.svg").write_text(drawn(said))
        for rank, get in enumerate(gets, 1):
            if rank != victim and not np.array_equal(get.result(LIMIT_S).value, value):
                raise RuntimeError(f"wrong bytes at node {rank}")
        print(said)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--to", type=Path, default=Path("build/watching"), help="the folder")
    parser.add_argument("--toy", action="store_true", help="proves only that it runs, in seconds")
    asked = parser.parse_args()
    impossible = why_impossible() or why_no_browser()
    if impossible:
        print(f"{impossible}; nothing was drawn")
        return 0 if asked.toy else 1
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # else the namespaces would stay
    asked.to.mkdir(parents=True, exist_ok=True)
    receivers, size_bytes = (4, 36 * MIB) if asked.toy else (16, 64 * MIB)
    play(asked.to, receivers=receivers, size_bytes=size_bytes)
    return 0


if __name__ == "__main__":
    sys.exit(main())
