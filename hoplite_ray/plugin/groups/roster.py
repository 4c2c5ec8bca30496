"""The members of a ray.util.collective group: how they meet, and how they learn of a failure.

They meet once, in Ray's key-value store. Each member writes an entry with a nonce of its own, and
rank 0 writes the list of all entries. The list is agreed when every entry says that its member has
seen it; an entry of a dead member, of an earlier attempt, never does. The list's hash is the epoch,
from which members derive all ids of operations. So a group that is made again under the same name
shares no id with the last one. Members of any group that meet look at a few keys each, and remove
those of dead members.

Each member watches the next one, by Ray. A member that sees a failure puts one object, the notice,
which every member awaits from the beginning. Then all of them raise, at each operation.
"""

from __future__ import annotations

import hashlib
import json
import logging
import random
import secrets
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from urllib.parse import quote

import numpy as np
import ray

from hoplite_ray.client import StoreClient
from hoplite_ray.errors import (
    CollectiveError,
    GetTimeoutError,
    HopliteError,
    InvalidArgumentError,
    NodeLostError,
)
from hoplite_ray.pending import Pending, ReceivedObject
from hoplite_ray.plugin.process.attachment import attachment
from hoplite_ray.plugin.seams import core as seams
from hoplite_ray.plugin.seams import table
from hoplite_ray.values.deadlines import deadline_in, left_s
from hoplite_ray.values.layout import OBJECT_ID_BYTES

_logger = logging.getLogger("hoplite_ray.collective")

_ALL = "collective/"  # every key begins with it
_LOOKS = 4  # keys that each member looks at: the dead stay a quarter of all, or less than that
_MEET_EVERY_S = 0.02  # a read of Ray's table takes about 1 ms
_WATCH_EVERY_S = 0.5  # Ray knows of a dead worker or raylet within milliseconds
_EXPLAIN_S = 5.0  # of waiting for Ray to know of a death that this package's nodes know already


@dataclass(frozen=True, slots=True)
class CollectiveMember:
    """One process, by the entry that it has written."""

    nonce: str
    world_size: int
    worker: str
    ray_node_id: str

    @property
    def is_alive(self) -> bool:
        return seams.is_worker_alive(self.worker, self.ray_node_id)


