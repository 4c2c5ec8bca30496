"""From counts to named devices: which node has which layouts, and which slice has which replica.

`spread` decides by node for counts that know no nodes, and `sort_nodes` gives nodes that are alike
an order. `deal` names a device for each count of a node. All are deterministic: devices and nodes
are taken in the order of their names.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hoplite_ray.serve.placement.ordered_sums import Counts, Pool, Problem


@dataclass(frozen=True, slots=True)
class Dealt:
    """One device: the number of its layout in its pool, and the occupant of each slice, if any."""

    layout: int
    occupants: tuple[int | None, ...]


def spread(
    problem: Problem, counts: Counts, by_kind: Problem, edges: Mapping[tuple[int, int], float]
) -> Counts:
    """Return `counts` by node: layouts evenly, and both ends of an expensive edge together.

    Components are dealt from the most expensive edge to the cheapest. Each replica goes where it
    keeps the most traffic within its node, and among equal nodes where its component has least.

    problem:  its pools are by node.
    by_kind:  the same devices with one pool for each kind, which `counts` are of.
    Cost:     replicas * nodes * edges.
    """
    layouts = _spread_layouts(problem, counts, by_kind)
    free: dict[str, Counter[str]] = defaultdict(Counter)
    for pool, pool_counts in zip(problem.pools, layouts, strict=True):
        for names, count in zip(pool.layouts, pool_counts, strict=True):
            for name in names:
                free[pool.node][name] += count
    rate = min(counts.throughputs(by_kind))
    here: dict[str, Counter[int]] = {node: Counter() for node in problem.nodes}
    dealt = {node: [0] * len(problem.occupants) for node in problem.nodes}
    (totals,) = counts.occupants.values()
    for number in _order(problem, edges):
        occupant = problem.occupants[number]
        for _ in range(totals[number]):
            node = min(
                (node for node in problem.nodes if free[node][occupant.size]),
                key=lambda node: (
                    -_gain(here[node], occupant.units, edges, rate),
                    sum(here[node][component] for component in occupant.units),
                    node,
                ),
            )
            free[node][occupant.size] -= 1
            here[node].update(occupant.units)
            dealt[node][number] += 1
    return Counts(layouts, {node: tuple(numbers) for node, numbers in dealt.items()})


def _spread_layouts(
    problem: Problem, counts: Counts, by_kind: Problem
) -> tuple[tuple[int, ...], ...]:
    """Return the layouts by pool: each layout goes round the nodes that have its kind."""
    found = [[0] * len(pool.layouts) for pool in problem.pools]
    for kind, kind_counts in zip(by_kind.pools, counts.layouts, strict=True):
        pools = [at for at, pool in enumerate(problem.pools) if pool.kind == kind.kind]
        turns = [
            (turn, at) for at in pools for turn in range(problem.pools[at].count)
        ]  # first one device of each node, then a second one, and so on
        layouts = [number for number, count in enumerate(kind_counts) for _ in range(count)]
        for (_, at), number in zip(sorted(turns), layouts, strict=True):
            found[at][number] += 1
    return tuple(map(tuple, found))


def _order(problem: Problem, edges: Mapping[tuple[int, int], float]) -> list[int]:
    """Return the numbers of the occupants, those at expensive edges first."""
    ends = [end for edge in sorted(edges, key=lambda edge: (-edges[edge], edge)) for end in edge]
    rank = {component: at for at, component in reversed([*enumerate(ends)])}

    def place(number: int) -> tuple[int, int]:
        units = problem.occupants[number].units
        return min(rank.get(each, len(ends)) for each in units), number

    return sorted(range(len(problem.occupants)), key=place)


def _gain(
    here: Mapping[int, int],
    units: Mapping[int, int],
    edges: Mapping[tuple[int, int], float],
    rate: int,
) -> float:
    """Return the traffic that an occupant keeps within a node, which has `here` already."""
    found = 0.0
    for (source, target), weight in edges.items():
        if source in units or target in units:
            before = min(here[source], here[target], rate)
            ends = (here[end] + units.get(end, 0) for end in (source, target))
            found += weight * (min(*ends, rate) - before)
    return found


def sort_nodes(problem: Problem, counts: Counts) -> Counts:
    """Return the counts with nodes that are alike in one order, whatever order a solver took."""
    pools: dict[str, list[int]] = defaultdict(list)
    for at, pool in enumerate(problem.pools):
        pools[pool.node].append(at)
    alike: dict[tuple[tuple[str, int], ...], list[str]] = defaultdict(list)
    for node in problem.nodes:
        its = [problem.pools[at] for at in pools[node]]
        alike[tuple((pool.kind, pool.count) for pool in its)].append(node)
    layouts, occupants = [*counts.layouts], {**counts.occupants}
    for nodes in alike.values():
        held = [([counts.layouts[at] for at in pools[n]], counts.occupants[n]) for n in nodes]
        for node, (its_layouts, its_occupants) in zip(
            nodes, sorted(held, reverse=True), strict=True
        ):
            occupants[node] = its_occupants
            for at, layout_counts in zip(pools[node], its_layouts, strict=True):
                layouts[at] = layout_counts
    return Counts(tuple(layouts), occupants)


def deal(problem: Problem, counts: Counts) -> dict[tuple[str, str], list[Dealt | None]]:
    """Return the devices of each (node, kind); None is a device that nothing runs on."""
    waiting: dict[tuple[str, str], list[int]] = defaultdict(list)  # (node, size) -> occupants
    for node, numbers in counts.occupants.items():
        for number, count in enumerate(numbers):
            waiting[node, problem.occupants[number].size] += [number] * count
    return {
        (pool.node, pool.kind): _deal_pool(pool, pool_counts, waiting)
        for pool, pool_counts in zip(problem.pools, counts.layouts, strict=True)
    }


def _deal_pool(
    pool: Pool, counts: Sequence[int], waiting: Mapping[tuple[str, str], list[int]]
) -> list[Dealt | None]:
    found: list[Dealt | None] = []
    for layout, count in enumerate(counts):
        for _ in range(count):
            queues = [waiting[pool.node, name] for name in pool.layouts[layout]]
            occupants = tuple(queue.pop(0) if queue else None for queue in queues)
            is_idle = all(each is None for each in occupants)
            found.append(None if is_idle else Dealt(layout, occupants))
    return sorted(found, key=lambda each: each is None)
