"""Parked replicas: what makes one active, and how a replica and its stage say that it is parked."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ray import serve

from hoplite_ray.serve import ensemble, metrics, pipeline, scale_ahead, seams, stage
from hoplite_ray.serve.stages import parking
from hoplite_ray.serve.stages.parking import (
    PARKED_KEY,
    SILENT_S,
    Cause,
    Notice,
    Parking,
    ReplicaParking,
    count_prepared,
    parse_notice,
)
from hoplite_ray.serve.stages.replica import Replica
from tests.unit.test_serve_replica import ask

ME = "me"
STAGE = ("application", "stage")


@pytest.fixture(autouse=True)
def counts(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, dict[str, str]]]:
    """Return what is counted; no Ray runs here."""
    found: list[tuple[str, dict[str, str]]] = []
    for name in ("observe", "set_gauge"):
        monkeypatch.setattr(metrics, name, lambda *_, **__: None)
    monkeypatch.setattr(metrics, "count", lambda name, *_, **tags: found.append((name, tags)))
    return found


def make_notice(at: int, *replicas: str) -> Notice:
    return Notice(at, frozenset(replicas))


# What happens, at which second -> the cause for which the replica is active then.
LIVES: dict[str, tuple[list[tuple[float, Notice | None]], Cause | None]] = {
    "no notice yet": ([(SILENT_S - 0.1, None)], None),
    "never a notice": ([(SILENT_S, None)], Cause.SILENCE),
    "others are released": ([(1, make_notice(1, "other"))], None),
    "it is released": ([(1, make_notice(1, "other", ME))], Cause.POLICY),
    "released by a late first notice": ([(SILENT_S + 5, make_notice(1, ME))], Cause.POLICY),
    "the policy writes on": (
        [(SILENT_S * 0.9 * each, make_notice(each)) for each in range(1, 9)],
        None,
    ),
    "a policy that begins again": (
        [
            (5, make_notice(900)),
            (5 + 0.9 * SILENT_S, make_notice(1)),
            (5 + 1.8 * SILENT_S, make_notice(1)),
        ],
        None,
    ),
    "the policy stops": ([(5, make_notice(1)), (5 + SILENT_S, make_notice(1))], Cause.SILENCE),
    "its notice goes": ([(5, make_notice(1)), (5 + SILENT_S, None)], Cause.SILENCE),
    "the notice can't be read for a while": (
        [(5, make_notice(1)), (4 + SILENT_S, None), (6 + SILENT_S, make_notice(2))],
        None,
    ),
    "released, and then not": ([(1, make_notice(1, ME)), (2, make_notice(2))], Cause.POLICY),
    "released, and then silence": ([(1, make_notice(1, ME)), (99, None)], Cause.POLICY),
}


@pytest.mark.parametrize(("events", "cause"), LIVES.values(), ids=LIVES.keys())
def test_when_a_replica_becomes_active(
    events: list[tuple[float, Notice | None]], cause: Cause | None
) -> None:
    parked = Parking(ME, 0.0)
    for now_s, notice in events:
        parked.handle_notice(notice, now_s)
    assert parked.cause is cause


NOTICES = st.none() | st.builds(
    Notice, st.integers(0, 3), st.frozensets(st.sampled_from([ME, "other"]))
)
EVENTS = st.lists(
    st.tuples(st.floats(0, 2 * SILENT_S, allow_nan=False), NOTICES | st.just("query"))
)


@settings(max_examples=300)
@given(EVENTS)
def test_a_replica_parks_while_its_policy_lives_and_never_again(
    events: list[tuple[float, Any]],
) -> None:
    parked, now_s, heard_s, last_at = Parking(ME, 0.0), 0.0, 0.0, None
    for after_s, event in events:
        now_s += after_s
        before = parked.cause
        if event == "query":
            parked.handle_query()
            expected = Cause.QUERY
        else:
            parked.handle_notice(event, now_s)
            if event is not None and event.at != last_at:
                last_at, heard_s = event.at, now_s
            is_silent = now_s - heard_s >= SILENT_S
            expected = Cause.SILENCE if is_silent else None
            if event is not None and ME in event.replicas:
                expected = Cause.POLICY
        assert parked.cause is (before or expected)


@pytest.mark.parametrize(
    ("raw", "notice"),
    [
        (None, None),
        (b"", None),
        (b"\xff", None),
        (b"[" * 100_000, None),
        (b"[]", None),
        (b'{"at": 1}', None),
        (b'{"at": true, "replicas": []}', None),
        (b'{"at": 1, "replicas": "me"}', None),
        (b'{"at": 1, "replicas": ["me", 2]}', make_notice(1, ME)),
        (b'{"at": 7, "replicas": []}', make_notice(7)),
    ],
)
def test_a_notice_is_read_or_there_is_none(raw: bytes | None, notice: Notice | None) -> None:
    assert parse_notice(raw) == notice


@given(
    st.binary() | st.recursive(st.none() | st.integers(), st.lists).map(json.dumps).map(str.encode)
)
def test_no_bytes_of_a_notice_raise(raw: bytes) -> None:
    assert parse_notice(raw) is None or isinstance(parse_notice(raw), Notice)


@pytest.fixture
def values(monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    """Return Ray's key-value store, which a replica reads without a pause."""
    stored: dict[str, bytes] = {}
    monkeypatch.setattr(seams, "read_value", lambda key, timeout_s: stored.get(key))
    monkeypatch.setattr(parking, "POLL_S", 0.0)
    return stored


