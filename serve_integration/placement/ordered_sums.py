"""A lexicographic max-min over whole numbers of devices and replicas, exact, by HiGHS.

For k = 1, 2, ... the sum of the k lowest throughputs is as large as it can be, while no earlier sum
falls. So the lowest throughput is the largest that there is, then the second lowest, and so on.

The sum of the k lowest of t is the largest value of k * r - sum(d), where d >= 0 and
t[i] - r + d[i] >= 0 for each i. That is linear, so each sum is one integer program. Throughputs are
integers, so a program's value is one, too; half a unit below it is the next program's bound.

`maximise_sums` counts devices that are alike together. `maximise_local` counts them by node.
Source: Ogryczak and Sliwinski, on ordered sums; Vortex 5.4.1 for the model.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from hoplite_ray.errors import HopliteError

_NODES_MAX = 200_000  # of a program's search tree; beyond it the optimum is not proved
_LOCAL_NODES_MAX = 2_000  # the same of `maximise_local`, whose result need not be the best
_LOCAL_GAP = 1e-4  # of its value that is left alone


@dataclass(frozen=True, slots=True)
class Occupant:
    """A replica, or a bundle of replicas, that can hold a slice of one size.

    units:  throughput that it gives, by the number of the component, in units of all components.
    """

    size: str
    units: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class Pool:
    """Devices of one kind on one node; each has one of `layouts`, which are names of slices."""

    node: str
    kind: str
    count: int
    layouts: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class Problem:
    """Pools of devices, and all that can hold their slices.

    replicas_max:  by component; None has no limit.
    """

    occupants: tuple[Occupant, ...]
    pools: tuple[Pool, ...]
    replicas_max: tuple[int | None, ...]

    @property
    def nodes(self) -> list[str]:
        return sorted({pool.node for pool in self.pools})


@dataclass(frozen=True, slots=True)
class Counts:
    """A solution: devices by pool and layout, and held slices by node and occupant."""

    layouts: tuple[tuple[int, ...], ...]
    occupants: Mapping[str, tuple[int, ...]]

    def throughputs(self, problem: Problem) -> list[int]:
        """Return the throughput of each component in units."""
        found = [0] * len(problem.replicas_max)
        for counts in self.occupants.values():
            for occupant, count in zip(problem.occupants, counts, strict=True):
                for component, units in occupant.units.items():
                    found[component] += units * count
        return found


def maximise_sums(problem: Problem) -> tuple[Counts, list[int]]:
    """Return the best counts, and the sums of the 1, 2, ... lowest throughputs, in units.

    Components that can't all have a replica are no error: the first sums are 0 then.

    Raises:  HopliteError without scipy, or if HiGHS can't prove an optimum.
    Cost:    one integer program for each component. Devices of one kind belong in one pool.
    """
    program = _Program()
    columns = _add_counts(program, problem)
    totals = columns.throughputs(problem)
    sums: list[int] = []
    counts = Counts((), {})
    for lowest in range(1, len(totals) + 1):
        terms = _add_sum(program, totals, lowest)
        optimum = program.maximise(terms, gap=0.0, nodes_max=_NODES_MAX)
        if optimum is None:
            raise HopliteError("HiGHS found no placement, although an empty one is valid")
        counts = columns.read(optimum.values)
        value = sum(sorted(counts.throughputs(problem))[:lowest])
        if optimum.bound >= value + 1:
            raise HopliteError(
                f"HiGHS found no proof that {value} units are the best sum of the {lowest} lowest "
                f"throughputs (its bound is {optimum.bound:.1f}); place fewer components at once, "
                "or profile them on fewer sizes of slice"
            )
        sums.append(value)
        program.add_row(terms, low=value - 0.5)
    return counts, sums


def maximise_local(
    problem: Problem, sums: Sequence[int], edges: Mapping[tuple[int, int], float]
) -> Counts | None:
    """Return counts with these sums that keep the most traffic within nodes, or None.

    The pipeline's rate is the lowest throughput. At that rate, an edge's queries stay on a node as
    far as both of its ends have throughput there. The result is within _LOCAL_GAP of the best,
    unless the search tree has _LOCAL_NODES_MAX nodes before. None means that it had, without any
    result.

    sums:   what `maximise_sums` returned.
    edges:  (component, component) -> its weight, for example bytes a query.
    """
    program = _Program()
    columns = _add_counts(program, problem)
    totals = columns.throughputs(problem)
    for lowest, value in enumerate(sums, 1):
        program.add_row(_add_sum(program, totals, lowest), low=value - 0.5)
    objective: dict[int, float] = {}
    heaviest = max(edges.values())
    for (source, target), weight in edges.items():
        flows = []
        for node in problem.nodes:
            here = columns.throughputs(problem, node)
            flow = program.add_column(upper=sums[0])
            program.add_row({**here[source], flow: -1.0}, low=0.0)
            program.add_row({**here[target], flow: -1.0}, low=0.0)
            flows.append(flow)
        program.add_row(dict.fromkeys(flows, 1.0), high=sums[0])
        objective |= dict.fromkeys(flows, weight / heaviest)
    optimum = program.maximise(objective, gap=_LOCAL_GAP, nodes_max=_LOCAL_NODES_MAX)
    if optimum is None:
        return None
    counts = columns.read(optimum.values)
    ordered = sorted(counts.throughputs(problem))
    is_kept = all(sum(ordered[:lowest]) == value for lowest, value in enumerate(sums, 1))
    return counts if is_kept else None


@dataclass(frozen=True, slots=True)
class _Columns:
    """The integer columns of a program: devices by pool and layout, slices by occupant."""

    layouts: list[list[int]]
    occupants: dict[str, list[int]]

    def throughputs(self, problem: Problem, node: str | None = None) -> list[dict[int, float]]:
        """Return the terms of each component's throughput, on one node or on all."""
        found: list[dict[int, float]] = [{} for _ in problem.replicas_max]
        for name, columns in self.occupants.items():
            if node in (None, name):
                for column, occupant in zip(columns, problem.occupants, strict=True):
                    for component, units in occupant.units.items():
                        found[component][column] = float(units)
        return found

    def read(self, values: Sequence[float]) -> Counts:
        return Counts(
            tuple(tuple(round(values[each]) for each in pool) for pool in self.layouts),
            {
                node: tuple(round(values[each]) for each in columns)
                for node, columns in self.occupants.items()
            },
        )


