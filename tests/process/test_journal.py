"""Journals lose no owner, whichever system call their process dies before."""

from __future__ import annotations

import fcntl
import os
import random
import signal
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hoplite_ray.plugin.process.journal import Journal, Kind, Record
from hoplite_ray.plugin.steward.journals import DeadProcesses, Journals

GROWS_BYTES = 600  # ten records
DIES = struct.Struct("<c28s")


def named(number: int) -> bytes:
    return number.to_bytes(28, "little")


def none_live(anchor: bytes) -> bool:
    return False


def reader(directory: Path, is_live: Callable[[bytes], bool] = none_live) -> Journals:
    return Journals(Journal(directory, GROWS_BYTES), directory, is_live)


def orphans(journals: Journals) -> dict[bytes, int]:
    """Release what dead processes have left; from now on it is orphaned."""
    left = journals.find_dead()
    journals.release(left)
    return left.orphans | left.unwatched


def in_a_process_killed_at(call: int, run: Callable[[], None]) -> bool:
    """Run in a child that is killed before its system call of that number; False if it got by."""
    child = os.fork()
    if child == 0:
        left = call

        def counted(function: Callable[..., Any]) -> Callable[..., Any]:
            def instead(*args: Any, **kwargs: Any) -> Any:
                nonlocal left
                left -= 1
                if left < 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                return function(*args, **kwargs)

            return instead

        for module, name in [(os, "open"), (os, "write"), (os, "close"), (os, "unlink")]:
            setattr(module, name, counted(getattr(module, name)))
        for name in ("rename", "unlink"):
            setattr(Path, name, counted(getattr(Path, name)))
        fcntl.flock = counted(fcntl.flock)
        try:
            run()
        finally:
            os._exit(0)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


def test_what_a_process_owns_at_its_death_is_orphaned(tmp_path: Path) -> None:
    journals = reader(tmp_path)
    owner = Journal(tmp_path)
    owner.record_owned(named(1), 7)
    owner.record_owned(named(2), 8)
    owner.record_released(named(1))
    assert journals.find_dead() == DeadProcesses(set(), {}, {}, [])
    assert not journals.is_dead(owner.process)
    owner.close()
    assert journals.is_dead(owner.process)
    left = journals.find_dead()
    assert (left.processes, left.orphans) == ({owner.process}, {named(2): 8})
    assert journals.find_dead() == left  # until it is known to be done
    journals.release(left)
    assert journals.find_dead() == DeadProcesses(set(), {}, {}, [])
    assert journals.is_dead(owner.process)


def test_an_anchor_holds_its_object_when_its_maker_is_dead(tmp_path: Path) -> None:
    live = {named(10), named(11)}
    journals = reader(tmp_path, live.__contains__)
    maker = Journal(tmp_path)
    for number in (0, 1, 2):
        maker.record_anchored(named(number), named(10 + number), number)
    maker.close()
    assert orphans(journals) == {named(2): 2}  # of an earlier steward
    assert len(os.listdir(tmp_path)) == 1
    assert journals.unbind(named(10)) == (named(0), 0)
    assert journals.unbind(named(10)) is None
    assert journals.unbind(named(11)) == (named(1), 1)


def test_the_files_stay_small(tmp_path: Path) -> None:
    live: set[bytes] = set()
    journals = reader(tmp_path, live.__contains__)
    owner = Journal(tmp_path, GROWS_BYTES)
    for number in range(500):
        owner.record_owned(named(number), 1)
        live.add(named(1000 + number))
        owner.record_anchored(named(number), named(1000 + number), 1)
        if number >= 5:
            owner.record_released(named(number - 5))
            assert journals.unbind(named(1000 + number - 5)) == (named(number - 5), 1)
            live.discard(named(1000 + number - 5))
        if number % 50 == 0:
            assert orphans(journals) == {}
    assert orphans(journals) == {}
    assert len(os.listdir(tmp_path)) == 2
    assert sum(each.stat().st_size for each in tmp_path.iterdir()) < 5 * GROWS_BYTES
    assert len(journals._objects_by_anchor) == len(live)
    owner.close()
    assert sorted(orphans(journals)) == sorted(named(number) for number in range(495, 500))


@pytest.mark.parametrize("owned", [3, 40])  # fewer and more than a file may grow by
def test_a_process_killed_anywhere_leaves_all_it_owns(tmp_path: Path, owned: int) -> None:
    said, tell = os.pipe()

    def run() -> None:
        journal = Journal(directory, GROWS_BYTES)
        for number in range(2 * owned):
            journal.record_owned(named(number), 1)
            tell_write(tell, DIES.pack(b"+", named(number)))
            if number >= owned:
                tell_write(tell, DIES.pack(b"-", named(number - owned)))
                journal.record_released(named(number - owned))

    tell_write, call = os.write, 0
    while True:
        directory = tmp_path / str(call)
        directory.mkdir()
        journals = reader(directory)
        killed = in_a_process_killed_at(call, run)
        tell_write(tell, DIES.pack(b".", named(0)))
        must: set[bytes] = set()
        while (record := DIES.unpack(os.read(said, DIES.size)))[0] != b".":
            change, object_id = record
            (must.add if change == b"+" else must.discard)(object_id)
        found = set(orphans(journals))
        assert must <= found, f"killed before call {call}"
        assert len(found - must) <= 2  # begun to be owned, or to be released
        assert len([each for each in os.listdir(directory) if each[0] != "."]) == 1
        if not killed:
            break
        call += 1
    assert call > 3 * owned
    os.close(said)
    os.close(tell)


