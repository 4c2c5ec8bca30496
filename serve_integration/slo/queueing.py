"""Pipelines under virtual time: which latencies their queries have, by measured service times.

Pure: arrivals and a seed come in, latencies go out; the same inputs give the same latencies. It
queues queries by the same `Batches` as a replica, and chooses replicas by the same `least_loaded`.
Stages may be shared: the queries of all pipelines then wait in the same queues.
An answer goes back through the replicas that its query came by. One whose batches keep the
interpreter passes it on when its batch ends.
It leaves out the CPU that stages on one machine take from each other: a profile that was measured
beside the neighbours has that in its service times. Replicas neither die nor start.
Source: InferLine, whose planner asks such a simulation.
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from hoplite_ray.serve.routing.choice import least_loaded
from hoplite_ray.serve.slo.profile import Profile
from hoplite_ray.serve.stages.batching import Batches, Late
from hoplite_ray.serve.stages.compute import WAITING_MAX

_HELD_MIN = 0.5  # of batches' time; above it an answer that comes amid a batch waits for its end

HOP_S = 0.0005  # for a small query from one replica to the next, and for its answer back


@dataclass(frozen=True, slots=True)
class StageModel:
    """A stage as the simulation has it: its profile, its options and its place in the graph.

    inputs:  in a graph that is one pipeline; shared stages have theirs in each `Stream`.
    """

    profile: Profile
    cap: int
    replicas: int
    inputs: tuple[str, ...] = ()
    late: Late = Late.SERVE

    @property
    def is_held(self) -> bool:
        """True if a replica passes no message on while its batch runs."""
        return self.profile.loop_share > _HELD_MIN

    def mean_hop_s(self, hop_s: float) -> float:
        """Return the mean way to the stage in its profile, or `hop_s` if that has none."""
        seen = self.profile.hops_s
        return math.fsum(seen) / len(seen) if seen else hop_s


@dataclass(frozen=True, slots=True)
class StageLoad:
    """The work of a stage in a simulation.

    busy:    the share of its replicas' time in which a batch ran.
    wait_s:  the mean seconds that a query waited for its batch.
    batch:   the mean number of queries in a batch.
    """

    busy: float
    wait_s: float
    batch: float


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a simulation.

    latencies_s:  of each query in the order of arrival, from the ingress and back to it; infinite
                  for a query that was dropped or refused.
    loads:        by stage.
    is_whole:     False if the simulation gave up after `misses_max`; later queries are then absent.
    """

    latencies_s: tuple[float, ...]
    loads: Mapping[str, StageLoad]
    is_whole: bool = True

    def quantile_s(self, share: float) -> float:
        """Return the latency that `share` of the queries do not exceed, in seconds."""
        ordered = sorted(self.latencies_s)
        return ordered[min(math.ceil(share * len(ordered)), len(ordered)) - 1] if ordered else 0.0

    def miss(self, latency_s: float) -> float:
        """Return the share of queries that took longer."""
        return sum(each > latency_s for each in self.latencies_s) / max(len(self.latencies_s), 1)


@dataclass(frozen=True, slots=True)
class Stream:
    """The queries of one pipeline.

    inputs:      of each stage, by name, each after its inputs; the last one has the answers.
    arrivals_s:  when they reach the ingress, in ascending seconds.
    latency_s:   the latency that is promised, by which stages order and drop queries.
    misses_max:  queries that may take longer; with one more the simulation ends.
    """

    inputs: Mapping[str, tuple[str, ...]]
    arrivals_s: Sequence[float]
    latency_s: float = math.inf
    misses_max: float = math.inf


def poisson(rate_per_s: float, count: int, seed: int | str) -> list[float]:
    """Return `count` arrivals in seconds, at random with a mean rate."""
    draw = random.Random(seed)
    arrivals, now_s = [], 0.0
    for _ in range(count):
        now_s += draw.expovariate(rate_per_s)
        arrivals.append(now_s)
    return arrivals


def simulate(
    stages: Mapping[str, StageModel],
    arrivals_s: Sequence[float],
    *,
    seed: int = 0,
    latency_s: float = math.inf,
    misses_max: float = math.inf,
    hop_s: float = HOP_S,
    ingresses: int = 2,
) -> Outcome:
    """Answer queries that arrive at these times, and return their latencies.

    stages:      by name, each after its inputs; the last one has the answers.
    latency_s:   the latency that is promised, by which stages order and drop queries.
    misses_max:  queries that may take longer; with one more the simulation ends.
    hop_s:       one way of an edge to a stage whose profile says nothing of it.
    ingresses:   replicas of the ingress.

    Cost:        some 10 us for each query and stage.
    """
    inputs = {name: each.inputs for name, each in stages.items()}
    stream = Stream(inputs, arrivals_s, latency_s, misses_max)
    return simulate_together(stages, {"": stream}, seed=seed, hop_s=hop_s, ingresses=ingresses)[""]


