"""The table of docs/explain/lifetime.md, row by row: processes die, and the arenas tell."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import ray

import hoplite_ray as hop
from hoplite_ray.plugin.process.attachment import attachment
from tests.ray.lifetimes import VERBS, Bench, Crew, Job, Row, await_end, expect, make
from tests.ray.raycluster import RayCluster, eventually

OUTCOMES = {"live", "orphaned", "lost", "gone"}


def table() -> dict[str, Row]:
    """The rows of docs/explain/lifetime.md."""
    text = (Path(__file__).parents[2] / "docs" / "explain" / "lifetime.md").read_text()
    rows: dict[str, Row] = {}
    for line in text.partition("| what happens |")[2].splitlines()[2:]:
        what, *outcomes = (cell.strip() for cell in line.strip("|").split("|"))
        rows[what] = dict(zip(VERBS, outcomes, strict=True))
    return rows


TABLE = table()


@pytest.fixture(scope="module")
def crew(cluster: RayCluster) -> Crew:
    return Crew(cluster)


# In `make verify` only: what else shows their claims.
SLOW = {
    "the maker's whole Ray node crashes",  # a crash: test_node.py; an orphan: each row of a death
    "the maker is killed with `ray.kill`",  # as with `kill -9`
    "the maker's process ends by itself",  # as a worker with `max_calls=1`
    "the driver calls `ray.shutdown` and lives on, a borrower keeps its Arrays",  # as if killed
}


ROWS: dict[str, Callable[[Bench, Row], None]] = {}
RESULTS: dict[str, Bench] = {}


def row(what: str) -> Callable[[Callable[[Bench, Row], None]], Callable[[Bench, Row], None]]:
    def noted(run: Callable[[Bench, Row], None]) -> Callable[[Bench, Row], None]:
        ROWS[what] = run
        return run

    return noted


@pytest.fixture(scope="module")
def printed() -> Iterator[None]:
    """Prints what was measured, in the words of the table."""
    yield
    for what, bench in RESULTS.items():
        cells = [
            f"{verb} {bench.left.get(verb, 0) >> 10}/{bench.made.get(verb, 0) >> 10} KiB "
            f"{TABLE[what][verb]}"
            for verb in VERBS
        ]
        print(f"\n{what}: {', '.join(cells)}", end="")  # noqa: T201


@pytest.mark.timeout(240)  # the reduces of a crashed Ray node are orphans 30 s later
@pytest.mark.parametrize(
    "what",
    [pytest.param(each, marks=[pytest.mark.slow] if each in SLOW else []) for each in TABLE],
)
def test_row(what: str, crew: Crew, printed: None) -> None:
    crew.fill()
    expect(0, "earlier tests have left nothing")
    bench = Bench(crew)
    ROWS[what](bench, TABLE[what])
    RESULTS[what] = bench


def test_the_table_has_the_rows_that_are_run() -> None:
    assert set(ROWS) == set(TABLE) >= SLOW
    assert {outcome for each in TABLE.values() for outcome in each.values()} == OUTCOMES


def maker_row(what: str, end: Callable[[Bench, Any], None], *, dies: bool) -> None:
    """A maker lends what it has made to the borrower; then `end` happens to it."""

    @row(what)
    def run(bench: Bench, row: Row) -> None:
        maker = bench.crew.maker()
        bench.lend(bench.lent_by(maker))
        canary = ray.get(maker.canary.remote())
        end(bench, maker)
        if dies:
            await_end(canary)
        bench.settle(row)
        if not dies:
            bench.crew.leave(maker)
        bench.clear()


def kill(pid: ray.ObjectRef[int]) -> None:
    os.kill(ray.get(pid), signal.SIGKILL)


def kill_beside_its_child(bench: Bench, maker: Any) -> None:
    assert ray.get(maker.fork.remote()) == 9 * ["UnusableAfterForkError"]
    assert ray.get(maker.read.remote("put")) == 1.0  # nothing has changed for the parent
    kill(maker.pid.remote())


def kill_node(bench: Bench, maker: Any) -> None:
    kill(maker.node_pid.remote())
    ray.get(maker.attach.remote())  # the first caller begins the node's next incarnation


def kill_steward(bench: Bench, maker: Any) -> None:
    kill(maker.steward_pid.remote())
    ray.get(maker.attach.remote())  # the next one's anchors do what the last one's did


maker_row(
    "the maker drops its refs, a borrower keeps its Arrays",
    lambda bench, maker: ray.get(maker.drop.remote()),
    dies=False,
)
maker_row(
    "the maker's process ends by itself",
    lambda bench, maker: maker.__ray_terminate__.remote(),
    dies=True,
)
maker_row(
    "the maker is killed with `kill -9`", lambda bench, maker: kill(maker.pid.remote()), dies=True
)
maker_row("the maker is killed with `ray.kill`", lambda bench, maker: ray.kill(maker), dies=True)
maker_row("the maker forks, and is killed while its child lives", kill_beside_its_child, dies=True)
maker_row("the node process of the maker's Ray node is killed", kill_node, dies=False)
maker_row("the steward of the maker's Ray node is killed", kill_steward, dies=False)


@row("the maker's whole Ray node crashes")
def crashed(bench: Bench, row: Row) -> None:
    node = bench.cluster.add_node("n3")
    maker = bench.crew.maker(3)
    bench.lend(bench.lent_by(maker))
    bench.cluster.crash_node(node)
    bench.settle(row)
    bench.clear()


@row("the maker is a worker with `max_calls=1`")
def one_call(bench: Bench, row: Row) -> None:
    once = ray.remote(num_cpus=0, max_calls=1)(make)
    run = once.options(**bench.cluster.on(1)).remote
    bench.lend(lambda verb: ray.get(bench.borrower.keep.remote(verb, ray.get(run(verb)))))
    bench.settle(row)
    bench.clear()


@row("a detached actor keeps them after its job")
def detached(bench: Bench, row: Row) -> None:
    job = Job(bench)
    job.say("detach", "all")
    job.end(killed=False)
    kept = ray.get_actor("detached", namespace="table")
    bench.lend(lambda verb: ray.get(kept.lend.remote(verb, bench.borrower)), made_before=True)
    bench.settle(row)
    ray.get(bench.borrower.drop.remote())
    ray.kill(kept)
    bench.clear()


@row("the owner of the refs never reads them and drops them")
def unread(bench: Bench, row: Row) -> None:
    maker = bench.crew.maker()
    refs = []

    def make_unread(verb: str) -> None:
        refs.append(maker.make.remote(verb))
        hop.wait(refs[-1:], timeout_s=60)

    bench.lend(make_unread)
    ray.get(maker.drop.remote())
    refs.clear()
    bench.settle(row)
    bench.crew.leave(maker)


@row("the driver is killed with `kill -9`, a borrower keeps its Arrays")
def driver_killed(bench: Bench, row: Row) -> None:
    job = Job(bench)
    bench.lend(lambda verb: job.say("lend", verb))
    job.say("reduce", "pending")
    assert eventually(lambda: pending_reduces() == 1)
    job.end(killed=True)
    assert eventually(lambda: pending_reduces() == 0)
    bench.settle(row)
    bench.clear()


@row("the driver is killed with `kill -9`, no other process has any")
def lonely_driver_killed(bench: Bench, row: Row) -> None:
    job = Job(bench)
    bench.lend(lambda verb: job.say("keep", verb))
    job.end(killed=True)
    bench.settle(row, lent=False)


@row("the driver calls `ray.shutdown` and lives on, a borrower keeps its Arrays")
def driver_shut_down(bench: Bench, row: Row) -> None:
    job = Job(bench)
    bench.lend(lambda verb: job.say("lend", verb))
    job.say("shutdown", "ray")
    await_end(job.canary)
    bench.settle(row)
    bench.clear()
    job.end(killed=True)


def pending_reduces() -> int:
    """Of processes on the first Ray node, which is ours."""
    steward = attachment().steward
    return int(ray.get(steward.__ray_call__.remote(lambda self: len(self._pending))))
