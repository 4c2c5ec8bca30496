"""One replica of a stage without Serve: what it answers, and when that is packed."""

from __future__ import annotations

import asyncio
import socket
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import pytest
from ray.serve._private.common import RUNNING_REQUESTS_KEY

from hoplite_ray.serve import LateError, metrics, query_snapshots, stage
from hoplite_ray.serve.edge.frames import Message
from hoplite_ray.serve.routing import discovery
from hoplite_ray.serve.routing.query import Query, take_cut
from hoplite_ray.serve.stages.compute import Compute
from hoplite_ray.serve.stages.replica import Replica

LOAD = ("hoplite_arrivals", "hoplite_backlog_s", "hoplite_late", "hoplite_served")


@pytest.fixture(autouse=True)
def uncounted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replicas tell Ray's metrics, and no Ray runs here."""
    for name in ("count", "observe", "set_gauge"):
        monkeypatch.setattr(metrics, name, lambda *_, **__: None)


def run_replica(of: Any, work: Callable[[Replica], Awaitable[None]]) -> None:
    """Do `work` with a replica that has no downstream stage."""

    async def run() -> None:
        replica: Any = Replica.__new__(Replica)
        await replica.__init__(of, "doubles", {})
        try:
            await work(replica)
        finally:
            await replica.__del__()  # as Serve ends it

    asyncio.run(run())


def ask(replica: Replica, value: Any, told: Callable[[bool], Any], *, alone: bool = False) -> Any:
    """Begin a query as it comes over an edge; `fields` hears when its work begins and ends."""

    def notify_running(has_begun: bool) -> asyncio.Event:
        told(has_begun)
        was_told = asyncio.Event()
        was_told.set()
        return was_told

    query = Query("id", 1, "", value, 60.0, {}, runs_alone=alone)
    return asyncio.ensure_future(replica._answer_call(query.fields, notify_running))


def read(answer: Any) -> Any:
    """Return an answer as its caller gets it."""
    return Message.pack(0, 0, answer).value()


class Doubles:
    """Answers every batch in one buffer, and every half of one that fails."""

    def __init__(self) -> None:
        self._out = np.empty((4, 10_000))

    def __call__(self, queries: list[Any]) -> list[Any]:
        if None in queries:
            raise ValueError("nothing can't be doubled")
        for row, query in zip(self._out, queries, strict=False):
            row[:] = 2 * query
        return [{"row": row} for row in self._out[: len(queries)]]


class DoublesAsync(Doubles):
    async def __call__(self, queries: list[Any]) -> list[Any]:  # type: ignore[override]
        return super().__call__(queries)


@pytest.mark.parametrize("user_class", [Doubles, DoublesAsync])
def test_an_answer_is_that_of_its_own_query_whatever_the_next_batch_writes(
    user_class: Any,
) -> None:
    """Case review_12."""

    async def work(replica: Replica) -> None:
        numbers = [None if number % 7 == 6 else number for number in range(20)]
        asked = [ask(replica, number, lambda _: None) for number in numbers]
        answers = await asyncio.gather(*asked, return_exceptions=True)  # all batches have run
        for number, answer in zip(numbers, answers, strict=True):
            if number is None:
                assert isinstance(answer, ValueError)
            else:
                assert (read(answer)["row"] == 2 * number).all(), number

    run_replica(stage(max_batch=4)(user_class), work)


def test_an_answer_that_kills_when_it_is_packed_kills_while_its_query_runs() -> None:
    told: list[Any] = []

    class Fatal:
        def __reduce__(self) -> Any:
            told.append("packed")
            sys.exit(1)

    class Fatally:
        def __call__(self, queries: list[Any]) -> list[Any]:
            return [Fatal() for _ in queries]

    async def work(replica: Replica) -> None:
        with pytest.raises(TypeError, match=r"answer of stage doubles can't be sent \(SystemExit"):
            await ask(replica, 1, told.append, alone=True)

    run_replica(stage(Fatally), work)
    assert told == [True, "packed", False]


@pytest.mark.filterwarnings("error")
def test_a_replica_that_was_never_made_whole_ends_without_a_word() -> None:
    class Refuses:
        def __init__(self) -> None:
            raise ValueError("there is no model")

        def __call__(self, queries: list[Any]) -> list[Any]:
            return queries

    async def made() -> None:
        replica: Any = Replica.__new__(Replica)
        with pytest.raises(ValueError, match="no model"):
            await replica.__init__(stage(Refuses), "refuses", {})
        assert replica.__del__() is None

    asyncio.run(made())


