"""The journal of a process: it names each object before the object exists, so no death leaks one.

Each attached process appends to a file of its own, and holds the file's flock as long as it lives:
the kernel releases it at any death. When a file has grown, the process writes the next one, which
begins with all that it still owns, and then ENDED into the old one. The steward of the node reads
all files, keeps in its own the objects of anchors, and removes files that have ended.
"""

from __future__ import annotations

import errno
import logging
import os
import struct
import threading
import uuid
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

from hoplite_ray.base import locks

_logger = logging.getLogger(__name__)

_RECORD = struct.Struct("<B28s28sI")
_NOTHING = bytes(28)
_GROWS_BYTES = 1 << 20  # of new records, or as many as at its begin; then the next file follows


class Kind(IntEnum):
    OWNED = 1  # an object of put(): it goes with its ref, and is an orphan after this process
    RELEASED = 2  # an object that this process owned has gone
    ANCHORED = 3  # an object of array(): it goes with its anchor
    ENDED = 4  # the next file has all that this one owned


@dataclass(frozen=True, slots=True)
class Record:
    kind: Kind
    object_id: bytes = _NOTHING
    anchor: bytes = _NOTHING
    incarnation: int = 0

    def to_bytes(self) -> bytes:
        return _RECORD.pack(self.kind, self.object_id, self.anchor, self.incarnation)


def whole_records(data: bytes) -> tuple[Iterator[Record], int]:
    """Return the records in a part of a file, and their bytes: the last may be half written."""
    whole = len(data) - len(data) % _RECORD.size
    fields = _RECORD.iter_unpack(data[:whole])
    return (Record(Kind(kind), *rest) for kind, *rest in fields), whole


class Journal:
    """The files of this process, of which one is being written. Any thread may write."""

    def __init__(self, directory: Path, grows_bytes: int = _GROWS_BYTES) -> None:
        self.process = f"{os.getpid()}-{uuid.uuid4().hex}"
        self._directory = directory
        self._grows_bytes = grows_bytes
        self._lock = threading.Lock()
        self._owned: dict[bytes, int] = {}
        self._count = 0
        self._descriptor = -1
        self._written_bytes = self._until_bytes = 0
        self._superseded: list[int] = []  # files with a next one that lack ENDED yet
        self._is_stuck = False  # True if a full disk, say, keeps off a next file or an ENDED
        self._begin_file()
        _open_journals.add(self)

    def record_owned(self, object_id: bytes, incarnation: int) -> None:
        """Write down that this process owns an object.

        Raises: OSError if it can't, for example on a full disk: then the object is not owned.
        """
        with self._lock:
            self._owned[object_id] = incarnation
            try:
                self._append_and_rotate(Record(Kind.OWNED, object_id, incarnation=incarnation))
            except OSError:
                del self._owned[object_id]
                raise

    def record_released(self, object_id: bytes) -> None:
        with self._lock:
            self._owned.pop(object_id, None)
            self._append_and_rotate(Record(Kind.RELEASED, object_id))

    def record_anchored(self, object_id: bytes, anchor: bytes, incarnation: int) -> None:
        with self._lock:
            self._append_and_rotate(Record(Kind.ANCHORED, object_id, anchor, incarnation))

    def adopt_anchors(self, anchored: dict[bytes, tuple[bytes, int]]) -> None:
        """Take over another file's anchors -> (object, incarnation), which are no growth."""
        kept = [Record(Kind.ANCHORED, each, by, of) for by, (each, of) in anchored.items()]
        with self._lock:
            data = b"".join(record.to_bytes() for record in kept)
            self._append(data)
            self._until_bytes += 2 * len(data)

    def close(self) -> None:
        """Release the files, as the death of the process would."""
        with self._lock:
            self._release_files()

    def _release_files(self) -> None:
        descriptors = [*self._superseded, self._descriptor]
        self._superseded, self._descriptor = [], -1
        for descriptor in descriptors:
            if descriptor >= 0:
                os.close(descriptor)

    def _append_and_rotate(self, record: Record) -> None:
        if self._descriptor < 0:
            return  # the process ends, and its objects become orphans
        self._append(record.to_bytes())
        is_due = self._written_bytes > self._until_bytes
        if not is_due and not self._superseded:
            return
        try:
            if is_due:
                self._begin_file()
            self._end_superseded()
        except OSError as error:  # the present files have all records: try again later
            if not self._is_stuck:
                _logger.warning(
                    "%s: no next journal until there is room: %s", self._directory, error
                )
            self._is_stuck = True
            self._until_bytes = self._written_bytes + self._grows_bytes
        else:
            if self._is_stuck:
                _logger.info("%s: journals follow each other again", self._directory)
            self._is_stuck = False

    def _append(self, data: bytes) -> None:
        _write_whole(self._descriptor, data)
        self._written_bytes += len(data)

    def _begin_file(self) -> None:
        """Write the next file.

        Raises: OSError if it can't be written; then the present one goes on.
        """
        name = f"{self.process}.{self._count}"
        self._count += 1
        hidden = self._directory / f".{name}"
        owned = [Record(Kind.OWNED, each, _NOTHING, of) for each, of in self._owned.items()]
        data = b"".join(record.to_bytes() for record in owned)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
        descriptor = os.open(hidden, flags, 0o600)
        try:
            locks.acquire(descriptor)
            _write_whole(descriptor, data)
            hidden.rename(self._directory / name)
        except OSError:
            os.close(descriptor)
            hidden.unlink(missing_ok=True)
            raise
        if self._descriptor >= 0:
            self._superseded.append(self._descriptor)
        self._descriptor, self._written_bytes = descriptor, len(data)
        self._until_bytes = len(data) + max(self._grows_bytes, len(data))

    def _end_superseded(self) -> None:
        """Write ENDED into the files before the present one: a file without it means a death."""
        while self._superseded:
            _write_whole(self._superseded[0], Record(Kind.ENDED).to_bytes())
            os.close(self._superseded.pop(0))


def _write_whole(descriptor: int, data: bytes) -> None:
    """Append all of `data`, or raise OSError and append nothing: a file has whole records."""
    written = os.write(descriptor, data)
    if written < len(data):
        os.ftruncate(descriptor, os.fstat(descriptor).st_size - written)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


_open_journals: weakref.WeakSet[Journal] = weakref.WeakSet()


def _release_in_child() -> None:
    """Release the parent's locks in a child: with them the parent's death would go unnoticed."""
    for journal in list(_open_journals):
        journal._release_files()


os.register_at_fork(after_in_child=_release_in_child)
