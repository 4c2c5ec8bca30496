"""`hoplite-ray web` over real nodes: what the page is told, and what a real browser shows of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from signal import SIGINT
from typing import Any
from urllib.parse import urlsplit

import browser
import numpy as np
import pytest

from tests.process.command import at, hoplite_ray, stopped
from tests.process.nodes import MIB, WAIT_S, MakeNodes, Nodes, numbers

_PATIENT = {"liveness_suspect_ms": 300, "liveness_dead_ms": 3_600_000}
_SIZE = 2 * MIB
_QUICK = ("--timeout-s", "4", "--interval-s", "0.1")


@contextmanager
def page(nodes: Nodes, rank: int) -> Iterator[str]:
    """Have the page made from one node on; gives the address that was printed."""
    command = [sys.executable, "-m", "hoplite_ray.cli", "web", *_QUICK, *at(nodes.processes[rank])]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert running.stdout is not None
    try:
        yield running.stdout.readline().strip()
        running.send_signal(SIGINT)
        _, errors = running.communicate()
        assert (running.returncode, errors) == (0, "")
    finally:
        running.kill()
        running.communicate()


def asked(url: str, *, path: str = "/look", **headers: str) -> tuple[int, dict[str, str], str]:
    """Ask for a path with the token of the address; returns status, headers and text."""
    parts = urlsplit(url)
    connection = HTTPConnection(parts.netloc)
    connection.request("GET", f"{path}?{parts.query}", headers=headers)
    answer = connection.getresponse()
    told = (answer.status, dict(answer.getheaders()), answer.read().decode())
    connection.close()
    return told


def until(url: str, holds: Callable[[dict[str, Any]], Any]) -> dict[str, Any]:
    """Ask until it holds of what is told; the test's limit ends it else."""
    while True:
        told = json.loads(asked(url)[2])
        if holds(told):
            return dict(told)


def seen(shown: browser.Browser, script: str) -> None:
    """Wait until a condition holds in the page; the test's limit ends it else."""
    while not shown.run(script):
        pass


@contextmanager
def broadcast(nodes: Nodes) -> Iterator[list[Any]]:
    """Gets on all nodes but the first of what that one has, which is frozen: trees that stay."""
    object_ids = [nodes.put(0, numbers(_SIZE, seed)) for seed in range(8)]
    others = range(1, len(nodes.stores))
    with stopped(nodes.processes[0]):
        yield [nodes.client(rank)._client.get(each, True) for each in object_ids for rank in others]


def relay(url: str, url_rank: int, nodes: Nodes) -> int:
    """Return a relay that is neither the origin nor the node that the page asks.

    Waits for one, and for a tree that all nodes are in.
    """
    names = [f"{node.node_id:x}" for node in nodes.processes]

    def found(told: dict[str, Any]) -> list[int]:
        senders = {row["sender"] for row in told["transfers"]}
        return [i for i in range(1, len(names)) if i != url_rank and names[i] in senders]

    told = until(
        url, lambda told: any(len(tree["lines"]) > 5 for tree in told["trees"]) and found(told)
    )
    return found(told)[0]


def test_the_page_is_told_of_trees_and_of_a_relay_that_was_killed(cluster: MakeNodes) -> None:
    nodes = cluster(6, arena_bytes=64 * MIB, options=_PATIENT)
    names = [f"{node.node_id:x}" for node in nodes.processes]
    with page(nodes, 1) as url:
        # A node without a core for 1.5 s is reported as silent once.
        states = ["serving"] * 6
        told = until(url, lambda told: [node["state"] for node in told["nodes"]] == states)
        assert (told["transfers"], told["trees"]) == ([], [])
        with broadcast(nodes) as gets:
            victim = relay(url, 1, nodes)
            nodes.kill(victim)

            def is_drawn_as_last_heard(told: dict[str, Any]) -> bool:
                lines = [line for tree in told["trees"] for line in tree["lines"]]
                states = {node["node_id"]: node["state"] for node in told["nodes"]}
                return states[names[victim]] in ("silent", "gone") and any(
                    node == names[victim] and edge and edge.get("last_heard")
                    for _, node, edge in lines
                )

            until(url, is_drawn_as_last_heard)
        for i, get in enumerate(gets):
            assert i % 5 + 1 == victim or get.wait(WAIT_S)
        # It is a member, and silent, until the first of them runs again and has it removed.
        told = until(url, lambda told: told["nodes"][-1]["state"] == "gone")
        assert (told["nodes"][-1]["node_id"], len(told["nodes"])) == (names[victim], 6)
        assert told["nodes"][-1]["why"]
        told = until(url, lambda told: not told["transfers"])
        assert told["trees"] == []


