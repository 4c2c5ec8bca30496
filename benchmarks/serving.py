"""The cost of serving beside plain Ray Serve, and the cost of a death: five cases.

    sudo .venv/bin/python benchmarks/serving.py
    python benchmarks/serving.py --only handoff,batching

handoff   ingress -> a -> b -> c with trivial work: from the end of one stage's code to the begin
          of the next one's, what the caller waits, and the CPU time of all replicas and the proxy.
          `serve` is the same application over Serve's plain handles, chained. `fast` is a Serve
          with RAY_SERVE_THROUGHPUT_OPTIMIZED=1; one in either mode is started in turns.
          Limits and ratios are of the better mode of either.
timeline  a replica of two is killed in the middle of a query, at a constant rate: 60 % of what one
          can do alone. Stages and members take 50 ms and no CPU.
batching  a model of 40 ms + 1 ms for each query, at random arrivals; `@serve.batch` as it is.
kills     random replicas of a pipeline with a join are killed, one after the other: is any query
          lost, or answered as it would not have been without?
ensemble  eight members on an emulated network, one a node, and queries of 50 MB. Needs root.

Limits are those of the design, for machines that are not overloaded.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import bounds
from carried import OverloadError, carried_share, check_carried
from figures import print_figures
from meters import machine
from network import Network, why_impossible
from peers.ray_cluster import RayCluster
from ranks import Rank, RankError
from serving_figures import HOP_S_MAX, LATE_SHARE_MAX, LATER_S_MAX, USUAL_S, figures

CASES = ("handoff", "timeline", "batching", "kills", "ensemble")
EDGES = ("worlds", "serve")
VICTIMS = {"slow_pipeline": ("first", "second"), "slow_ensemble": ("model0", "model1")}
KB, MB, MIB = 1_000, 1_000_000, 1 << 20
FASTER_MIN, CPU_SHARE_MAX = 2.0, 0.5  # against the same over Serve's handles
SLO_MS = 200.0
LIMITED_RATES = (50.0, 150.0, 300.0)
HTTP_RATE = 50.0
TIMELINE_RATE = 12.0  # 60 % of the 20 queries/s that one replica can answer
KILLS_RATE = 20.0
KILLS_AT_ONCE = 10  # in one answer of the driver
FAST = {
    "RAY_SERVE_THROUGHPUT_OPTIMIZED": "1",
    "RAY_SERVE_REPLICA_GRPC_MAX_MESSAGE_LENGTH": str(64 << 20),  # else 10 MB are refused
}
_PATHS = [str(Path(__file__).parents[1]), str(Path(__file__).parent)]
ENVIRONMENT = os.environ | {
    "PYTHONPATH": os.pathsep.join([*_PATHS, *filter(None, [os.environ.get("PYTHONPATH")])]),
    "RAY_AUTH_MODE": "disabled",
    "RAY_USAGE_STATS_ENABLED": "0",
}
MODES: dict[str, dict[str, str]] = {"default": {}, "fast": FAST}
WAYS = {"edges": "worlds", "value": "serve", "reference": "serve"}
PLAIN_WAYS = ("value", "reference")
NAMES = {"edges": "ours", "value": "Serve by value", "reference": "Serve by reference"}
CALLERS = 2  # of the ensemble, so that a query is under way while members work on another
STORED = 12  # queries that a node's store has room for
END_S = 60.0  # for a Ray to end; it takes seconds
_STARTS = 3  # Ray gives a raylet 30 s, and a busy machine needs more now and then

Record = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is measured."""

    rounds: int
    handoffs: dict[int, int]  # queries of each size in a round
    trials: int  # of each application in the timeline
    around_s: float  # before a kill, and after the replacement has answered
    arrivals_s: float
    late_s: float  # after the last arrival, for what has not been answered
    rates: tuple[float, ...]
    pause_s: float  # between kills at most
    members: int
    query_bytes: int
    queries: int  # of the ensemble in a round
    votes: int  # rounds of it
    timelines: tuple[tuple[str, str], ...]  # applications, and over which edges
    has_fast_mode: bool  # of Serve, which needs a Ray of its own


