"""A block crosses at most eight files in three processes, and a page lists them."""

from __future__ import annotations

import re
from pathlib import Path

from examples import follow_a_block
from hoplite_ray.node.trace import STATIONS, events
from hoplite_ray.store import Store

ROOT = Path(__file__).parents[2]
FILES_MAX = 8


def test_the_page_lists_the_stations_in_order() -> None:
    text = (ROOT / "docs/internals/architecture.md").read_text()
    part = text.split("\n## Follow the block")[1].split("\n## ")[0]
    assert re.findall(r"^\d\. `([^`]+)`", part, re.MULTILINE) == [s.file for s in STATIONS]
    assert len(STATIONS) <= FILES_MAX
    assert all((ROOT / station.file).is_file() for station in STATIONS)


def test_every_file_does_what_its_station_says() -> None:
    """The function that each kind of event stands for is in that file and nowhere else."""
    proofs = {
        "hoplite_ray/client.py": "self._usable().put(",
        "native/bindings/module.cc": "c.put(",
        "native/client/client.cc": "Client::put(",
        "native/io/local_port.cc": "LocalPort::",
        "native/plan/engine/commands.cc": "handle_put(",
        "native/plan/directory/directory.cc": "Directory::handle_claim(",
        "native/plan/engine/transfers.cc": "handle_grant(",
        "native/io/links/tcp_rail.cc": "RailConnection::",
    }
    assert list(proofs) == [station.file for station in STATIONS]
    for file, proof in proofs.items():
        assert proof in (ROOT / file).read_text(), f"{file} has no {proof}"


def test_a_live_run_passes_every_station() -> None:
    first = follow_a_block.start()
    nodes = [first]
    try:
        nodes += [follow_a_block.start(beside=first) for _ in range(2)]
        stores = [Store.attach(node.socket) for node in nodes]
        seen, by_node = follow_a_block.walk(nodes, stores)
        for store in stores:
            store.close()
    finally:
        for node in nodes:
            node.stop()
    assert seen == list(STATIONS)
    sending, receiving, home = by_node
    assert "PutCommand" in sending
    assert "GetCommand" in receiving
    assert "out:Grant" in home
    assert "BlockLanded" in receiving
    assert events(["trace 00 PutCommand", "other 00 x"], b"\0") == ["PutCommand"]
