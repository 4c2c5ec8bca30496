"""The steward's view of the journals of all processes of its node, those of the dead included."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from hoplite_ray.base import locks
from hoplite_ray.plugin.process.journal import Journal, Kind, Record, whole_records

_UNFINISHED_S = 60.0  # a file is begun within milliseconds, unless its process died of it


@dataclass(frozen=True, slots=True)
class DeadProcesses:
    """The remains of dead processes. `find_dead` returns them again until `release`."""

    processes: set[str]
    orphans: dict[bytes, int]  # object id -> incarnation
    unwatched: dict[
        bytes, int
    ]  # objects of an earlier steward's anchors; no process sees their end
    files: list[str]


@dataclass(slots=True)
class _FileState:
    """How far one file is read, and the records in it that still hold."""

    offset: int = 0
    is_ended: bool = False
    owned: dict[bytes, int] = field(default_factory=dict)
    anchors: set[bytes] = field(default_factory=set)


class Journals:
    """The steward's view of all journals of its node. Any thread may call.

    An anchor for which `is_live` is False is of a steward that has died, and holds nothing.
    """

    def __init__(self, own: Journal, directory: Path, is_live: Callable[[bytes], bool]) -> None:
        self._own = own
        self._directory = directory
        self._is_live = is_live
        self._lock = threading.Lock()
        self._states: dict[str, _FileState] = {}
        self._objects_by_anchor: dict[bytes, tuple[bytes, int]] = {}
        self._unwatched: dict[bytes, int] = {}

    def unbind(self, anchor: bytes) -> tuple[bytes, int] | None:
        """Forget an anchor, and return its (object id, incarnation); None if it has no object."""
        with self._lock:
            if anchor not in self._objects_by_anchor:
                self._read_all()
            for state in self._states.values():
                state.anchors.discard(anchor)
            return self._objects_by_anchor.pop(anchor, None)

    def find_dead(self) -> DeadProcesses:
        """Return the processes that have died, and their orphans; see `release`."""
        with self._lock:
            left = DeadProcesses(set(), {}, {}, [])
            for name in self._read_all():
                if self._is_held(name):
                    continue
                self._read_one(name)  # the last records
                state = self._states[name]
                left.files.append(name)
                left.orphans.update(state.owned)
                if not state.is_ended:
                    left.processes.add(_process(name))
            left.unwatched.update(self._unwatched)
            return left

    def release(self, left: DeadProcesses) -> None:
        """Remove the files of dead processes. REQUIRES: the node knows their orphans as orphans."""
        with self._lock:
            for name in left.files:
                anchored = {
                    each: self._objects_by_anchor[each] for each in self._states[name].anchors
                }
                if anchored:  # the anchors live on: keep them before the file is removed
                    self._own.adopt_anchors(anchored)
                    self._read_all()
                del self._states[name]
                (self._directory / name).unlink()
            for object_id in left.unwatched:
                self._unwatched.pop(object_id, None)

    def has_objects(self) -> bool:
        """Return True if a process here owns an object, or a live anchor holds one."""
        with self._lock:
            owned = [self._states[name].owned for name in self._read_all()]
            return bool(self._objects_by_anchor) or any(owned)

    def is_dead(self, process: str) -> bool:
        """Return True if the process of that journal has died, also if its file is gone."""
        with self._lock:
            names = [name for name in self._list_names() if _process(name) == process]
            for name in names:
                if not self._is_held(name):
                    self._read_one(name)
                    if not self._states[name].is_ended:
                        return True
            return not names

    def _is_held(self, name: str) -> bool:
        return locks.is_held(self._directory / name)

    def _list_names(self) -> list[str]:
        names = []
        for each in os.scandir(self._directory):
            if not each.name.startswith("."):
                names.append(each.name)
            elif _is_old(each) and not self._is_held(each.name):
                os.unlink(each.path)
        return names

    def _read_all(self) -> list[str]:
        names = self._list_names()
        for name in names:
            self._read_one(name)
        return names

    def _read_one(self, name: str) -> None:
        state = self._states.setdefault(name, _FileState())
        for record in _records(self._directory / name, state):
            if record.kind == Kind.OWNED:
                state.owned[record.object_id] = record.incarnation
            elif record.kind == Kind.RELEASED:
                state.owned.pop(record.object_id, None)
            elif record.kind == Kind.ENDED:
                state.is_ended = True
                state.owned.clear()
            elif self._is_live(record.anchor):
                self._objects_by_anchor[record.anchor] = (record.object_id, record.incarnation)
                state.anchors.add(record.anchor)
            else:
                self._unwatched[record.object_id] = record.incarnation


def _process(name: str) -> str:
    return name.rpartition(".")[0]


def _is_old(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.stat().st_mtime + _UNFINISHED_S < time.time()
    except FileNotFoundError:
        return False  # it has just been finished


def _records(file: Path, state: _FileState) -> Iterator[Record]:
    with file.open("rb") as stream:
        stream.seek(state.offset)
        records, read_bytes = whole_records(stream.read())
    state.offset += read_bytes
    return records
