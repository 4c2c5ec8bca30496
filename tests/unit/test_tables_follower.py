"""Followers and watches of a table, with threads, over a store in this process's memory."""

from __future__ import annotations

import asyncio
import gc
import queue
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest

from hoplite_ray.errors import (
    ControlError,
    GetTimeoutError,
    HopliteError,
    InvalidArgumentError,
    VersionDroppedError,
)
from hoplite_ray.plugin.tables import followers, watching
from hoplite_ray.plugin.tables.follower import Follower, UnknownOutcomeError
from hoplite_ray.plugin.tables.followers import OpenTable
from hoplite_ray.plugin.tables.janitor import Janitor, Kind
from hoplite_ray.plugin.tables.operations import ask, store_values
from hoplite_ray.plugin.tables.steps import Blocking, Steps, run, run_async
from hoplite_ray.plugin.tables.watching import Watch
from hoplite_ray.tables.calls import PutDone
from hoplite_ray.tables.log import NUMBERS_AHEAD, Entry, Garbage, Options
from hoplite_ray.tables.replica import Replica
from hoplite_ray.tables.versions import Version

OPTIONS = Options(keep=1, keep_us=0, records_per_state=4)
SOON_S = 30.0  # a wait that fails; the threads answer within milliseconds


class Memory:
    """The key-value store: a dict that any thread may use, and that can refuse to answer."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.lock = threading.Lock()
        self.refusals = 0  # of the next calls
        self.refuses_after_it = False  # True if an add that is refused is made all the same
        self.answers = threading.Event()  # reads wait for it
        self.answers.set()

    def add(self, key: str, value: bytes) -> bool:
        if self.refuses_after_it:
            self.values.setdefault(key, value)
        with self._answering():
            return self.values.setdefault(key, value) is value

    def read(self, key: str) -> bytes | None:
        with self._answering():
            return self.values.get(key)

    def read_all(self, keys: Sequence[str]) -> list[bytes | None]:
        assert self.answers.wait(SOON_S)
        with self._answering():
            return [self.values.get(key) for key in keys]

    def keys(self, prefix: str) -> list[str]:
        with self._answering():
            return [key for key in self.values if key.startswith(prefix)]

    def remove(self, key: str) -> None:
        with self._answering():
            self.values.pop(key, None)

    @contextmanager
    def _answering(self) -> Iterator[None]:
        with self.lock:
            if self.refusals:
                self.refusals -= 1
                raise ControlError("the store does not answer")
            yield


class Cluster:
    """Followers of one table, as if each were in a process of its own."""

    def __init__(self) -> None:
        self.memory = Memory()
        self.followers: list[Follower] = []
        self.deleted: list[Garbage] = []
        self.is_over = False
        self.left: queue.SimpleQueue[Follower] = queue.SimpleQueue()  # followers that have ended

    def follower(self, options: Options = OPTIONS) -> Follower:
        made = Follower(
            *("t", f"p{len(self.followers)}", options, lambda: self.memory),
            janitor=Janitor("t"),
            delete=self.deleted.append,
            is_over=lambda: self.is_over,
            leave=self.left.put,
        )
        self.followers.append(made)
        return made


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    made = Cluster()
    yield made
    for each in made.followers:
        each.close(HopliteError("the test has ended"))
        each._thread.join(SOON_S)
        assert not each._thread.is_alive()


def begin_put(follower: Follower, key: str) -> Future[Any]:
    given = follower.numbers(1).result(SOON_S)
    entries = [Entry(key, given.numbers[0], 8, (1,))]

    def begin(replica: Replica, ticket: int) -> None:
        replica.handle_put(ticket, given.writer, entries)

    return follower.put(begin)


def put(follower: Follower, key: str) -> Version:
    (version,) = begin_put(follower, key).result(SOON_S).versions
    assert version is not None
    return version


def latest(follower: Follower, key: str) -> Version:
    follower.read().result(SOON_S)
    return follower.look_up(lambda state: state.versions.latest(key))


def test_what_one_follower_puts_the_other_reads(cluster: Cluster) -> None:
    one, two = cluster.follower(), cluster.follower()
    version = put(one, "a")
    assert latest(two, "a") == version
    assert two.has_read(version.slot) and not two.has_read(version.slot + 1)


def test_puts_of_many_threads_all_take_effect_and_the_log_stays_short(cluster: Cluster) -> None:
    followers = [cluster.follower() for _ in range(3)]

    def put_many(follower: Follower, name: str) -> None:
        for place in range(10):
            put(follower, f"{name}{place}")

    threads = [
        threading.Thread(target=put_many, args=(each, f"{place}{letter}"))
        for place, each in enumerate(followers)
        for letter in "ab"
    ]
    for each in threads:
        each.start()
    for each in threads:
        each.join(SOON_S)
    followers[0].read().result(SOON_S)
    assert len(followers[0].look_up(lambda state: state.versions.keys(""))) == 60
    done: Future[None] = Future()
    for follower in followers:
        follower.janitor.do(lambda: None, Kind.UPKEEP)
    followers[-1].janitor.do(partial(done.set_result, None), Kind.UPKEEP)
    done.result(SOON_S)
    assert len([key for key in cluster.memory.values if "/state/" in key]) < 9


def test_superseded_values_are_deleted_by_the_process_that_supersedes_them(
    cluster: Cluster,
) -> None:
    one, two = cluster.follower(), cluster.follower()
    put(one, "a")
    put(two, "a")
    swept: Future[None] = Future()
    two.janitor.do(partial(swept.set_result, None), Kind.UPKEEP)
    swept.result(SOON_S)
    assert [(each.writer, each.numbers) for each in cluster.deleted] == [("p0.1", (1,))]


@pytest.mark.parametrize("is_made", [True, False])
def test_a_call_that_fails_leaves_a_put_unknown_and_the_next_one_is_tried(
    cluster: Cluster, is_made: bool
) -> None:
    follower = cluster.follower()
    put(follower, "a")
    given = follower.numbers(1).result(SOON_S)
    with cluster.memory.lock:
        cluster.memory.refusals = 1
        cluster.memory.refuses_after_it = is_made

    def begin(replica: Replica, ticket: int) -> None:
        replica.handle_put(ticket, given.writer, [Entry("b", given.numbers[0], 8, (1,))])

    with pytest.raises(UnknownOutcomeError, match="unknown whether the put took effect"):
        follower.put(begin).result(SOON_S)
    assert latest(follower, "b").value == given.numbers[0]
    assert follower.look_up(lambda state: state.versions.count) == 2


def test_a_read_fails_while_the_store_does_not_answer(cluster: Cluster) -> None:
    follower = cluster.follower()
    put(follower, "a")
    with cluster.memory.lock:
        cluster.memory.refusals = 1
    with pytest.raises(ControlError, match="does not answer"):
        follower.read().result(SOON_S)
    assert latest(follower, "a").value == 1


def test_a_session_that_has_ended_ends_the_follower(cluster: Cluster) -> None:
    follower = cluster.follower()
    put(follower, "a")
    cluster.is_over = True
    with pytest.raises(HopliteError, match="belongs to a Ray session that has ended"):
        for _ in range(2):  # the first one wakes it
            follower.read().result(SOON_S)
    with pytest.raises(HopliteError, match="make the table again"):
        follower.numbers(1).result(SOON_S)


@pytest.mark.parametrize("cause", ["the session ends", "a fault", "it is closed"])
def test_a_follower_that_has_ended_leaves_no_thread(cluster: Cluster, cause: str) -> None:
    follower = cluster.follower()
    put(follower, "a")
    settle(follower)  # which starts the janitor's thread
    janitor = follower.janitor._thread
    assert janitor is not None
    if cause == "the session ends":  # and no caller comes
        cluster.is_over = True
    elif cause == "it is closed":
        follower.close(HopliteError("the session has ended"))
    else:
        cause_fault(cluster)
        follower.read()
    assert cluster.left.get(timeout=SOON_S) is follower
    for thread in (follower._thread, janitor):
        thread.join(SOON_S)
        assert not thread.is_alive()


def test_a_table_whose_follower_has_ended_is_opened_anew(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(followers, "_open", {})
    monkeypatch.setattr(followers, "need_ray", lambda: None)
    monkeypatch.setattr(followers.seams, "connection", lambda: followers._session)
    monkeypatch.setattr(followers, "_begin", lambda *_: open_with(Contents(), cluster.follower()))
    first = followers.open_table("t", OPTIONS)
    assert followers.open_table("t", OPTIONS) is first
    first.follower.close(HopliteError("the session has ended"))
    second = followers.open_table("t", OPTIONS)
    assert second.follower is not first.follower
    followers._forget("t", first.follower)
    assert followers.open_table("t", OPTIONS) is second, "the one that has ended is another one"
    followers._forget("t", second.follower)
    assert not followers._open


# ---- watches ----


def next_keys(watch: Watch, count: int) -> list[str]:
    found = (watch.next(timeout_s=SOON_S) for _ in range(count))
    return [each.key for each in found if each is not None]


def test_watchers_hear_of_each_version_once_and_in_order(cluster: Cluster) -> None:
    one, two = cluster.follower(), cluster.follower()
    put(one, "a/old")
    with Watch(two, "a/", None, "raise") as watch, Watch(two, "", None, "raise") as all_of:
        watch._ready.result(SOON_S)
        for key in ("a/1", "b/2", "a/3", "a/1"):
            put(one, key)
        assert next_keys(watch, 3) == ["a/1", "a/3", "a/1"]
        all_of._ready.result(SOON_S)
        first = all_of.next(timeout_s=SOON_S)
        assert first is not None and first.key == "a/1"
    assert watch.next() is None and list(watch) == []


@pytest.mark.parametrize("puts_before", [1, 3])
def test_a_watch_goes_on_after_the_version_that_it_is_given(
    cluster: Cluster, puts_before: int
) -> None:
    one, two = cluster.follower(), cluster.follower()
    versions = [put(one, f"k{place}") for place in range(puts_before)]
    with Watch(two, "", versions[0].number, "raise") as watch:
        watch._ready.result(SOON_S)
        put(one, "new")
        expected = [*(f"k{place}" for place in range(1, puts_before)), "new"]
        assert next_keys(watch, puts_before) == expected


@pytest.mark.parametrize("on_gap", ["raise", "latest"])
def test_a_watch_that_begins_before_the_log_says_so_or_goes_on_with_the_latest(
    cluster: Cluster, on_gap: Any
) -> None:
    one, two = cluster.follower(), cluster.follower()
    first = put(one, "a")
    for place in range(20):
        put(one, f"k{place % 3}")
        settled: Future[None] = Future()
        one.janitor.do(partial(settled.set_result, None), Kind.UPKEEP)
        settled.result(SOON_S)
    with Watch(two, "", first.number, on_gap) as watch:
        if on_gap == "latest":
            assert next_keys(watch, 3) == ["k2", "k0", "k1"]
            put(one, "k9")
            assert next_keys(watch, 1) == ["k9"]
        else:
            with pytest.raises(VersionDroppedError, match=f"missed versions after {first.number}"):
                watch.next(timeout_s=SOON_S)
            assert watch.next() is None


def test_a_watch_that_takes_nothing_has_a_bound(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "_CHANGES_MAX", 2)
    one = cluster.follower()
    with Watch(one, "", None, "raise") as watch, Watch(one, "", None, "latest") as other:
        watch._ready.result(SOON_S)
        other._ready.result(SOON_S)
        for key in ("a", "b", "a"):
            put(one, key)
        with pytest.raises(VersionDroppedError, match="it was too slow"):
            watch.next(timeout_s=SOON_S)
        assert next_keys(other, 2) == ["b", "a"]


def test_a_watch_waits_for_its_limit_and_no_longer(cluster: Cluster) -> None:
    with Watch(cluster.follower(), "a/", None, "raise") as watch:
        with pytest.raises(GetTimeoutError, match=r"'a/'... has come within 0.01 s"):
            watch.next(timeout_s=0.01)


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("is_ready", [False, True], ids=["first read", "read of the past"])
def test_a_watch_does_not_wait_longer_for_the_store(
    cluster: Cluster, is_ready: bool, is_async: bool
) -> None:
    one, two = cluster.follower(), cluster.follower()
    versions = [put(one, key) for key in "abc"]
    if not is_ready:
        cluster.memory.answers.clear()
    with Watch(two, "", versions[0].number, "raise") as watch:
        if is_ready:
            watch._ready.result(SOON_S)
            cluster.memory.answers.clear()
        for _ in range(2):
            with pytest.raises(GetTimeoutError, match=r"log of table 't' .* within 0.01 s: Ray's"):
                if is_async:
                    asyncio.run(watch.next_async(timeout_s=0.01))
                else:
                    watch.next(timeout_s=0.01)
        assert not cluster.memory.answers.is_set()
        cluster.memory.answers.set()
        assert next_keys(watch, 2) == ["b", "c"]


def test_a_watch_whose_read_of_the_past_fails_tries_it_again(cluster: Cluster) -> None:
    one, two = cluster.follower(), cluster.follower()
    versions = [put(one, key) for key in "ab"]
    with Watch(two, "", versions[0].number, "raise") as watch:
        watch._ready.result(SOON_S)
        refusing = Memory()
        refusing.values, refusing.refusals = cluster.memory.values, 1
        two._values = lambda: refusing  # of the watch's reads; the follower's thread has its own
        with pytest.raises(ControlError, match="does not answer"):
            watch.next(timeout_s=SOON_S)
        assert next_keys(watch, 1) == ["b"]


def test_a_watch_ends_with_its_session(cluster: Cluster) -> None:
    watch = Watch(cluster.follower(), "", None, "raise")
    watch._ready.result(SOON_S)
    cluster.is_over = True
    with pytest.raises(HopliteError, match="has ended in this process"):
        watch.next(timeout_s=SOON_S)


def test_a_watch_that_is_dropped_is_followed_no_longer(cluster: Cluster) -> None:
    follower = cluster.follower()
    watch = Watch(follower, "", None, "raise")
    watch._ready.result(SOON_S)
    settle(follower)
    assert len(follower._subscribers) == 1
    del watch
    gc.collect()
    assert len(follower._subscribers) == 0


def test_a_watch_takes_two_words_for_gaps(cluster: Cluster) -> None:
    with pytest.raises(InvalidArgumentError, match="it takes 'raise' or 'latest'"):
        Watch(cluster.follower(), "", None, "skip")  # type: ignore[arg-type]


def test_event_loops_watch_as_threads_do(cluster: Cluster) -> None:
    one, two = cluster.follower(), cluster.follower()

    async def watch_two() -> list[str]:
        watch = Watch(two, "", None, "raise")
        await asyncio.wrap_future(watch._ready)
        waiting = asyncio.ensure_future(watch.next_async(timeout_s=SOON_S))
        await asyncio.sleep(0)
        await asyncio.to_thread(put, one, "a")
        found = [await waiting]
        cancelled = asyncio.ensure_future(watch.next_async())
        await asyncio.sleep(0)
        cancelled.cancel()
        await asyncio.wait([cancelled])
        await asyncio.to_thread(put, one, "b")
        async for change in watch:
            found.append(change)
            watch.close()
        return [each.key for each in found if each is not None]

    assert asyncio.run(watch_two()) == ["a", "b"]


# ---- steps ----


def steps(log: list[str]) -> Steps[str]:
    waits: Future[str] = Future()
    waits.set_running_or_notify_cancel()
    try:
        yield waits
    except GetTimeoutError:
        log.append("late")
    waits.set_result("future")
    log.append((yield waits))
    log.append((yield Blocking(lambda deadline: "work")))
    try:
        yield Blocking(lambda deadline: 1 // 0)
    except ZeroDivisionError:
        log.append("error")
    return "end"


@pytest.mark.parametrize("is_async", [False, True])
def test_a_verb_and_its_twin_go_through_the_same_steps(is_async: bool) -> None:
    log: list[str] = []
    values: Any = None
    if is_async:
        end = asyncio.run(run_async(steps(log), values, "put of table 't'", 0.01))
    else:
        end = run(steps(log), values, "put of table 't'", 0.01)
    assert end == "end"
    assert log == ["late", "future", "work", "error"]


# ---- callers that leave ----


class Contents:
    """The values of a table: their storing waits for `may_end`."""

    def __init__(self) -> None:
        self.has_begun, self.may_end = threading.Event(), threading.Event()
        self.log: list[str] = []

    def store(self, writer: str, numbers: Any, *rest: Any) -> tuple[int, ...]:
        self.has_begun.set()
        assert self.may_end.wait(SOON_S)
        self.log.append("stored")
        return (1,)

    def delete(self, garbage: Garbage) -> None:
        self.log.append(f"deleted {garbage.numbers}")


def open_with(contents: Contents, follower: Follower) -> OpenTable:
    values: Any = contents
    return OpenTable(OPTIONS, follower, values)


def settle(follower: Follower) -> None:
    """Wait until the janitor has done all that it has now."""
    done: Future[None] = Future()
    follower.janitor.do(partial(done.set_result, None), Kind.UPKEEP)
    done.result(SOON_S)


def test_numbers_come_back_if_their_caller_has_left(cluster: Cluster) -> None:
    follower = cluster.follower()
    here, contents = open_with(Contents(), follower), Contents()
    first = follower.numbers(NUMBERS_AHEAD).result(SOON_S)
    steps = ask(follower.numbers(NUMBERS_AHEAD), here.forget_numbers)
    with pytest.raises(GetTimeoutError):
        run(steps, contents, "put of table 't'", 0.01)  # type: ignore[arg-type]
    here.forget_numbers(first)
    third = follower.numbers(NUMBERS_AHEAD).result(SOON_S)
    assert third.numbers[0] == 1 + 2 * NUMBERS_AHEAD


def test_values_that_are_stored_after_their_caller_has_left_are_deleted(cluster: Cluster) -> None:
    follower, contents = cluster.follower(), Contents()
    here = open_with(contents, follower)
    given = follower.numbers(1).result(SOON_S)

    async def leave() -> None:
        steps = store_values(here, given, [], 1)
        task = asyncio.ensure_future(run_async(steps, here.values, "put of table 't'", None))
        await asyncio.to_thread(contents.has_begun.wait, SOON_S)
        task.cancel()
        await asyncio.wait([task])
        settle(follower)
        assert contents.log == []
        contents.may_end.set()

    asyncio.run(leave())  # ends when the thread has ended
    settle(follower)
    assert contents.log == ["stored", "deleted (1,)"]


@pytest.mark.parametrize(
    ("error", "is_closed", "log"),
    [
        (None, False, []),
        (UnknownOutcomeError("the put may be in the log"), False, []),
        (ControlError("it was refused"), False, ["deleted (1,)"]),
        (ControlError("it was refused"), True, []),
    ],
)
def test_only_values_of_a_put_that_is_in_no_log_are_deleted(
    cluster: Cluster, error: Exception | None, is_closed: bool, log: list[str]
) -> None:
    follower, contents = cluster.follower(), Contents()
    given = follower.numbers(1).result(SOON_S)
    put_done: Future[PutDone] = Future()
    put_done.add_done_callback(partial(open_with(contents, follower).discard_refused, given))
    if is_closed:
        follower.close(HopliteError("the session has ended"))
    else:
        follower.janitor.do(lambda: None, Kind.UPKEEP)
    if error is None:
        put_done.set_result(PutDone(1, ()))
    else:
        put_done.set_exception(error)
    if not is_closed:
        settle(follower)
    assert contents.log == log


def cause_fault(cluster: Cluster) -> None:
    """Have the next read of the store raise what no store raises."""
    memory: Any = cluster.memory
    memory.read_all = lambda keys: [b"" for _ in range(1 // 0)]


def test_a_fault_of_the_thread_reaches_every_caller(cluster: Cluster) -> None:
    follower = cluster.follower()
    put(follower, "a")
    with Watch(follower, "", None, "raise") as watch:
        watch._ready.result(SOON_S)
        cause_fault(cluster)
        for wait in (
            lambda: follower.read().result(SOON_S),
            lambda: follower.numbers(1).result(SOON_S),
            lambda: watch.next(timeout_s=SOON_S),
        ):
            with pytest.raises(HopliteError, match=r"ended by a fault .* call again"):
                wait()