def test_a_stage_that_tells_serve_nothing_is_scaled_by_its_queries() -> None:
    class Silent:
        def record_autoscaling_stats(self) -> None: ...

        def record_replica_metadata(self) -> None: ...

        def __call__(self, queries: list[Any]) -> list[Any]:
            return queries

    async def work(replica: Replica) -> None:
        stats = await replica.record_autoscaling_stats()
        assert stats == {**dict.fromkeys(LOAD, 0), RUNNING_REQUESTS_KEY: 0}
        assert list(replica.record_replica_metadata()) == [discovery.METADATA_KEY]

    run_replica(stage(Silent), work)


class Cuts:
    def __call__(self, queries: list[Any]) -> list[Any]:
        return list(query_snapshots())


def test_a_stage_sees_the_cut_of_each_query() -> None:
    async def work(replica: Replica) -> None:
        cuts = (7.25, 7.5)
        queries = [Query(f"{cut}", 1, "", None, 60.0, {}, cut_s=cut) for cut in cuts]
        notify: Any = None  # for queries that run alone
        over_edges = [replica._answer_call(each.fields, notify) for each in queries]
        assert [read(answer) for answer in await asyncio.gather(*over_edges)] == [*cuts]
        assert read(await replica("by handle", 60.0, None, cut_s=7.75)) == 7.75

    run_replica(stage(Cuts), work)


def test_a_profile_reads_tables_as_of_the_present() -> None:
    async def work() -> None:
        seen: list[float] = []

        class Reads:
            def __call__(self, queries: list[Any]) -> list[Any]:
                seen.extend(query_snapshots())
                return queries

        compute = Compute(stage(Reads), "profile", Reads(), "an answer")
        began_s = time.time()
        await compute.run_batch([1, 2])
        compute.close()
        assert len(seen) == 2
        assert all(began_s - 0.2 < each <= time.time() for each in seen)

    asyncio.run(work())


def test_the_next_stage_has_the_same_cut_and_a_tenth_of_a_second_has_one() -> None:
    query = Query("id", 1, "", None, 60.0, {}, cut_s=take_cut(7.29))
    assert query.for_next_stage("a", None, 1.0).cut_s == 7.2
    assert Query(*query.fields) == query
    assert {take_cut(now_s) for now_s in (7.3, 7.35, 7.399)} == {7.3}


class Gate:
    """Answers when the test opens it, with an error for a query that is one."""

    is_open: asyncio.Event

    async def __call__(self, queries: list[Any]) -> list[Any]:
        await self.is_open.wait()
        return queries


def test_a_stage_reports_what_came_what_waits_and_what_was_late() -> None:
    async def work(replica: Replica) -> None:
        async def report() -> list[float]:
            stats = await replica.record_autoscaling_stats()
            return [stats[name] for name in (*LOAD, RUNNING_REQUESTS_KEY)]

        def ask_for(value: Any, left_s: float) -> asyncio.Future[Any]:
            query = Query("id", 1, "", value, left_s, {})
            return replica._compute.run(query, value, time.monotonic() + left_s)

        Gate.is_open = asyncio.Event()
        replica._compute._batches.service_time.learn(2, 0.5)  # a full batch
        runs = [ask_for(1, 60.0), ask_for(2, 60.0), ask_for(3, 60.0), ask_for(4, -1.0)]
        runs += [ask_for(ValueError("bad"), 60.0), ask_for(6, 60.0)]
        assert await report() == [6, 1.5, 0, 0, 6]  # one runs, five wait in three batches
        runs[-1].cancel()
        await asyncio.sleep(0)
        assert await report() == [6, 1.0, 0, 1, 5]
        Gate.is_open.set()
        await asyncio.gather(*runs, return_exceptions=True)
        assert await report() == [6, 0, 0, 6, 0], "the fourth one came too late"

    run_replica(stage(max_batch=2)(Gate), work)


