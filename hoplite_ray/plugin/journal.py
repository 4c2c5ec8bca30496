"""What a process owns, written down before it exists, so that its death leaks nothing.

Each attached process appends to a file of its own and holds the file's flock as long as it lives:
the kernel lets go of it, whatever the process dies of. The steward of the node reads all of them.
"""

from __future__ import annotations

import fcntl
import os
import struct
import threading
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path

_RECORD = struct.Struct("<B28s28sI")
_NO_ANCHOR = bytes(28)


class Kind(IntEnum):
    OWNED = 1  # an object of put(): it goes when its ref does, or this process
    RELEASED = 2  # ... and has gone
    ANCHORED = 3  # an object of array(): it goes when its anchor does


@dataclass(frozen=True, slots=True)
class Record:
    kind: Kind
    object_id: bytes
    anchor: bytes
    incarnation: int


class Journal:
    """The file of this process. Any thread may write."""

    def __init__(self, directory: Path) -> None:
        name = f"{os.getpid()}-{uuid.uuid4().hex}"
        hidden = directory / f".{name}"
        self._descriptor = os.open(hidden, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        fcntl.flock(self._descriptor, fcntl.LOCK_EX)
        hidden.rename(directory / name)  # seen only once it is held

    def owned(self, object_id: bytes, incarnation: int) -> None:
        self._write(Record(Kind.OWNED, object_id, _NO_ANCHOR, incarnation))

    def released(self, object_id: bytes) -> None:
        self._write(Record(Kind.RELEASED, object_id, _NO_ANCHOR, 0))

    def anchored(self, object_id: bytes, anchor: bytes, incarnation: int) -> None:
        self._write(Record(Kind.ANCHORED, object_id, anchor, incarnation))

    def close(self) -> None:
        os.close(self._descriptor)

    def _write(self, record: Record) -> None:
        fields = (record.kind, record.object_id, record.anchor, record.incarnation)
        os.write(self._descriptor, _RECORD.pack(*fields))  # O_APPEND: whole records, any thread


@dataclass(slots=True)
class _Read:
    """How far one journal is read, and what its process still owns."""

    offset: int = 0
    owned: dict[bytes, int] = field(default_factory=dict)


class Journals:
    """The steward's view of all journals of its node. Any thread may call."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._lock = threading.Lock()
        self._read: dict[str, _Read] = {}
        self._bound: dict[bytes, tuple[bytes, int]] = {}

    def unbind(self, anchor: bytes) -> tuple[bytes, int] | None:
        """(object id, incarnation) that `anchor` held, once; None if it never held one."""
        with self._lock:
            if anchor not in self._bound:
                self._read_all()
            return self._bound.pop(anchor, None)

    def of_the_dead(self) -> dict[bytes, int]:
        """What processes owned that have died since the last call: object id -> incarnation."""
        orphans: dict[bytes, int] = {}
        with self._lock:
            for name in self._read_all():
                descriptor = os.open(self._directory / name, os.O_RDONLY | os.O_CLOEXEC)
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    continue
                finally:
                    os.close(descriptor)
                self._read_one(name)  # its last words
                orphans |= self._read.pop(name).owned
                (self._directory / name).unlink()
        return orphans

    def _read_all(self) -> list[str]:
        names = [name for name in os.listdir(self._directory) if not name.startswith(".")]
        for name in names:
            self._read_one(name)
        return names

    def _read_one(self, name: str) -> None:
        state = self._read.setdefault(name, _Read())
        for record in _records(self._directory / name, state):
            if record.kind == Kind.OWNED:
                state.owned[record.object_id] = record.incarnation
            elif record.kind == Kind.RELEASED:
                state.owned.pop(record.object_id, None)
            else:
                self._bound[record.anchor] = (record.object_id, record.incarnation)


def _records(file: Path, state: _Read) -> Iterator[Record]:
    with file.open("rb") as stream:
        stream.seek(state.offset)
        data = stream.read()
    whole = len(data) - len(data) % _RECORD.size  # the last one may be half written
    state.offset += whole
    for kind, object_id, anchor, incarnation in _RECORD.iter_unpack(data[:whole]):
        yield Record(Kind(kind), object_id, anchor, incarnation)
