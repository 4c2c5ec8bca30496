"""What `make demo` decides: a network or loopback, how many nodes, and how long it trains."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import demo
import network
import pytest

from hoplite_ray.config import Memory

GIB = 1 << 30


def parse(monkeypatch: pytest.MonkeyPatch, *words: str) -> tuple[Any, list[str]]:
    monkeypatch.setattr(sys, "argv", ["demo.py", *words])
    return demo.parse_options()


@pytest.mark.parametrize(("room_for", "nodes"), [(20, 8), (8, 8), (7.9, 4), (4, 4)])
def test_there_are_as_many_nodes_as_memory_allows(
    monkeypatch: pytest.MonkeyPatch, room_for: float, nodes: int
) -> None:
    free = Memory(64 * GIB, int(room_for * demo.NODE_BYTES))
    monkeypatch.setattr(Memory, "read", lambda: free)
    assert demo.nodes_that_fit() == nodes


def test_too_little_memory_is_said_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Memory, "read", lambda: Memory(64 * GIB, GIB))
    with pytest.raises(demo.NoNetworkError, match=r"of which 1.0 GiB are available\. Free some"):
        demo.nodes_that_fit()


def lay() -> None:
    with demo.lay_network(1, 500):
        raise AssertionError("there was a network")


def test_without_root_the_command_for_root_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(sys, "argv", ["benchmarks/demo.py", "--rate-mbit=100"])
    command = f"sudo {sys.executable} benchmarks/demo.py --rate-mbit=100"
    with pytest.raises(demo.NoNetworkError, match=rf"needs root .* Run it as root: {command}"):
        lay()


def test_a_container_that_allows_no_namespaces_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*command: str) -> str:
        raise OSError(f"{' '.join(command)}: Operation not permitted")

    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(network, "_run", refuse)
    with pytest.raises(demo.NoNetworkError, match=r"not permitted\. In a container, --privileged"):
        lay()


def test_a_missing_tool_is_said_with_its_package(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(network, "_TOOLS", str(tmp_path))
    with pytest.raises(demo.NoNetworkError, match=r"in the package iproute2\. Install it"):
        lay()


def test_options_of_something_else_choose_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    assert parse(monkeypatch)[0].place is None
    assert parse(monkeypatch, "--kill", "--seed=3")[1] == ["--kill", "--seed=3"]
    assert parse(monkeypatch, "--kill")[0].place == "loopback"
    assert parse(monkeypatch, "--address=h:1")[0].place == "loopback"
    assert parse(monkeypatch, "--kill", "--network")[0].place == "network"


@pytest.mark.parametrize("words", [["--nodes=0"], ["--rate-mbit=0"], ["--seconds=-1"]])
def test_numbers_that_make_no_sense_are_refused(
    monkeypatch: pytest.MonkeyPatch, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        parse(monkeypatch, *words)
    assert words[0].partition("=")[0] in capsys.readouterr().err


def test_the_command_to_repeat_it_asks_for_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    options, passed_on = parse(monkeypatch, "--seconds=7", "--torch")
    command = demo.again(options, 4, passed_on)
    assert command == ("make demo ARGS='--network --nodes=4 --rate-mbit=500 --torch --seconds=7'")


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "1")
    yield