def test_a_query_that_is_dropped_counts_as_late_although_its_time_is_not_over() -> None:
    async def work(replica: Replica) -> None:
        query = Query("id", 1, "", 1, 60.0, {})
        answer = replica._compute.run(query, 1, time.monotonic() + 60.0)
        replica._compute._batches.finish(1, 99.0)  # which is how long its own batch would take
        with pytest.raises(LateError):
            await answer
        await asyncio.sleep(0)
        stats = await replica.record_autoscaling_stats()
        assert [stats[name] for name in LOAD] == [1, 0, 1, 1]

    run_replica(stage(late="drop")(Gate), work)


@pytest.mark.parametrize(
    ("left_s", "after_s", "late_count"),
    [
        (60.0, 0.0, 0),
        (0.01, 0.0, 1),  # it came early enough, and its batch took longer
        (-1.0, 0.0, 0),  # it came too late: a stage before this one was slow
        (60.0, 10.0, 0),
        (10.01, 10.0, 1),  # in time here, and the later stages have too little left
        (9.0, 10.0, 0),
    ],
)
def test_a_late_answer_counts_at_the_stage_that_has_made_it_late(
    left_s: float, after_s: float, late_count: int
) -> None:
    class Slow:
        def __call__(self, queries: list[Any]) -> list[Any]:
            time.sleep(0.05)
            return queries

    async def run() -> None:
        compute = Compute(stage(Slow), "slow", Slow(), "the answer")
        compute.learn_after(after_s, time.monotonic() + 60, is_joined=False)
        await compute.run(Query("id", 1, "", 0, left_s, {}), 0, time.monotonic() + left_s)
        load = compute.report_load()
        assert (load["hoplite_served"], load["hoplite_late"]) == (1, late_count)
        compute.close()

    asyncio.run(run())


class Keeps:
    """Keeps the interpreter for some 20 ms: `sum` lets no other thread run meanwhile."""

    def __init__(self) -> None:
        self.log: list[str] = []
        began_s = time.monotonic()
        sum(range(1_000_000))
        self._count = int(20_000 / max(time.monotonic() - began_s, 1e-4))

    def __call__(self, queries: list[str]) -> list[str]:
        self.log.append(f"{queries[0]} begins")
        sum(range(self._count))
        return queries


class Releases(Keeps):
    """Runs as long, and lets other threads run."""

    def __call__(self, queries: list[str]) -> list[str]:
        self.log.append(f"{queries[0]} begins")
        time.sleep(0.02)
        return queries


def test_answers_are_sent_before_a_batch_that_keeps_the_interpreter() -> None:
    async def run() -> None:
        user = Keeps()
        compute = Compute(stage(max_batch=1)(Keeps), "keeps", user, "the answer")
        near, far = socket.socketpair()
        far.setblocking(False)
        near.setblocking(False)
        loop = asyncio.get_running_loop()

        async def ask(number: int) -> None:
            text = str(number)
            query = Query(text, 1, "", text, 60, {})
            await compute.run(query, text, time.monotonic() + 60)
            await asyncio.sleep(0)  # as answers take some turns of the loop
            near.send(text.encode())

        async def hear() -> None:
            for _ in range(5):
                user.log.append(f"{(await loop.sock_recv(far, 1)).decode()} heard")

        await asyncio.gather(hear(), *(ask(number) for number in range(5)))
        assert compute.loop_share > 0.5
        expected = [f"{number} {what}" for number in range(5) for what in ("begins", "heard")]
        assert user.log == expected
        compute.close()
        near.close()
        far.close()

    asyncio.run(run())


def test_a_stage_that_lets_the_loop_run_has_no_share_of_its_time() -> None:
    async def run() -> None:
        user = Releases()
        compute = Compute(stage(Releases), "releases", user, "the answer")
        for _ in range(5):
            await compute.run_batch(["a"])
        assert compute.loop_share < 0.5
        compute.close()

    asyncio.run(run())


def test_only_ways_to_an_idle_replica_are_learnt() -> None:
    async def run() -> None:
        compute = Compute(stage(Releases), "releases", Releases(), "the answer")
        compute.learn_hop(1.0, time.time())
        sent_s = time.time()
        running = asyncio.create_task(compute.run_batch(["a"]))
        await asyncio.sleep(0.005)
        await running
        compute.learn_hop(2.0, sent_s)  # it was sent before the batch ended
        compute.learn_hop(3.0, time.time() + 1)
        _, hops, _ = compute.report_times()
        assert hops == [1.0, 3.0]
        compute.close()

    asyncio.run(run())
