"""Starting the node in processes that fork meanwhile, or have very many files open."""

from __future__ import annotations

import fcntl
import json
import os
import resource
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from hoplite_ray.cli.cluster import places
from hoplite_ray.errors import NodeLostError
from hoplite_ray.node import options, process
from hoplite_ray.plugin.node import start
from hoplite_ray.plugin.node.start import NodePlace, RunningNode
from hoplite_ray.plugin.process.journal import Journal
from hoplite_ray.plugin.steward.journals import Journals

MANY = 1100  # more than select takes


def start_of(directory: Path) -> Path:
    with start._hold_start_lock(directory / "start.lock"):
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
    with process._hold_directory(directory / "node.lock"):
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
    with process._hold_directory(tmp_path / "node.lock"):
        (tmp_path / "node.json").write_text(json.dumps({"socket": "s", "incarnation": 7}))
        for _ in range(2):
            assert start.running_node(NodePlace("", tmp_path)) == RunningNode("s", 7)
            assert places.Place.read(tmp_path).is_running


def record_of(directory: Path, incarnation: int) -> RunningNode:
    (directory / "node.json").write_text(json.dumps({"socket": "s", "incarnation": incarnation}))
    return RunningNode("s", incarnation)


def not_to_start() -> RunningNode:
    raise AssertionError("its process is there")


@pytest.mark.parametrize("lost", [None, RunningNode("s", 1)])
def test_a_node_between_two_lives_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: RunningNode | None
) -> None:
    def next_life(slept_s: float) -> None:
        record_of(tmp_path, 2)

    monkeypatch.setattr(time, "sleep", next_life)
    with process._hold_directory(tmp_path / "node.lock"):
        found = start._find_or_start(NodePlace("", tmp_path), lost, not_to_start)
    assert found == RunningNode("s", 2) and not found.is_new


def test_a_node_that_ends_is_followed_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "sleep", lambda slept_s: ends.close())
    with ExitStack() as ends:
        ends.enter_context(process._hold_directory(tmp_path / "node.lock"))
        found = start._find_or_start(NodePlace("", tmp_path), None, lambda: record_of(tmp_path, 1))
    assert found == RunningNode("s", 1) and found.is_new


def test_a_node_that_is_let_in_by_nobody_is_told_as_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(start, "_START_S", 0.0)
    told = f"the node in {tmp_path} has had no life for 0 s, .*; {tmp_path}/node.log says why"
    with process._hold_directory(tmp_path / "node.lock"), pytest.raises(NodeLostError, match=told):
        start._find_or_start(NodePlace("", tmp_path), None, not_to_start)


def test_only_a_life_that_has_ended_loses_its_record(tmp_path: Path) -> None:
    record_of(tmp_path, 6)
    with process._hold_directory(tmp_path / "node.lock"):
        assert start._next_incarnation(tmp_path) == 7
        assert start.running_node(NodePlace("", tmp_path)) == RunningNode("s", 6)
    assert start._next_incarnation(tmp_path) == 8
    assert not (tmp_path / "node.json").exists()


def test_a_look_at_a_directory_keeps_no_node_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "sleep", lambda slept_s: looks.close())
    with ExitStack() as looks:
        looks.enter_context(start._hold_if_free(tmp_path))
        with process._hold_directory(tmp_path / "node.lock"):
            record_of(tmp_path, 1)
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

    monkeypatch.setattr(start, "_link_log", lambda place: tmp_path / "node.log")
    monkeypatch.setattr(os, "pipe", high_pipe)
    resource.setrlimit(resource.RLIMIT_NOFILE, (2 * MANY, limits[1]))
    try:
        with pytest.raises(NodeLostError, match="the node did not start: it is not to be"):
            start._spawn(NodePlace("", tmp_path), ["/bin/sh", "-c", "echo it is not to be; exit 2"])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def keep_a_secret(directory: Path) -> Path:
    options._secret(None, directory)
    return directory / "secret"


def begin_a_life(directory: Path) -> Path:
    start._next_incarnation(directory)
    return directory / "life"


@pytest.mark.parametrize("write", [keep_a_secret, begin_a_life])
def test_what_is_known_of_a_node_outlives_a_full_disk(
    tmp_path: Path, write: Callable[[Path], Path]
) -> None:
    file = write(tmp_path)
    before = file.read_bytes()
    file.chmod(0o644)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            write(tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert file.read_bytes() == before
    assert write(tmp_path).stat().st_mode & 0o777 == 0o600
    assert {each.name for each in tmp_path.iterdir()} <= {file.name, "node.lock"}