class CollectiveMeeting:
    """The joining of one member; see the module."""

    def __init__(self, name: str, rank: int, world_size: int) -> None:
        context = ray.get_runtime_context()
        self._name = name
        self._rank = rank
        self._values = table.KeyValues(context.gcs_address)
        # Groups belong to a namespace, like the named actors of create_collective_group.
        self._prefix = f"{_ALL}{quote(context.namespace, safe='')}/{quote(name, safe='')}"
        self._me = CollectiveMember(
            secrets.token_hex(16), world_size, seams.this_worker(), context.get_node_id()
        )

    def meet(self, timeout_s: float) -> list[CollectiveMember]:
        """Meet the other members; all of them return the same list, by rank.

        Raises: GetTimeoutError naming the ranks that have not come; InvalidArgumentError if members
                differ in the number of members, or two have the same rank.
        """
        deadline = time.monotonic() + timeout_s
        try:
            self._write_entry(seen="")
            self._remove_dead()
            while True:
                if self._rank == 0:
                    self._write_list()
                listed, is_agreed = self._read_list()
                if self._me in listed:
                    if is_agreed:
                        return listed
                    self._write_entry(seen=epoch_of(listed))
                if time.monotonic() > deadline:
                    raise self._late_error(timeout_s)
                time.sleep(_MEET_EVERY_S)
        finally:
            if self._read_entry(self._rank)[0] in (None, self._me):
                self._values.remove(self._key(self._rank))

    def remove_list(self) -> None:
        """Remove the list, which all members have read."""
        self._values.remove(f"{self._prefix}/list")

    def _write_list(self) -> None:
        """List all entries as they are now, agreed or not."""
        entries = [self._read_entry(rank) for rank in range(self._me.world_size)]
        members = [member for member, _ in entries if member is not None]
        if len(members) == len(entries):
            is_agreed = all(seen == epoch_of(members) for _, seen in entries)
            record = [is_agreed, [asdict(each) for each in members]]
            self._values.write(f"{self._prefix}/list", json.dumps(record).encode())

    def _read_list(self) -> tuple[list[CollectiveMember], bool]:
        for rank in {0, self._rank}:
            there, _ = self._read_entry(rank)
            if there is None and rank == self._rank:
                # Another member that removes a dead predecessor's entry may remove a new one.
                self._write_entry(seen="")
            if there is None or there == self._me:
                continue
            if rank == self._rank:
                raise InvalidArgumentError(
                    f"rank {rank} of collective group {self._name!r} was taken by another process "
                    "meanwhile; give each member a rank of its own"
                )
            if there.world_size != self._me.world_size and there.is_alive:
                raise InvalidArgumentError(
                    f"collective group {self._name!r} has {there.world_size} members for rank 0 "
                    f"and {self._me.world_size} for rank {self._rank}; give all the same world_size"
                )
        stored = self._values.read(f"{self._prefix}/list")
        is_agreed, members = json.loads(stored) if stored else (False, [])
        return [CollectiveMember(**each) for each in members], is_agreed

    def _remove_dead(self) -> None:
        """Remove what dead processes have left, of any group, a few keys at a time."""
        with suppress(HopliteError):  # what does not answer is asked again by the meeting itself
            keys = self._values.keys(_ALL)
            for key in random.sample(keys, min(len(keys), _LOOKS)):
                stored = self._values.read(key)
                if stored is None or _writer_of(stored).is_alive:
                    continue
                if self._values.read(key) == stored:
                    self._values.remove(key)

    def _late_error(self, timeout_s: float) -> GetTimeoutError:
        ranks = range(self._me.world_size)
        missing = [str(rank) for rank in ranks if self._read_entry(rank)[0] is None]
        who = f"rank {', '.join(missing)} has not come" if missing else "not all have answered"
        return GetTimeoutError(
            f"collective group {self._name!r} has not met after {timeout_s} s, says rank "
            f"{self._rank} of {self._me.world_size}: {who}; have every member call "
            "init_collective_group, or its first operation after create_collective_group"
        )

    def _write_entry(self, *, seen: str) -> None:
        entry = json.dumps([asdict(self._me), seen])
        if self._values.read(self._key(self._rank)) != entry.encode():
            self._values.write(self._key(self._rank), entry.encode())

    def _read_entry(self, rank: int) -> tuple[CollectiveMember | None, str]:
        stored = self._values.read(self._key(rank))
        if stored is None:
            return None, ""
        member, seen = json.loads(stored)
        return CollectiveMember(**member), seen

    def _key(self, rank: int) -> str:
        return f"{self._prefix}/{rank}"


def _writer_of(stored: bytes) -> CollectiveMember:
    """Return the member that has written an entry; of a list it is rank 0."""
    first, second = json.loads(stored)
    return CollectiveMember(**(first if isinstance(first, dict) else second[0]))


def epoch_of(members: list[CollectiveMember]) -> str:
    """Return a name that only this meeting of a group has."""
    text = json.dumps([asdict(each) for each in members])
    return hashlib.blake2b(text.encode(), digest_size=32).hexdigest()


