"""Locks of files, between this process and children that were forked from it."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from hoplite_ray.base import locks


def exit_status(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_a_lock_is_free_before_and_after_it_is_held(tmp_path: Path) -> None:
    file = tmp_path / "a.lock"
    with locks.hold(file, 0.0):
        assert locks.is_held(file)
    assert not locks.is_held(file)


def test_hold_gives_up_after_its_time_limit(tmp_path: Path) -> None:
    file = tmp_path / "a.lock"
    with locks.hold(file, 0.0):
        began_s = time.monotonic()
        with pytest.raises(locks.HeldError, match="is held by another"), locks.hold(file, 0.05):
            pytest.fail("two hold one lock")
        assert time.monotonic() - began_s >= 0.05


def test_try_hold_tells_whether_the_lock_was_free(tmp_path: Path) -> None:
    file = tmp_path / "a.lock"
    with locks.try_hold(file) as is_mine:
        assert is_mine
        with locks.try_hold(file) as is_mine_too:
            assert not is_mine_too
        assert locks.is_held(file)  # the second try has not released it


def test_two_looks_at_a_time_see_a_free_lock(tmp_path: Path) -> None:
    file = tmp_path / "a.lock"
    file.touch()
    descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    try:
        assert not locks.is_held_by_another(descriptor)
        assert not locks.is_held(file)
    finally:
        os.close(descriptor)


def test_a_look_at_a_missing_file_raises(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        locks.is_held(tmp_path / "a.lock")
    assert not (tmp_path / "a.lock").exists()


def test_a_forked_child_does_not_keep_what_its_parent_held(tmp_path: Path) -> None:
    file = tmp_path / "a.lock"
    read, write = os.pipe()
    with locks.hold(file, 0.0):
        child = os.fork()
        if child == 0:
            os.close(write)
            os.read(read, 1)  # until the parent has looked
            os._exit(0)
    assert not locks.is_held(file)
    os.close(write)
    os.close(read)
    assert exit_status(child) == 0


def test_what_a_process_took_is_free_when_it_ends(tmp_path: Path) -> None:
    file = tmp_path / "a.lock"
    file.touch()
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        locks.acquire(os.open(file, os.O_RDWR | os.O_CLOEXEC))
        os.write(write, b"1")
        signal.pause()
    assert os.read(read, 1) == b"1"
    assert locks.is_held(file)
    os.kill(child, signal.SIGKILL)
    assert exit_status(child) == -signal.SIGKILL
    assert not locks.is_held(file)
    os.close(read)
    os.close(write)


def test_a_copy_in_a_forked_child_keeps_what_was_taken(tmp_path: Path) -> None:
    file = tmp_path / "a.lock"
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    locks.acquire(descriptor)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(write)
        os.read(read, 1)
        os._exit(0)
    os.close(descriptor)
    assert locks.is_held(file)
    os.close(write)
    os.close(read)
    assert exit_status(child) == 0
    assert not locks.is_held(file)