FULL = Sizes(
    rounds=5,
    handoffs={KB: 100, MB: 60, 10 * MB: 20},
    trials=4,
    around_s=4.0,
    arrivals_s=10.0,
    late_s=10.0,
    rates=(5.0, 50.0, 150.0, 300.0),
    pause_s=4.0,
    members=8,
    query_bytes=50 * MB,
    queries=8,
    votes=3,
    timelines=tuple((each, edges) for each in VICTIMS for edges in EDGES),
    has_fast_mode=True,
)
TOY = Sizes(
    rounds=1,
    handoffs={KB: 3, MB: 2},
    trials=1,
    around_s=0.5,
    arrivals_s=0.5,
    late_s=0.5,
    rates=(50.0,),
    pause_s=0.5,
    members=2,
    query_bytes=MB,
    queries=2,
    votes=1,
    timelines=(("slow_pipeline", "worlds"), ("slow_ensemble", "serve")),
    has_fast_mode=False,
)


@contextmanager
def serving(**environment: str) -> Iterator[Rank]:
    """A process with a Ray and a Serve of its own, and these variables."""
    for start in range(_STARTS):
        driver = Rank.start([], "serving_driver.play", environment=ENVIRONMENT | environment)
        try:
            driver.do("start")
            break
        except RankError:
            _end(driver)
            if start == _STARTS - 1:
                raise
    try:
        yield driver
    finally:
        _end(driver)


def _end(driver: Rank) -> None:
    """Have it end its Ray, whatever it does; some of that would outlive a driver that is killed."""
    with suppress(ProcessLookupError):
        os.kill(driver.pid, signal.SIGTERM)
    deadline_s = time.monotonic() + END_S
    ended = os.WEXITED | os.WNOHANG | os.WNOWAIT
    while time.monotonic() < deadline_s and os.waitid(os.P_PID, driver.pid, ended) is None:
        time.sleep(0.1)
    driver.close()


@contextmanager
def deployed(driver: Rank, application: str, edges: str) -> Iterator[str]:
    """An application runs; its name."""
    name = driver.do("deploy", application=application, edges=edges)
    yield name
    driver.do("delete", name=name)


def handoff(sizes: Sizes) -> Iterator[Record | str]:
    """Start a Serve in one mode, then in the other, and play both ways in each."""
    turns: dict[tuple[int, bool, str, str], list[Record]] = {}
    for _ in range(sizes.rounds):
        for mode, environment in MODES.items():
            if mode == "fast" and not sizes.has_fast_mode:
                continue
            with serving(**environment) as driver:
                for key, turn in _handoffs(driver, sizes):
                    turns.setdefault((*key, mode), []).append(turn)
    records = [_handoff_record(*key, played) for key, played in turns.items()]
    for size_bytes in sizes.handoffs:
        yield from _handoff_lines([each for each in records if each["size_bytes"] == size_bytes])
    yield from records


def _handoffs(driver: Rank, sizes: Sizes) -> Iterator[tuple[tuple[int, bool, str], Record]]:
    """Play both ways in one Serve, in turns."""
    names = {edges: driver.do("deploy", application="handoff", edges=edges) for edges in EDGES}
    for size_bytes, queries in sizes.handoffs.items():
        for whole in (False, True)[: 1 + (size_bytes >= MB)]:
            what = {"size_bytes": size_bytes, "queries": queries, "whole": whole}
            for edges, name in names.items():
                yield (size_bytes, whole, edges), driver.do("handoff", name=name, **what)