class Roster:
    """The members of one group that have met, until one of them fails. Any thread may use it."""

    def __init__(self, name: str, rank: int, members: list[CollectiveMember]) -> None:
        self.name = name
        self.rank = rank
        self._members = members
        self._epoch = bytes.fromhex(epoch_of(members))
        self._here = attachment()
        self._notice_id = self.id("notice")
        self._has_put_notice = False
        self._failure = ""
        self._notice = self._await_notice()
        self._closing = threading.Event()
        if len(members) > 1:
            threading.Thread(target=self._watch, name="hoplite collective", daemon=True).start()

    @property
    def store(self) -> StoreClient:
        return self._here.store

    def record_owned(self, object_id: bytes) -> None:
        """Write down that this process is about to make the object."""
        self._here.journal.record_owned(object_id, 0)
        self._here.begin_steward(None)  # makes it an orphan if this process dies

    def record_released(self, object_id: bytes) -> None:
        """Write down that the object, which this process has made, is gone."""
        self._here.journal.record_released(object_id)

    def delete(self, object_id: bytes) -> None:
        self._here.delete(object_id)
        self.record_released(object_id)

    def id(self, *what: object) -> bytes:
        """Return the id of an object of this group, which every member derives alike."""
        return hashlib.blake2b(
            repr(what).encode(), key=self._epoch, digest_size=OBJECT_ID_BYTES
        ).digest()

    @property
    def has_failed(self) -> bool:
        try:
            self.check()
        except CollectiveError:
            return True
        return False

    def check(self) -> None:
        """Raise CollectiveError if a member has noticed a failure."""
        if not self._failure and self._notice.wait(0):
            try:
                self._failure = bytes(self._notice.result().value).decode()
            except NodeLostError:
                self._notice = self._await_notice()  # of the restarted node
        if not self._failure:
            return
        raise CollectiveError(
            f"collective group {self.name!r} has failed: {self._failure}; destroy it in the "
            "members that are left, and make it again"
        )

    @contextmanager
    def report_errors(self, what: str) -> Iterator[None]:
        """Tell all members of an error in the body, which does `what`.

        Raises: CollectiveError, which names the member, if the cause is a dead member.
        """
        try:
            yield
        except CollectiveError:
            raise
        except BaseException as error:
            is_ours = isinstance(error, HopliteError) and not isinstance(
                error, (ValueError, TimeoutError)
            )
            deadline = time.monotonic() + (_EXPLAIN_S if is_ours else 0)
            while time.monotonic() < deadline and not self._describe_dead():
                time.sleep(_MEET_EVERY_S)
            self._put_notice(self._describe_dead() or f"{what} failed at rank {self.rank}: {error}")
            if is_ours:
                self._raise_notice(error)
            raise

    def close(self) -> None:
        """End the watch, and delete the notice if this member has put it."""
        self._closing.set()
        self._notice.cancel()
        if self._has_put_notice:
            self.delete(self._notice_id)

    def _raise_notice(self, error: BaseException) -> None:
        self._notice.wait(_EXPLAIN_S)
        try:
            self.check()
        except CollectiveError as noticed:
            raise noticed from error

    def _await_notice(self) -> Pending[ReceivedObject]:
        return self._here.store.begin_get(self._notice_id)

    def _put_notice(self, text: str) -> None:
        """Put the notice, unless another member has."""
        self.record_owned(self._notice_id)
        self._has_put_notice = True
        with suppress(HopliteError):  # DuplicateObjectError as a rule
            data = np.frombuffer(text.encode(), np.uint8)
            deadline = deadline_in(_EXPLAIN_S)
            store = self._here.store_by(deadline)
            store.begin_put(self._notice_id, data).result(left_s(deadline))

    def _describe_dead(self) -> str:
        """Return a text that names the dead members; empty if none is dead."""
        dead = [rank for rank, member in enumerate(self._members) if not member.is_alive]
        return ", ".join(self._describe_death(rank) for rank in dead)

    def _describe_death(self, rank: int) -> str:
        return f"rank {rank} is dead (Ray node {self._members[rank].ray_node_id[:8]})"

    def _watch(self) -> None:
        """Watch the next member: one question at a time, in a group of any size."""
        following = (self.rank + 1) % len(self._members)
        while not self._closing.wait(_WATCH_EVERY_S):
            try:
                if not self._members[following].is_alive:
                    self._put_notice(self._describe_death(following))
                    return
            except Exception as error:
                if not ray.is_initialized():
                    return
                _logger.warning("collective group %r is not watched: %s", self.name, error)