def begin_parking(activated: list[None]) -> ReplicaParking:
    return ReplicaParking(*STAGE, ME, lambda: activated.append(None))


def write(values: dict[str, bytes], at: int, *replicas: str) -> None:
    values["hoplite_released/application#stage"] = json.dumps(
        {"at": at, "replicas": replicas}
    ).encode()


def test_a_notice_in_the_store_releases_a_replica_once(
    values: dict[str, bytes], counts: list[tuple[str, dict[str, str]]]
) -> None:
    async def run() -> None:
        activated: list[None] = []
        parked = begin_parking(activated)
        write(values, 1, "other")
        for _ in range(20):
            await asyncio.sleep(0.001)
        assert parked.is_parked and not activated
        write(values, 2, "other", ME)
        await asyncio.wait_for(parked._task, 30)
        parked.handle_query()
        assert not parked.is_parked and len(activated) == 1

    asyncio.run(run())
    assert counts == [("serve_releases", {"cause": "policy"})]


def test_a_query_releases_a_replica_at_once(
    values: dict[str, bytes], counts: list[tuple[str, dict[str, str]]]
) -> None:
    async def run() -> None:
        activated: list[None] = []
        parked = begin_parking(activated)
        for _ in range(2):
            parked.handle_query()
        assert not parked.is_parked and len(activated) == 1
        with pytest.raises(asyncio.CancelledError):
            await parked._task

    asyncio.run(run())
    assert counts == [("serve_releases", {"cause": "query"})]


def test_a_store_that_does_not_answer_costs_the_parking_and_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(key: str, timeout_s: float) -> bytes | None:
        raise TimeoutError("the GCS is away")

    monkeypatch.setattr(seams, "read_value", fail)
    monkeypatch.setattr(parking, "POLL_S", 0.0)
    monkeypatch.setattr(parking, "SILENT_S", 0.01)

    async def run() -> None:
        activated: list[None] = []
        parked = begin_parking(activated)
        await asyncio.wait_for(parked._task, 30)
        assert len(activated) == 1

    with caplog.at_level("WARNING", logger="ray.serve"):
        asyncio.run(run())
    (told,) = caplog.messages
    assert "replica me of stage stage" in told and "hoplite_released/application#stage" in told


class Echo:
    def record_autoscaling_stats(self) -> dict[str, float]:
        return {"own": 3}

    def __call__(self, queries: list[Any]) -> list[Any]:
        return queries


@pytest.fixture
def context(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Have Serve say which replica this is."""
    at = SimpleNamespace(app_name=STAGE[0], deployment=STAGE[1], replica_tag=ME)
    monkeypatch.setattr(serve, "get_replica_context", lambda: at)
    yield


@pytest.mark.parametrize("by", ["edge", "handle", "policy"])
def test_a_replica_reports_that_it_is_parked_until_it_is_not(
    values: dict[str, bytes], context: None, by: str
) -> None:
    async def run() -> None:
        replica: Any = Replica.__new__(Replica)
        await replica.__init__(stage(starts_parked=True)(Echo), "stage", {})
        before = await replica.record_autoscaling_stats()
        assert (before[PARKED_KEY], before["own"]) == (1, 3)
        assert replica._door.is_parked
        if by == "edge":
            await ask(replica, 1, lambda _: None)
        elif by == "handle":
            assert await replica("id", 60.0, 1) == 1
        else:
            write(values, 1, ME)
            await asyncio.wait_for(replica._parking._task, 30)
        assert (await replica.record_autoscaling_stats())[PARKED_KEY] == 0
        assert not replica._door.is_parked
        await replica.__del__()

    asyncio.run(run())


POLICY = {"policy_function": "hoplite_ray.serve.slo.policy:Ahead", "policy_kwargs": {"prepared": 2}}


@pytest.mark.parametrize(
    "scaling", [scale_ahead(max_replicas=4, prepared=2), {"max_replicas": 4, "policy": POLICY}]
)
def test_replicas_are_prepared_only_for_a_stage_that_parks_them(scaling: Any) -> None:
    made = stage(autoscaling_config=scaling)(Echo)
    for make in (pipeline, ensemble):
        with pytest.raises(ValueError, match=r"echo: .*prepared=2\) needs .* give spare=2 instead"):
            make(echo=made)
        make(echo=made.options(starts_parked=True))


@pytest.mark.parametrize(
    "scaling", [None, scale_ahead(max_replicas=4, spare=2), {"max_replicas": 4}]
)
def test_other_ways_to_scale_need_no_parking(scaling: Any) -> None:
    assert count_prepared(scaling) == 0
    pipeline(echo=stage(autoscaling_config=scaling)(Echo))


def test_a_stage_says_at_its_declaration_whether_it_parks() -> None:
    made = stage(starts_parked=True)(Echo)
    assert made.starts_parked and made.options(max_batch=3).starts_parked
    assert made.bind().after("a").starts_parked
    assert not made.options(starts_parked=False).starts_parked and not stage(Echo).starts_parked
    with pytest.raises(TypeError, match="stage Echo: starts_parked=2 is to be True or False"):
        stage(starts_parked=2)(Echo)  # type: ignore[call-overload]
    for make in (pipeline, ensemble):
        make(echo=made)
        with pytest.raises(ValueError, match="stage echo: starts_parked=True needs edges='worlds'"):
            make(echo=made, edges="serve")
    with pytest.raises(ValueError, match="stage echo: starts_parked=True needs"):
        pipeline(echo=made).replace(edges="serve")