def simulate_together(
    stages: Mapping[str, StageModel],
    streams: Mapping[str, Stream],
    *,
    seed: int = 0,
    hop_s: float = HOP_S,
    ingresses: int = 2,
) -> dict[str, Outcome]:
    """Answer the queries of several pipelines, which may share stages; returns their outcomes.

    stages:   of all pipelines, by name. Their own `inputs` are not looked at.
    streams:  by the names of the pipelines.
    """
    world = _World(stages, streams, seed, hop_s, ingresses)
    latencies = {name: [math.inf] * len(each.arrivals_s) for name, each in streams.items()}
    misses = dict.fromkeys(streams, 0)
    is_whole = True
    for name, index, latency in world.run():
        latencies[name][index] = latency
        misses[name] += latency > streams[name].latency_s
        if misses[name] > streams[name].misses_max:
            is_whole = False
            break
    loads = world.loads()
    return {
        name: Outcome(
            tuple(latencies[name][: world.arrived[name]]),
            {stage: loads[stage] for stage in each.inputs},
            is_whole,
        )
        for name, each in streams.items()
    }


class _Way:
    """The way of a pipeline's queries.

    following:  the next stages of each stage.
    backs:      the edges from each stage to the ingress, by the stage at their end.
    back_s:     the mean time from each stage to the ingress.
    """

    __slots__ = ("back_s", "backs", "first", "following", "inputs", "joins", "latency_s", "name")

    def __init__(self, name: str, stream: Stream, means_s: Mapping[str, float]) -> None:
        inputs = stream.inputs
        self.name = name
        self.inputs = inputs
        self.latency_s = stream.latency_s
        self.following = {
            stage: [each for each, befores in inputs.items() if stage in befores]
            for stage in inputs
        }
        self.first = [stage for stage, befores in inputs.items() if not befores]
        self.joins = [stage for stage, befores in inputs.items() if len(befores) > 1]
        self.backs = _find_longest(inputs, means_s)
        self.back_s = {
            stage: math.fsum(means_s[each] for each in path) for stage, path in self.backs.items()
        }


class _Query:
    """A query on its way.

    at:      the replica of each stage where it has been.
    open:    the counts of open calls that fall by one at its end.
    passed:  the stages and queues that it has left, and when.
    waits:   the queues where it has been, with its tickets.
    """

    __slots__ = (
        "at",
        "came_s",
        "index",
        "is_over",
        "joins",
        "met",
        "open",
        "passed",
        "waits",
        "way",
    )

    def __init__(self, way: _Way, index: int, came_s: float) -> None:
        self.way = way
        self.index = index
        self.came_s = came_s
        self.is_over = False
        self.at: dict[str, int] = {}
        self.met: dict[str, int] = {}
        self.joins: dict[str, int] = {}
        self.open: list[tuple[dict[int, int], int]] = []
        self.passed: list[tuple[str, Batches[_Query], float]] = []
        self.waits: list[tuple[Batches[_Query], int]] = []


@dataclass(frozen=True, slots=True)
class _Answer:
    """The answer to a query, which comes to a replica on its way back.

    path:  the stages between it and the ingress, with the replica's own as the last one.
    """

    query: _Query
    path: tuple[str, ...]


class _Replica:
    """A replica: its queue, what runs and until when, and its open calls to each next stage."""

    __slots__ = ("batches", "calls", "ends_s", "running", "took_s", "waiting_since")

    def __init__(self, stage: StageModel, calls: dict[str, dict[int, int]]) -> None:
        self.batches = Batches[_Query](cap=stage.cap, waiting_max=WAITING_MAX, late=stage.late)
        self.calls = calls
        self.running: list[_Query] = []
        self.took_s = self.ends_s = 0.0
        self.waiting_since: dict[_Query, float] = {}