def _add_counts(program: _Program, problem: Problem) -> _Columns:
    """Add the columns, with one layout for each device, and one occupant at most for each slice."""
    columns = _Columns([], {})
    made: dict[tuple[str, str], dict[int, float]] = {}  # (node, size) -> slices that layouts make
    most: dict[tuple[str, str], int] = {}
    for pool in problem.pools:
        pool_columns = [program.add_column(upper=pool.count, is_integer=True) for _ in pool.layouts]
        program.add_row(dict.fromkeys(pool_columns, 1.0), low=pool.count, high=pool.count)
        columns.layouts.append(pool_columns)
        for size in {name for layout in pool.layouts for name in layout}:
            counts = [layout.count(size) for layout in pool.layouts]
            key = (pool.node, size)
            made.setdefault(key, {}).update(
                (column, -float(count))
                for column, count in zip(pool_columns, counts, strict=True)
                if count
            )
            most[key] = most.get(key, 0) + max(counts) * pool.count
    for node in problem.nodes:
        columns.occupants[node] = [
            program.add_column(upper=most.get((node, each.size), 0), is_integer=True)
            for each in problem.occupants
        ]
        holders: dict[str, dict[int, float]] = {}
        for column, occupant in zip(columns.occupants[node], problem.occupants, strict=True):
            holders.setdefault(occupant.size, {})[column] = 1.0
        for size, terms in holders.items():
            program.add_row({**terms, **made.get((node, size), {})}, high=0.0)
    for component, limit in enumerate(problem.replicas_max):
        if limit is not None:
            holding = {
                column: 1.0
                for node_columns in columns.occupants.values()
                for column, occupant in zip(node_columns, problem.occupants, strict=True)
                if component in occupant.units
            }
            program.add_row(holding, high=limit)
    return columns


def _add_sum(
    program: _Program, totals: Sequence[Mapping[int, float]], lowest: int
) -> dict[int, float]:
    """Return the terms whose largest value is the sum of the `lowest` lowest of `totals`."""
    level = program.add_column()
    terms = {level: float(lowest)}
    for total in totals:
        shortfall = program.add_column()
        program.add_row({**total, level: -1.0, shortfall: 1.0}, low=0.0)
        terms[shortfall] = -1.0
    return terms


@dataclass(frozen=True, slots=True)
class _Optimum:
    """Values of all columns, and what the objective can't exceed."""

    values: Sequence[float]
    bound: float


@dataclass(slots=True)
class _Program:
    """An integer program that grows by columns and rows. All columns are at least 0."""

    uppers: list[float] = field(default_factory=list)
    integers: list[int] = field(default_factory=list)
    rows: list[tuple[Mapping[int, float], float, float]] = field(default_factory=list)

    def add_column(self, *, upper: float = math.inf, is_integer: bool = False) -> int:
        self.uppers.append(upper)
        self.integers.append(int(is_integer))
        return len(self.uppers) - 1

    def add_row(
        self, terms: Mapping[int, float], *, low: float = -math.inf, high: float = math.inf
    ) -> None:
        self.rows.append((terms, low, high))

    def maximise(
        self, objective: Mapping[int, float], *, gap: float, nodes_max: int
    ) -> _Optimum | None:
        """Return the optimum, or the best that was found in a tree of `nodes_max` nodes, or None.

        The same program has the same result: no limit depends on the time.
        """
        optimize, sparse = _import("scipy.optimize"), _import("scipy.sparse")
        costs = [0.0] * len(self.uppers)
        for column, weight in objective.items():
            costs[column] = -weight
        triplets = list(self._triplets())
        places = ([row for row, _, _ in triplets], [column for _, column, _ in triplets])
        shape = (len(self.rows), len(self.uppers))
        matrix = sparse.csr_array(([value for _, _, value in triplets], places), shape=shape)
        found = optimize.milp(
            costs,
            integrality=self.integers,
            bounds=optimize.Bounds(0.0, self.uppers),
            constraints=optimize.LinearConstraint(
                matrix, [low for _, low, _ in self.rows], [high for _, _, high in self.rows]
            ),
            options={"mip_rel_gap": gap, "node_limit": nodes_max},
        )
        if found.x is None:
            return None
        return _Optimum([float(each) for each in found.x], -float(found.mip_dual_bound))

    def _triplets(self) -> Iterator[tuple[int, int, float]]:
        for number, (terms, _, _) in enumerate(self.rows):
            yield from ((number, column, value) for column, value in terms.items())


def _import(module: str) -> Any:
    try:
        return import_module(module)
    except ImportError as error:
        raise HopliteError(
            f"placement solves integer programs with scipy, which can't be imported here ({error});"
            " pip install '.[planner]'"
        ) from error