def _handoff_record(
    size_bytes: int, whole: bool, edges: str, mode: str, turns: Sequence[Record]
) -> Record:
    hops, through, taken = (
        [each for turn in turns for each in turn[name]]
        for name in ("hops_ms", "through_ms", "taken_ms")
    )
    return {
        "benchmark": "serving: handoff",
        "size_bytes": size_bytes,
        "whole_answer": whole,
        "edges": edges,
        "mode": mode,
        "queries": len(taken),
        "hop_p50_ms": percentile(hops, 50),
        "hop_p99_ms": percentile(hops, 99),
        "through_p50_ms": percentile(through, 50),
        "taken_p50_ms": percentile(taken, 50),
        "taken_p99_ms": percentile(taken, 99),
        "taken_p50_ms_of_rounds": [percentile(turn["taken_ms"], 50) for turn in turns],
        "cpu_ms": statistics.median(turn["cpu_ms"] for turn in turns),
    }


def _handoff_lines(records: Sequence[Record]) -> Iterator[str]:
    for whole in (False, True):
        found = {(r["edges"], r["mode"]): r for r in records if r["whole_answer"] == whole}
        if not found:
            continue
        size_bytes = records[0]["size_bytes"]
        title = f"{size_bytes / KB:,.0f} KB" + (", and back" if whole else "")
        yield f"{title:22} {'hop p50':>8} {'p99':>7} {'a to c':>8} {'caller':>8} {'p99':>8} CPU ms"
        for (edges, mode), each in found.items():
            text = f"  {edges + ', ' + mode:20} {each['hop_p50_ms']:8.2f} {each['hop_p99_ms']:7.2f}"
            text += f" {each['through_p50_ms']:8.2f} {each['taken_p50_ms']:8.2f}"
            yield f"{text} {each['taken_p99_ms']:8.2f} {each['cpu_ms']:6.1f}"
        hop, limit = _best(found, "worlds", "hop_p50_ms"), HOP_S_MAX[size_bytes] * 1e3
        faster = _best(found, "serve", "taken_p50_ms") / _best(found, "worlds", "taken_p50_ms")
        share = _best(found, "worlds", "cpu_ms") / _best(found, "serve", "cpu_ms")
        text = f"  worlds: hop {hop:.2f} ms of {limit:g} {word(hop <= limit)}; {faster:.2f} x as "
        text += f"fast, at least {FASTER_MIN:g} {word(faster >= FASTER_MIN)}; {share:.2f} x the "
        yield f"{text}CPU, at most {CPU_SHARE_MAX:g} {word(share <= CPU_SHARE_MAX)}"


def _best(found: Mapping[tuple[str, str], Record], edges: str, figure: str) -> float:
    """Return the figure of the better mode."""
    return float(min(each[figure] for (over, _), each in found.items() if over == edges))


def timeline(driver: Rank, sizes: Sizes) -> Iterator[Record | str]:
    """A pipeline and an ensemble, ours and over Serve's handles; stages die in turns."""
    around = {"before_s": sizes.around_s, "after_s": sizes.around_s}
    for application, edges in sizes.timelines:
        parts, trials = VICTIMS[application], []
        with deployed(driver, application, edges) as name:
            for trial in range(sizes.trials):
                part = parts[trial % len(parts)]
                what = {"name": name, "stage": part, "rate": TIMELINE_RATE}
                trials.append(driver.do("timeline", **what, **around))
        kind = application.removeprefix("slow_")
        yield from _timeline_lines(kind, edges, trials)
        for trial, each in enumerate(trials):
            yield {
                "benchmark": "serving: timeline",
                "application": kind,
                "edges": edges,
                "trial": trial,
                "victim": parts[trial % len(parts)],
                "made_s": each["made_s"],
                "begun_s": each["begun_s"],
                "queries": each["queries"],  # of each t_s, latency_ms, failure, was on the victim
            }


