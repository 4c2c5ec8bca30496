"""The log of a table: what a record says, its bytes, and the keys under which the log is stored.

    table/NAME/log/00000000000000000000     the options; written by the first process that opens it
    table/NAME/log/00000000000000000001     the first record, and so on: each slot is written once
    table/NAME/state/00000000000000000256   the state after slot 256, for processes that begin there

A slot holds JSON, so that a person can read it. A state is JSON that zlib has compressed.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from hoplite_ray.errors import ControlError, InvalidArgumentError

FORMAT = 1  # of records and states; a process refuses those of another release's format
OBJECT_ID_BYTES = 28
ENTRIES_MAX = 256  # of one record; more wait for the next one
KEY_BYTES_MAX = 1024
COPIES_MAX = 3
NUMBERS_AHEAD = 64  # values that a process stores at once; further puts wait

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,200}")
_MARK_BYTES = 8  # of a hash: two records of one slot have the same with probability 2**-64


@dataclass(frozen=True, slots=True)
class Options:
    """The rules on which all processes of a table agree; the first one that opens it fixes them.

    keep:              versions of a key that stay, however old they are.
    keep_us:           microseconds for which a superseded version stays.
    records_per_state: records between two states, at least.
    writer_us:         microseconds after its last record for which a writer is remembered, and for
                       which the writer of a record may take to delete what the record drops.
    """

    keep: int = 2
    keep_us: int = 60_000_000
    records_per_state: int = 256
    writer_us: int = 120_000_000  # processes look for silent writers as often (decision 45)


@dataclass(frozen=True, slots=True)
class Entry:
    """One new version: of a value in the store, or of a removed key.

    number: of the value among those of its writer; 0 if the version removes the key.
    nodes:  the node of each copy of the value, in the order of the copies.
    """

    key: str
    number: int
    size_bytes: int = 0
    nodes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Record:
    """The contents of one slot. All of its entries become visible at once.

    writer:   the process's random id.
    sequence: the record's number among the writer's; a second record of one number says nothing.
    attempt:  tells apart the appends of one record, so that no two slots have the same bytes.
    time_us:  later than that of the slot before, by no more than the writer's clock is ahead of it.
    low:      values of the writer with a lower number are in the log, or will never be; 0 if there
              are no others, and the writer leaves with this record.
    swept:    earlier slots whose garbage the writer has deleted.
    """

    writer: str
    sequence: int
    attempt: int
    time_us: int
    low: int
    entries: tuple[Entry, ...] = ()
    swept: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Garbage:
    """Values that no version names any more, or never will; their objects can be deleted."""

    writer: str
    numbers: tuple[int, ...]
    copies: int


def log_key(table: str, slot: int) -> str:
    return f"{log_prefix(table)}{slot:020d}"


def state_key(table: str, slot: int) -> str:
    return f"{state_prefix(table)}{slot:020d}"


def log_prefix(table: str) -> str:
    return f"table/{table}/log/"


def state_prefix(table: str) -> str:
    return f"table/{table}/state/"


def parse_slots(keys: Iterable[str]) -> list[int]:
    """Return the slots of keys of one prefix, in ascending order."""
    names = (key.rpartition("/")[2] for key in keys)
    return sorted(int(name) for name in names if name.isdecimal())


def checked_name(name: Any) -> str:
    """Return the name of a table. Raises: InvalidArgumentError if it is none."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidArgumentError(
            f"a table can't be called {name!r}: take 1 to 200 letters, digits, '_', '.' and '-'"
        )
    return name


def reserve_name(owner: str, part: str) -> str:
    """Return the name of a table of ours, which no user's table can have."""
    return f"{owner}:{part}"


def checked_key(key: Any) -> str:
    """Return a key. Raises: InvalidArgumentError if it is none."""
    if not isinstance(key, str) or not 0 < len(key.encode()) <= KEY_BYTES_MAX:
        raise InvalidArgumentError(
            f"{key!r:.80} is no key of a table: take a text of 1 to {KEY_BYTES_MAX} bytes"
        )
    return key


def value_ids(table: str, writer: str, number: int, copies: int) -> list[bytes]:
    """Return the object ids of a value's copies.

    They follow from the number, so that the objects of a dead writer can be named by any process.
    """
    text = f"{table} {writer} {number} ".encode()
    return [
        hashlib.blake2b(
            text + str(copy).encode(), digest_size=OBJECT_ID_BYTES, person=b"hoplite table"
        ).digest()
        for copy in range(copies)
    ]


def mark(data: bytes) -> str:
    """Return what tells a slot's bytes from all others that may come to the same slot."""
    return hashlib.blake2b(data, digest_size=_MARK_BYTES).hexdigest()


def encode_options(options: Options, writer: str) -> bytes:
    """Return the bytes of slot 0. `writer` makes them different from those of all other tries."""
    return _dump([FORMAT, writer, *dump_options(options)])


def decode_options(data: bytes, where: str) -> Options:
    """Return the options of slot 0. Raises: ControlError naming `where` if it has none."""
    _, *fields = _load(data, where)
    return parse_options(fields, where)


def dump_options(options: Options) -> list[int]:
    return [options.keep, options.keep_us, options.records_per_state, options.writer_us]


def parse_options(fields: list[Any], where: str) -> Options:
    if len(fields) != 4 or not all(type(each) is int and each >= 0 for each in fields):
        raise damage_error(where)
    return Options(*fields)


def encode_record(record: Record) -> bytes:
    entries = [[each.key, each.number, each.size_bytes, *each.nodes] for each in record.entries]
    return _dump(
        [
            *(FORMAT, record.writer, record.sequence, record.attempt, record.time_us, record.low),
            *(entries, record.swept),
        ]
    )


def decode_record(data: bytes, where: str) -> Record:
    """Return the record of a slot. Raises: ControlError naming `where` if it is none."""
    fields = _load(data, where)
    try:
        writer, sequence, attempt, time_us, low, entries, swept = fields
        record = Record(
            *(writer, sequence, attempt, time_us, low),
            tuple(Entry(each[0], each[1], each[2], tuple(each[3:])) for each in entries),
            tuple(swept),
        )
        numbers = [sequence, attempt, time_us, low, *record.swept]
        for each in record.entries:
            numbers += [each.number, each.size_bytes, *each.nodes]
        texts = [writer, *(each.key for each in record.entries)]
    except (TypeError, ValueError, IndexError, KeyError) as error:
        raise damage_error(where) from error
    if not all(type(each) is int for each in numbers):
        raise damage_error(where)
    if not all(type(each) is str for each in texts):
        raise damage_error(where)
    return record


def damage_error(where: str) -> ControlError:
    return ControlError(
        f"{where} in Ray's key-value store is damaged: no release of hoplite_ray has written it"
    )


def _dump(fields: list[Any]) -> bytes:
    return json.dumps(fields, separators=(",", ":")).encode()


def _load(data: bytes, where: str) -> list[Any]:
    """Return the fields after the format."""
    try:
        fields = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise damage_error(where) from error
    if not isinstance(fields, list) or not fields:
        raise damage_error(where)
    refuse_format(fields[0], where)
    return fields[1:]


def refuse_format(found: Any, where: str) -> None:
    """Raise ControlError unless this release reads the format `found`."""
    if found != FORMAT:
        raise ControlError(
            f"{where} has format {found!r:.20}, this release of hoplite_ray reads {FORMAT}: "
            "run one release in the whole cluster"
        )