@pytest.mark.parametrize("looks", [1, 3, 10, 30, 100])
def test_nobody_who_lives_is_reported_dead(tmp_path: Path, looks: int) -> None:
    journals = reader(tmp_path)
    ready, begun = os.pipe()
    child = os.fork()
    if child == 0:
        journal = Journal(tmp_path, GROWS_BYTES)
        for number in range(1 << 20):
            journal.record_owned(named(number), 1)
            if number >= 5:
                journal.record_released(named(number - 5))
            if number == 5:
                os.write(begun, b".")
            if number % 10 == 0:
                time.sleep(0.001)  # else there may be more files after each look than before
        os._exit(0)
    os.read(ready, 1)
    os.close(ready)
    os.close(begun)
    try:
        for _ in range(looks):
            left = journals.find_dead()
            assert (left.processes, left.orphans) == (set(), {})
            journals.release(left)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    assert 5 <= len(orphans(journals)) <= 6


def test_a_steward_killed_anywhere_leaves_all_that_anchors_hold(tmp_path: Path) -> None:
    def run() -> None:
        journals = reader(directory, lambda anchor: True)
        left = journals.find_dead()
        journals.release(left)

    call = 0
    while True:
        directory = tmp_path / str(call)
        directory.mkdir()
        makers = [Journal(directory, GROWS_BYTES) for _ in range(2)]
        for number in range(30):
            makers[number % 2].record_anchored(named(number), named(1000 + number), 1)
        makers[0].close()
        killed = in_a_process_killed_at(call, run)
        journals = reader(directory)  # of the next life, which knows none of those anchors
        assert set(orphans(journals)) == {named(number) for number in range(30)}
        makers[1].close()
        if not killed:
            break
        call += 1
    assert call > 20


def test_files_that_a_process_died_of_beginning_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert in_a_process_killed_at(2, lambda: Journal(tmp_path).close())  # before the rename
    (unfinished,) = tmp_path.iterdir()
    journals = reader(tmp_path)
    journals.find_dead()
    assert unfinished.exists()  # it may be on its way
    os.utime(unfinished, (0, 0))
    journals.find_dead()
    assert not unfinished.exists()


def test_a_child_does_not_keep_its_parents_journal(tmp_path: Path) -> None:
    journals = reader(tmp_path)
    owner = Journal(tmp_path)
    owner.record_owned(named(1), 1)
    ended, end = os.pipe()
    ready, begun = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(end)
        os.write(begun, b".")
        os.read(ended, 1)
        os._exit(0)
    os.read(ready, 1)
    assert orphans(journals) == {}
    owner.close()
    assert orphans(journals) == {named(1): 1}  # while the child lives
    for pipe in (end, ended, ready, begun):
        os.close(pipe)
    os.waitpid(child, 0)


def test_a_journal_without_room_says_so_and_stays_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journals = reader(tmp_path)
    owner = Journal(tmp_path)
    owner.record_owned(named(1), 1)
    write = os.write
    with monkeypatch.context() as patched:
        patched.setattr(os, "write", lambda to, data: write(to, data[: random.randrange(61)]))
        with pytest.raises(OSError, match="No space left"):
            owner.record_owned(named(2), 1)
    owner.record_owned(named(3), 1)
    owner.close()
    assert sorted(orphans(journals)) == [named(1), named(3)]


@pytest.mark.parametrize("lacking", range(3))
@pytest.mark.parametrize("failures", [1, 30])
def test_a_disk_that_is_full_between_two_files_loses_nothing_and_stops_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lacking: int, failures: int
) -> None:
    journals = reader(tmp_path)
    owner = Journal(tmp_path, GROWS_BYTES)
    write, left = os.write, [failures]

    def scarce(to: int, data: bytes) -> int:
        is_next = to not in {owner._descriptor, *owner._superseded}
        is_end = data == Record(Kind.ENDED).to_bytes()
        meant = (is_next, is_end, is_next or is_end)[lacking]
        if meant and left[0] > 0:
            left[0] -= 1
            return write(to, data[: len(data) // 2])
        return write(to, data)

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", scarce)
        for number in range(400):
            owner.record_owned(named(number), 1)
            if number >= 5:
                owner.record_released(named(number - 5))
            if number % 40 == 0:
                assert orphans(journals) == {} and journals.has_objects()
    assert left == [0]
    for number in range(395, 400):
        owner.record_released(named(number))
    assert orphans(journals) == {} and not journals.has_objects()
    assert len([each for each in os.listdir(tmp_path) if owner.process in each]) == 1
    owner.record_owned(named(400), 1)
    owner.close()
    assert orphans(journals) == {named(400): 1}


@pytest.mark.parametrize("lacking", ["next", "end"])
def test_a_disk_that_is_full_is_said_once_until_it_has_room(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    lacking: str,
) -> None:
    caplog.set_level("INFO")
    owner = Journal(tmp_path, GROWS_BYTES)
    write = os.write

    def scarce(to: int, data: bytes) -> int:
        is_next = to not in {owner._descriptor, *owner._superseded}
        is_end = data == Record(Kind.ENDED).to_bytes()
        return 0 if (is_next if lacking == "next" else is_end) else write(to, data)

    for _ in range(2):
        caplog.clear()
        with monkeypatch.context() as patched:
            patched.setattr(os, "write", scarce)
            for number in range(100):
                owner.record_owned(named(number), 1)
        assert [each.levelname for each in caplog.records] == ["WARNING"]
        assert "no next journal until there is room: [Errno 28]" in caplog.text
        for number in range(100):
            owner.record_released(named(number))
        assert [each.levelname for each in caplog.records] == ["WARNING", "INFO"]
        assert "journals follow each other again" in caplog.text
    owner.close()