def _timeline_lines(kind: str, edges: str, trials: Sequence[Record]) -> Iterator[str]:
    later_ms, failed, beside = [], 0, 0
    by_second: dict[int, list[tuple[float, bool]]] = {}
    for trial in trials:
        queries = trial["queries"]
        usual_ms = statistics.median(taken for at_s, taken, _, _ in queries if at_s < -USUAL_S)
        for at_s, taken_ms, failure, held in queries:
            by_second.setdefault(int(at_s // 1), []).append((taken_ms, failure is not None))
            if held:
                later_ms.append(taken_ms - usual_ms)
            failed += held and failure is not None
            beside += not held and failure is not None
    yield f"{kind} over {edges}, {len(trials)} kills of a replica in the middle of a query"
    for second, seen in sorted(by_second.items()):
        taken = [taken_ms for taken_ms, _ in seen]
        text = f"  {second:+3} s: {len(seen):4} queries, median {statistics.median(taken):7.1f} ms"
        text += f", most {max(taken):7.1f}, {sum(bad for _, bad in seen)} failed"
        yield text
    most_ms = max(later_ms, default=0.0)
    text = f"  {len(later_ms)} had begun on the dead replica: {failed} failed, {beside} others"
    if not failed:
        limit_ms = LATER_S_MAX * 1e3
        text += f"; at most {most_ms:.0f} ms later than usual, limit {limit_ms:g} "
        text += word(most_ms <= limit_ms)
    yield text
    made, begun = (
        ", ".join("never" if each[name] is None else f"{each[name]:.1f}" for each in trials)
        for name in ("made_s", "begun_s")
    )
    yield f"  a replacement was made after {made} s, and had its first query after {begun} s"


def batching(driver: Rank, sizes: Sizes) -> Iterator[Record | str]:
    """Random arrivals inside of a replica, and over HTTP."""
    plans = [("arrivals", "batching", sizes.rates), ("over_http", "http", (HTTP_RATE,))]
    what = {"seconds": sizes.arrivals_s, "late_s": sizes.late_s}
    yield f"{'queries/s':22} {'p50 ms':>9} {'p99 ms':>9} {'batch':>6} {'late':>6}"
    for application, verb, rates in plans:
        for edges in EDGES:
            with deployed(driver, application, edges) as name:
                for seed, rate in enumerate(rates):
                    seen = driver.do(verb, name=name, rate=rate, seed=seed, **what)
                    record = _batching_record(verb, edges, rate, seen)
                    yield _batching_line(record)
                    yield record


def _batching_record(verb: str, edges: str, rate: float, seen: Record) -> Record:
    latencies = [float("inf") if each is None else each for each in seen["latencies_ms"]]
    batches = sum(1 / size for size in seen["sizes"])
    return {
        "benchmark": "serving: batching",
        "from": "http" if verb == "http" else "inside",
        "by": "@serve.batch" if edges == "serve" else "stage",
        "rate": rate,
        "queries": len(latencies),
        "never": seen["latencies_ms"].count(None),
        "p50_ms": _finite(percentile(latencies, 50)),
        "p99_ms": _finite(percentile(latencies, 99)),
        "batch": len(seen["sizes"]) / batches if batches else None,
        "late_share": sum(each > SLO_MS for each in latencies) / len(latencies),
    }


def _finite(value: float) -> float | None:
    return value if value < float("inf") else None


def _batching_line(record: Record) -> str:
    times = (record["p50_ms"], record["p99_ms"], record["batch"])
    cells = [f"{each:.1f}" if each is not None else "never" for each in times]
    name = f"{record['rate']:g}, {record['from']}: {record['by']}"
    text = f"{name:22} {cells[0]:>9} {cells[1]:>9} {cells[2]:>6} {record['late_share']:6.1%}"
    if record["by"] == "stage" and record["rate"] in LIMITED_RATES:
        text += f" over {SLO_MS:g} ms, at most {LATE_SHARE_MAX:.0%} "
        text += word(record["late_share"] <= LATE_SHARE_MAX)
    return text + (f" ({record['never']} never answered)" if record["never"] else "")


def kills(driver: Rank, sizes: Sizes, count: int) -> Iterator[Record | str]:
    """Kill random replicas under load; every answer has to come, and to be the usual one."""
    total: Record = {"kills": {}, "queries": 0, "lost": [], "wrong": 0, "again": 0, "taken_ms": []}
    with deployed(driver, "search", "worlds") as name:
        driver.do("learn", name=name)
        done = 0
        while done < count:
            now = min(KILLS_AT_ONCE, count - done)
            what = {"count": now, "rate": KILLS_RATE, "pause_s": sizes.pause_s, "seed": done}
            seen = driver.do("kill", name=name, **what)
            done += now
            for stage, killed in seen.pop("kills").items():
                total["kills"][stage] = total["kills"].get(stage, 0) + killed
            for field, value in seen.items():
                total[field] += value
            lost = len(total["lost"])
            yield f"{done} kills, {total['queries']} queries, {lost} lost, {total['wrong']} wrong"
    taken_ms = total.pop("taken_ms")
    total |= {"p50_ms": percentile(taken_ms, 50), "p99_ms": percentile(taken_ms, 99)}
    total["most_ms"] = max(taken_ms)
    of = ", ".join(f"{killed} of {stage}" for stage, killed in sorted(total["kills"].items()))
    yield f"  killed: {of}; {total['again']} queries ran more than once at a stage"
    text = f"  answers after {total['p50_ms']:.0f} ms, p99 {total['p99_ms']:.0f}, "
    text += f"most {total['most_ms']:.0f}"
    yield f"{text}: {word(not total['lost'] and not total['wrong'])}"
    for failure in sorted(set(total["lost"])):
        yield f"  {total['lost'].count(failure)} x {failure}"
    yield {"benchmark": "serving: kills", **total}


def large_ensemble(sizes: Sizes, asked: argparse.Namespace) -> Iterator[Record | str]:
    """Members on the nodes of an emulated network; ours and Serve's two ways take turns."""
    impossible = why_impossible()
    if impossible:
        yield f"ensemble: {impossible}; nothing was measured"
        return
    with Network(sizes.members, rate_mbit=asked.rate_mbit) as network:
        try:
            carried = (carried_share if asked.toy else check_carried)(network)
        except OverloadError as error:
            yield f"ensemble: {error}"
            return
        yield f"ensemble: {network}, {carried:.0%} of it carried"
        with votes(network, sizes) as (driver, names):
            turns: dict[str, list[Record]] = {way: [] for way in WAYS}
            for _ in range(sizes.votes):
                for way, edges in WAYS.items():
                    what = {"size_bytes": sizes.query_bytes, "callers": CALLERS}
                    driver.do("vote", name=names[edges], way=way, queries=1, **what)
                    what["queries"] = sizes.queries
                    turns[way].append(driver.do("vote", name=names[edges], way=way, **what))
    hop_s = bounds.hop_s(sizes.query_bytes, rate_mbit=asked.rate_mbit)
    head = f"{'':24} {'queries/s':>9} {'(least to most)':>16} {'caller s':>8}"
    yield f"{head}; a link carries {1 / hop_s:.2f} queries/s"
    medians = {}
    for way, played in turns.items():
        rates = [sizes.queries / turn["seconds"] for turn in played]
        taken_s = [each / 1e3 for turn in played for each in turn["taken_ms"]]
        medians[way] = statistics.median(rates)
        spread = f"({min(rates):.3f} to {max(rates):.3f})"
        text = (
            f"  {NAMES[way]:22} {medians[way]:9.3f} {spread:>16} {statistics.median(taken_s):8.2f}"
        )
        yield text
        yield {
            "benchmark": "serving: ensemble",
            "way": way,
            "members": sizes.members,
            "rate_mbit": asked.rate_mbit,
            "size_bytes": sizes.query_bytes,
            "callers": CALLERS,
            "queries_per_s": rates,
            "link_queries_per_s": 1 / hop_s,
            "taken_s": taken_s,
            "carried_share": carried,
        }
    others = ", ".join(f"{medians['edges'] / medians[w]:.2f} x {NAMES[w]}" for w in PLAIN_WAYS)
    yield f"  ours: {others}"


@contextmanager
def votes(network: Network, sizes: Sizes) -> Iterator[tuple[Rank, dict[str, str]]]:
    """Ray on a network's nodes, driven from the first, with both ensembles: names by edges."""
    began_s = time.monotonic()
    store_bytes = STORED * sizes.query_bytes + 128 * MIB
    cluster = RayCluster.start(network, store_bytes=store_bytes)
    started_s = time.monotonic() - began_s
    words = (cluster.address, str(store_bytes), str(network.slowest_mbit))
    environment = cluster.environment
    driver = Rank.start(network.within(0), "serving_driver.play", *words, environment=environment)
    with ExitStack() as stack:
        stack.callback(driver.close)
        names = {}
        for edges in EDGES:
            what = {"application": "large_ensemble", "edges": edges, "count": sizes.members}
            names[edges] = driver.do("deploy", **what)
        deployed_s = time.monotonic() - began_s - started_s
        text = f"{network.count} Ray nodes after {started_s:.0f} s, "
        print(f"{text}two ensembles {deployed_s:.0f} s later", flush=True)
        yield driver, names


def percentile(values: Sequence[float], share: int) -> float:
    """The value that `share` % are not above."""
    return sorted(values)[max(-(-len(values) * share // 100) - 1, 0)]


def word(holds: bool) -> str:
    return "ok" if holds else "OVER"


def main() -> int:
    asked = parse_options()
    sizes = TOY if asked.toy else FULL
    if asked.rounds:
        sizes = replace(sizes, rounds=asked.rounds, trials=asked.rounds, votes=asked.rounds)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # else the namespaces would stay
    where = machine()
    print(", ".join(f"{what} {value}" for what, value in where.items()), flush=True)
    records: list[Record] = []
    for found in played(sizes, asked):
        if isinstance(found, str):
            print(found, flush=True)
        else:
            records.append(found)
    if asked.toy:
        print("toy sizes: they prove only that it runs")
    if asked.json:
        for record in records:
            print(json.dumps(record | where))
        print_figures("serving", figures(records), where)
    return 0


def played(sizes: Sizes, asked: argparse.Namespace) -> Iterator[Record | str]:
    """All cases that are asked for."""
    of_one: dict[str, Callable[[Rank], Iterator[Record | str]]] = {
        "timeline": lambda driver: timeline(driver, sizes),
        "batching": lambda driver: batching(driver, sizes),
        "kills": lambda driver: kills(driver, sizes, asked.kills),
    }
    if "handoff" in asked.only:
        yield from handoff(sizes)
    wanted = [case for case in of_one if case in asked.only]
    if wanted:
        with serving() as driver:
            for case in wanted:
                yield from of_one[case](driver)
    if "ensemble" in asked.only:
        yield from large_ensemble(sizes, asked)


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", type=_cases, default=list(CASES), help=f"of {','.join(CASES)}")
    parser.add_argument("--kills", type=int, help="of the case kills (default: 100)")
    parser.add_argument("--rounds", type=int, help="of handoff and ensemble; kills of a timeline")
    parser.add_argument("--rate-mbit", type=float, default=500, help="of the ensemble's links")
    parser.add_argument("--json", action="store_true", help="add a line for each figure")
    parser.add_argument("--toy", action="store_true", help="proves only that it runs")
    asked = parser.parse_args()
    asked.kills = asked.kills or (3 if asked.toy else 100)
    return asked


def _cases(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",")]
    if not {*names} <= {*CASES}:
        raise argparse.ArgumentTypeError(f"cases are {', '.join(CASES)}")
    return names


if __name__ == "__main__":
    sys.exit(main())