def test_the_page_is_told_of_channels_and_their_readers(cluster: MakeNodes) -> None:
    nodes = cluster(2, arena_bytes=64 * MIB)
    with page(nodes, 1) as url, nodes[1].watch("weights") as watch:
        assert until(url, lambda told: "channels" in told)["channels"] == []
        nodes[0].publish("weights", np.ones(MIB, np.uint8), timeout_s=WAIT_S)
        watch.next(timeout_s=WAIT_S)
        told = until(url, lambda told: any(each["readers"] for each in told["channels"]))
    (channel,) = told["channels"]
    assert (channel["name"], channel["version"], channel["lag_versions"]) == ("weights", 1, 0)
    assert channel["readers"][0]["node_id"] == f"{nodes.processes[1].node_id:x}"


def test_a_browser_shows_trees_and_a_relay_that_was_killed(cluster: MakeNodes) -> None:
    # .ci/browser may find no package, and not every machine runs one; the gate counts each skip.
    why = browser.why_impossible()
    if why is not None:
        pytest.skip(why)
    nodes = cluster(6, arena_bytes=64 * MIB, options=_PATIENT)
    with browser.Browser() as shown:
        with page(nodes, 1) as url:
            shown.open(url)
            seen(shown, "document.querySelectorAll('tr[data-node]').length === 6")
            with broadcast(nodes) as gets:
                victim = relay(url, 1, nodes)
                name = f"{nodes.processes[victim].node_id:x}"
                label = f"[...document.querySelectorAll('svg text[data-node=\"{name}\"]')]"
                seen(shown, f"{label}.some(text => text.textContent === '{name}')")
                nodes.kill(victim)
                seen(shown, f"{label}.some(text => text.textContent.startsWith('✕ {name} '))")
                seen(shown, "document.querySelector('svg path.unwell') !== null")
            for i, get in enumerate(gets):
                assert i % 5 + 1 == victim or get.wait(WAIT_S)
            row = f"document.querySelector('tr.unwell[data-node=\"{name}\"]')"
            seen(shown, f"{row} && {row}.innerText.includes('gone')")
            seen(shown, "document.querySelector('svg') === null")
            assert "none under way" in shown.text()
        seen(shown, "document.querySelector('#said.late') !== null")
        assert "Start it again" in shown.text()


def test_who_lacks_the_token_or_comes_by_another_name_is_refused(cluster: MakeNodes) -> None:
    nodes = cluster(1, arena_bytes=16 * MIB)
    with page(nodes, 0) as url:
        port = urlsplit(url).port
        for path in ("/", "/look", "/nothing"):
            for query in ("", "token=", "token=%C3%BF", "token=" + "a" * 43):
                status, _, text = asked(f"http://127.0.0.1:{port}/?{query}", path=path)
                assert (status, "the token is missing or wrong" in text) == (403, True)
            for name in ("elsewhere.example", f"elsewhere.example:{port}", "127.0.0.1.example:1"):
                status, _, text = asked(url, path=path, Host=name)
                assert (status, "127.0.0.1 or localhost" in text) == (403, True)
        for name in (f"localhost:{port}", "127.0.0.1:1", "localhost"):  # ports may be forwarded
            assert asked(url, Host=name)[0] == 200
        status, headers, text = asked(url, path="/")
        assert (status, headers["Cache-Control"]) == (200, "no-store")
        assert "frame-ancestors 'none'" in headers["Content-Security-Policy"]
        secret = nodes.processes[0].secret.decode()
        assert secret not in text + asked(url)[2]
        assert asked(url, path="/nothing")[0] == 404


def test_a_port_that_is_taken_is_said(cluster: MakeNodes) -> None:
    nodes = cluster(1, arena_bytes=16 * MIB)
    with page(nodes, 0) as url:
        port = str(urlsplit(url).port)
        said = hoplite_ray("web", "--port", port, *at(nodes.processes[0]))
    assert said.status == 1
    assert f"port {port} of 127.0.0.1 can't be had" in said.last_words


def test_the_package_that_the_page_lacks_is_named(tmp_path: Path) -> None:
    (tmp_path / "aiohttp").mkdir()
    (tmp_path / "aiohttp" / "__init__.py").write_text("raise ImportError('not here')\n")
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    said = hoplite_ray("web", "--directory", "/nowhere", PYTHONPATH=path)
    assert said.status == 1
    assert "pip install 'hoplite_ray[web]'" in said.last_words
