"""Starting the node in processes that fork meanwhile, or have very many files open."""

from __future__ import annotations

import fcntl
import json
import os
import resource
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hoplite_ray import node
from hoplite_ray.cli import places
from hoplite_ray.errors import NodeLostError
from hoplite_ray.plugin import start
from hoplite_ray.plugin.journal import Journal, Journals
from hoplite_ray.plugin.start import NodePlace, RunningNode

MANY = 1100  # more than select takes


def start_of(directory: Path) -> Path:
    with start._only_one(directory / "start.lock"):
        return directory / "start.lock"


def look_for_a_node(directory: Path) -> Path:
    (directory / "node.json").write_text(json.dumps({"socket": "", "incarnation": 1}))
    (directory / "node.lock").touch()
    assert start.running_node(NodePlace("", directory)) is None
    return directory / "node.lock"


def look_at_a_place(directory: Path) -> Path:
    (directory / "node.lock").touch()
    assert not places.Place.read(directory).is_running
    return directory / "node.lock"


def life_of_a_node(directory: Path) -> Path:
    with node._hold(directory / "node.lock"):
        return directory / "node.lock"


def look_for_the_dead(directory: Path) -> Path:
    (directory / "1-dead.0").touch()
    own = Journal(directory)
    try:
        assert Journals(own, directory, lambda anchor: True).is_dead("1-dead")
    finally:
        own.close()
    return directory / "1-dead.0"


@pytest.fixture
def forked(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every file that is opened stays open in a child, which a copy here stands for."""
    opened, copies = os.open, []

    def copied(path: Any, flags: int, *mode: int) -> int:
        descriptor = opened(path, flags, *mode)
        copies.append(os.dup(descriptor))
        return descriptor

    monkeypatch.setattr(os, "open", copied)
    yield
    for each in copies:
        os.close(each)


@pytest.mark.parametrize(
    "hold", [start_of, look_for_a_node, look_at_a_place, life_of_a_node, look_for_the_dead]
)
def test_a_child_that_is_forked_meanwhile_keeps_no_lock(
    forked: None, tmp_path: Path, hold: Callable[[Path], Path]
) -> None:
    with hold(tmp_path).open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_a_lock_that_another_holds_stays_his(tmp_path: Path) -> None:
    with node._hold(tmp_path / "node.lock"):
        (tmp_path / "node.json").write_text(json.dumps({"socket": "s", "incarnation": 7}))
        for _ in range(2):
            assert start.running_node(NodePlace("", tmp_path)) == RunningNode("s", 7)
            assert places.Place.read(tmp_path).is_running


def test_a_process_may_have_many_files_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipe, limits = os.pipe, resource.getrlimit(resource.RLIMIT_NOFILE)

    def high_pipe() -> tuple[int, int]:
        monkeypatch.setattr(os, "pipe", pipe)  # others have theirs as ever
        low = pipe()
        high = [fcntl.fcntl(each, fcntl.F_DUPFD_CLOEXEC, MANY) for each in low]
        for each in low:
            os.close(each)
        return high[0], high[1]

    monkeypatch.setattr(start, "_log", lambda place: tmp_path / "node.log")
    monkeypatch.setattr(os, "pipe", high_pipe)
    resource.setrlimit(resource.RLIMIT_NOFILE, (2 * MANY, limits[1]))
    try:
        with pytest.raises(NodeLostError, match="the node did not start: it is not to be"):
            start._run(NodePlace("", tmp_path), ["/bin/sh", "-c", "echo it is not to be; exit 2"])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