class _World:
    """The replicas of all stages, and the events to come."""

    def __init__(
        self,
        stages: Mapping[str, StageModel],
        streams: Mapping[str, Stream],
        seed: int,
        hop_s: float,
        ingresses: int,
    ) -> None:
        self.arrived = dict.fromkeys(streams, 0)
        self._stages = stages
        self._streams = streams
        self._hop_s = hop_s
        means_s = {name: each.mean_hop_s(hop_s) for name, each in stages.items()}
        self._ways = [_Way(name, each, means_s) for name, each in streams.items()]
        self._replicas = {
            name: [_Replica(each, self._calls_from(name)) for _ in range(each.replicas)]
            for name, each in stages.items()
        }
        firsts = [each for way in self._ways for each in way.first]
        self._ingresses = [self._calls(firsts) for _ in range(ingresses)]
        self._route = random.Random(f"{seed} route")
        self._draw = {name: random.Random(f"{seed} {name}") for name in stages}
        self._events: list[tuple[float, int, str, int, _Query | _Answer | None]] = []
        self._count = 0
        self._done: list[tuple[str, int, float]] = []
        self._busy_s = dict.fromkeys(stages, 0.0)
        self._waited_s = dict.fromkeys(stages, 0.0)
        self._ran = dict.fromkeys(stages, 0)
        self._batch_count = dict.fromkeys(stages, 0)
        self._now_s = self._began_s = 0.0

    def _calls_from(self, name: str) -> dict[str, dict[int, int]]:
        """The open calls of a replica, to the next stages in all pipelines."""
        return self._calls([each for way in self._ways for each in way.following.get(name, ())])

    def _calls(self, names: Sequence[str]) -> dict[str, dict[int, int]]:
        """The open calls of a sender, all 0, by stage and replica."""
        return {name: dict.fromkeys(range(self._stages[name].replicas), 0) for name in names}

    def run(self) -> Iterator[tuple[str, int, float]]:
        """Yield the pipeline, index and latency of each query that ends, in the order of ends."""
        upcoming = heapq.merge(
            *(
                [(at_s, number, index) for index, at_s in enumerate(each.arrivals_s)]
                for number, each in enumerate(self._streams.values())
            )
        )
        following = next(upcoming, None)
        self._began_s = 0.0 if following is None else following[0]
        while following is not None or self._events:
            if following is not None and (not self._events or following[0] <= self._events[0][0]):
                self._now_s, number, index = following
                self._enter(_Query(self._ways[number], index, self._now_s))
                following = next(upcoming, None)
            else:
                self._now_s, _, name, replica, what = heapq.heappop(self._events)
                if what is None:
                    self._finish(name, replica)
                elif isinstance(what, _Query):
                    self._arrive(name, replica, what)
                else:
                    self._pass_back(self._replicas[name][replica], what)
            if self._done:
                yield from self._done
                self._done.clear()

    def loads(self) -> dict[str, StageLoad]:
        """Return the load of each stage until now."""
        lasted_s = max(self._now_s - self._began_s, 1e-9)
        return {
            name: StageLoad(
                busy=self._busy_s[name] / (lasted_s * each.replicas),
                wait_s=self._waited_s[name] / max(self._ran[name], 1),
                batch=self._ran[name] / max(self._batch_count[name], 1),
            )
            for name, each in self._stages.items()
        }

    def _enter(self, query: _Query) -> None:
        self.arrived[query.way.name] += 1
        for name in query.way.joins:
            query.joins[name] = self._route.randrange(self._stages[name].replicas)
        calls = self._ingresses[self._route.randrange(len(self._ingresses))]
        for name in query.way.first:
            self._send(name, query, calls[name], self._draw_hop(name))

    def _draw_hop(self, name: str) -> float:
        """Return how long an edge to this stage takes."""
        profile = self._stages[name].profile
        return profile.hop_quantile_s(self._draw[name].random()) if profile.hops_s else self._hop_s

    def _send(self, name: str, query: _Query, calls: dict[int, int], hop_s: float) -> None:
        chosen = query.joins.get(name)
        if chosen is None:
            chosen = least_loaded(calls, self._route.random)
        assert chosen is not None  # a stage has replicas
        calls[chosen] += 1
        query.open.append((calls, chosen))
        self._add_event(self._now_s + hop_s, name, chosen, query)

    def _add_event(
        self, at_s: float, name: str, replica: int, what: _Query | _Answer | None
    ) -> None:
        self._count += 1
        heapq.heappush(self._events, (at_s, self._count, name, replica, what))

    def _arrive(self, name: str, number: int, query: _Query) -> None:
        if query.is_over:  # another input was dropped
            return
        way = query.way
        query.at[name] = number
        inputs = way.inputs[name]
        if len(inputs) > 1:
            query.met[name] = query.met.get(name, 0) + 1
            if query.met[name] < len(inputs):
                return
        replica = self._replicas[name][number]
        deadline_s = query.came_s + way.latency_s - way.back_s[name]
        ticket = replica.batches.offer(query, deadline_s=deadline_s, pipeline=way.name)
        if ticket is None:
            self._end(query, math.inf)
            return
        query.waits.append((replica.batches, ticket))
        replica.waiting_since[query] = self._now_s
        if not self._comes_another(name, number):
            self._take(name, number, replica)

    def _comes_another(self, name: str, number: int) -> bool:
        """Return True if the next query comes with this one, as from one batch of a sender."""
        if not self._events:
            return False
        at_s, _, its_name, its_number, what = self._events[0]
        same = (at_s, its_name, its_number) == (self._now_s, name, number)
        return same and isinstance(what, _Query)

    def _take(self, name: str, number: int, replica: _Replica) -> None:
        while (batch := replica.batches.take(self._now_s)) is not None:
            for query in batch.late:
                del replica.waiting_since[query]
                self._end(query, math.inf)
            if batch.items:
                self._begin(name, number, replica, batch.items)
                return

    def _begin(self, name: str, number: int, replica: _Replica, items: list[_Query]) -> None:
        for query in items:
            self._waited_s[name] += self._now_s - replica.waiting_since.pop(query)
        profile = self._stages[name].profile
        took_s = profile.quantile_s(len(items), self._draw[name].random())
        self._busy_s[name] += took_s
        self._ran[name] += len(items)
        self._batch_count[name] += 1
        replica.running, replica.took_s, replica.ends_s = items, took_s, self._now_s + took_s
        self._add_event(self._now_s + took_s, name, number, None)

    def _finish(self, name: str, number: int) -> None:
        replica = self._replicas[name][number]
        items, replica.running = replica.running, []
        replica.batches.finish(len(items), replica.took_s)
        hops_s = {each: self._draw_hop(each) for each in replica.calls}  # a batch goes on as one
        for query in items:
            if query.is_over:
                continue
            query.passed.append((name, replica.batches, self._now_s))
            following = query.way.following[name]
            if not following:
                self._send_back(query, query.way.backs[name], self._now_s)
            for each in following:
                self._send(each, query, replica.calls[each], hops_s[each])
        self._take(name, number, replica)

    def _send_back(self, query: _Query, path: tuple[str, ...], at_s: float) -> None:
        """Send an answer from the last stage of `path` to the ingress, through all before it."""
        for last in range(len(path) - 1, -1, -1):
            at_s += self._draw_hop(path[last])
            before = path[last - 1] if last else None
            if before is not None and self._stages[before].is_held:
                self._add_event(at_s, before, query.at[before], _Answer(query, path[:last]))
                return
        self._end(query, at_s - query.came_s)

    def _pass_back(self, replica: _Replica, answer: _Answer) -> None:
        at_s = replica.ends_s if replica.running else self._now_s
        self._send_back(answer.query, answer.path, at_s)

    def _end(self, query: _Query, latency_s: float) -> None:
        for calls, chosen in query.open:
            calls[chosen] -= 1
        query.open.clear()
        way = query.way
        if latency_s <= way.latency_s and latency_s < math.inf:
            for name, batches, left_s in query.passed[:-1]:
                is_joined = any(len(way.inputs[each]) > 1 for each in way.following[name])
                took_s = self._now_s - left_s
                batches.learn_after(took_s, is_joined=is_joined, pipeline=way.name)
        query.passed.clear()
        if not query.is_over:  # two inputs of a join may be dropped
            query.is_over = True
            for batches, ticket in query.waits:
                batches.withdraw(ticket)
            query.waits.clear()
            self._done.append((way.name, query.index, latency_s))


def _find_longest(
    inputs: Mapping[str, tuple[str, ...]], means_s: Mapping[str, float]
) -> dict[str, tuple[str, ...]]:
    """Return the edges on the longest way from the ingress to each stage, by their stages."""
    longest: dict[str, tuple[str, ...]] = {}
    for name, befores in inputs.items():
        paths = [longest[before] for before in befores]
        before = max(paths, key=lambda path: sum(means_s[each] for each in path), default=())
        longest[name] = (*before, name)
    return longest
