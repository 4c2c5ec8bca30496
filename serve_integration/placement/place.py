"""Place the stages of a pipeline on devices, so that its slowest stage is as fast as can be.

    gpus = [Device(f"gpu{i}", A30, node=f"node{i}") for i in range(4)]
    placement = place(components, gpus, edges={("vision", "cross"): 16_000_000})
    print(placement.explain())
    Vision = Vision.options(**placement.serve_options()["vision"])

`place` chooses a layout for each device and a replica, or a bundle of replicas, for each slice.
It reads no clock and no cluster: a placement is a proposal, which Ray's nodes then offer as
resources. Source: Vortex 5.4 and 5.4.1, without its limit of one replica a slice.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from hoplite_ray.errors import InvalidArgumentError
from hoplite_ray.serve.placement.dealing import deal, sort_nodes, spread
from hoplite_ray.serve.placement.devices import Device, DeviceKind, Slice
from hoplite_ray.serve.placement.ordered_sums import (
    Counts,
    Occupant,
    Pool,
    Problem,
    maximise_local,
    maximise_sums,
)
from hoplite_ray.serve.placement.placed import (
    Berth,
    Placement,
    format_gib,
    measure_edges,
    name_resources,
)
from hoplite_ray.serve.placement.useful import keep_useful

# The largest rate of a replica in units, if no larger unit makes all rates whole: a rate is exact
# to a unit. HiGHS takes 1 + 1e-6 for a whole number, which is then less than a unit.
_UNITS_MAX = 100_000
_LOCAL_COLUMNS_MAX = 200  # whole numbers, up to which nodes are chosen by an integer program


@dataclass(frozen=True, slots=True)
class Fit:
    """A replica on one size of slice, as its profile has it.

    rate_per_s:    calls that it answers a second, with the batches that the latency allows.
    memory_bytes:  that it needs there.
    """

    rate_per_s: float
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class Component:
    """A stage to place.

    name:          the stage's name in its pipeline.
    fits:          the name of a slice -> what a replica does there. Leave out a size on which it is
                   too slow for the latency that was asked for.
    visits:        calls of the stage for each query of the pipeline.
    replicas_max:  None has no limit.
    """

    name: str
    fits: Mapping[str, Fit]
    visits: float = 1.0
    replicas_max: int | None = None


@dataclass(frozen=True, slots=True)
class Bundle:
    """One replica each of several components, together on one slice.

    slice:       the name of a slice. Each component has a fit there, whose memory is added up.
    rates_per_s: component -> its rate while the others of the bundle run beside it.
    """

    slice: str
    rates_per_s: Mapping[str, float]


def place(
    components: Sequence[Component],
    devices: Sequence[Device],
    *,
    bundles: Sequence[Bundle] = (),
    edges: Mapping[tuple[str, str], float] | None = None,
) -> Placement:
    """Return the placement with the highest lowest throughput, then second lowest, and so on.

    A component's throughput is the sum of its replicas' rates, by its visits: queries of the
    pipeline a second. Among all placements the sum of the k lowest throughputs is the largest for
    k = 1, then for k = 2, and so on. The same arguments, in any order, give the same placement.

    components:  each gets one replica or more.
    devices:     each has one layout of its kind.
    bundles:     components that may share a slice; without a bundle a slice has one replica.
    edges:       (component, component) -> bytes a query. The ends of expensive edges are on one
                 node, except where that costs throughput. On few nodes that is optimal, too.

    Raises:  InvalidArgumentError for components that can't all be placed, with the component, its
             memory and the largest slice; HopliteError without scipy
             (`pip install '.[planner]'`), or if no optimum can be proved.
    Cost:    an integer program for each component; its size is the number of layouts and of sizes,
             whatever the number of devices.
    Source:  Vortex 5.4.1. Ogryczak and Sliwinski for the ordered sums.

    Example::

        vision = Component("vision", {"a30": Fit(rate_per_s=5, memory_bytes=14 << 30)})
        text = Component("text", {"a30-1g.6gb": Fit(rate_per_s=40, memory_bytes=2 << 30)})
        print(place([vision, text], [Device("gpu0", A30, "n0"), Device("gpu1", A30, "n1")]))
    """
    components = sorted(components, key=lambda each: each.name)
    devices = sorted(devices, key=lambda each: (each.node, each.kind.name, each.name))
    edges = dict(sorted((edges or {}).items()))
    _check(components, devices, bundles, edges)
    slices = {each.name: each for device in devices for each in device.kind.slices}
    choices = _choose_occupants(components, slices, bundles)
    problem = Problem(
        choices.occupants,
        _make_pools(devices, choices.occupants),
        tuple(each.replicas_max for each in components),
    )
    by_kind = Problem(choices.occupants, _merge_nodes(problem.pools), problem.replicas_max)
    counts, sums = maximise_sums(by_kind)
    _check_all_placed(components, counts.throughputs(by_kind), slices, len(devices))
    numbers = {each.name: number for number, each in enumerate(components)}
    weights = {(numbers[a], numbers[b]): weight for (a, b), weight in edges.items() if weight > 0}
    by_node = _choose_nodes(problem, by_kind, counts, sums, weights)
    berths = name_resources(_name_devices(problem, by_node, devices, choices))
    return Placement(tuple(berths), measure_edges(berths, edges), tuple(choices.refusals))


@dataclass(slots=True)
class _Choices:
    """All that can hold a slice.

    rates:     by occupant: the throughput that it gives, by component.
    refusals:  sentences about replicas and bundles that don't fit.
    """

    occupants: tuple[Occupant, ...] = ()
    rates: list[tuple[str, dict[str, Fraction]]] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)


def _choose_occupants(
    components: Sequence[Component], slices: Mapping[str, Slice], bundles: Sequence[Bundle]
) -> _Choices:
    """Return the replicas and bundles whose memory fits; `slices` are by name."""
    choices = _Choices()
    for component in components:
        _add_replicas(choices, component, slices)
    _check_each_fits(components, choices, slices)
    by_name = {each.name: each for each in components}
    for bundle in sorted(bundles, key=lambda each: (each.slice, sorted(each.rates_per_s.items()))):
        if bundle.slice in slices:
            _add_bundle(choices, bundle, by_name, slices[bundle.slice])
    numbers = {each.name: number for number, each in enumerate(components)}
    units = _scale([each for _, rates in choices.rates for each in rates.values()])
    choices.occupants = tuple(
        Occupant(size, {numbers[name]: units[rate] for name, rate in rates.items()})
        for size, rates in choices.rates
    )
    return choices


def _add_replicas(choices: _Choices, component: Component, slices: Mapping[str, Slice]) -> None:
    too_small = []
    for size in sorted(component.fits.keys() & slices.keys()):
        fit = component.fits[size]
        if fit.memory_bytes <= slices[size].memory_bytes:
            rate = _throughput(fit.rate_per_s, component)
            choices.rates.append((size, {component.name: rate}))
        else:
            too_small.append(
                f"{format_gib(fit.memory_bytes)} on {size} "
                f"({format_gib(slices[size].memory_bytes)})"
            )
    if too_small:
        choices.refusals.append(f"{component.name} does not fit: it needs {', '.join(too_small)}.")


def _add_bundle(
    choices: _Choices, bundle: Bundle, components: Mapping[str, Component], size: Slice
) -> None:
    names = sorted(bundle.rates_per_s)
    needed_bytes = sum(components[name].fits[size.name].memory_bytes for name in names)
    if needed_bytes <= size.memory_bytes:
        rates = {n: _throughput(bundle.rates_per_s[n], components[n]) for n in names}
        choices.rates.append((size.name, rates))
    else:
        choices.refusals.append(
            f"{' and '.join(names)} do not fit together: they need {format_gib(needed_bytes)} on "
            f"{size.name} ({format_gib(size.memory_bytes)})."
        )


def _throughput(rate_per_s: float, component: Component) -> Fraction:
    return Fraction(str(rate_per_s)) / Fraction(str(component.visits))


def _scale(rates: Iterable[Fraction]) -> dict[Fraction, int]:
    """Return each rate as a whole number of units; the unit is the same for all."""
    rates = set(rates)
    highest = max(rates, default=Fraction(1))
    common = math.lcm(*(rate.denominator for rate in rates))
    if highest * common > _UNITS_MAX:
        return {rate: max(1, round(rate * _UNITS_MAX / highest)) for rate in rates}
    whole = {rate: int(rate * common) for rate in rates}
    divisor = math.gcd(*whole.values()) or 1
    return {rate: units // divisor for rate, units in whole.items()}


def _make_pools(devices: Sequence[Device], occupants: Sequence[Occupant]) -> tuple[Pool, ...]:
    """Return the devices by node and kind, with the layouts that can be part of an optimum."""
    layouts = {
        kind.name: keep_useful(
            [tuple(each.name for each in layout) for layout in kind.layouts], occupants
        )
        for kind in {device.kind.name: device.kind for device in devices}.values()
    }
    counted = Counter((device.node, device.kind.name) for device in devices)
    return tuple(
        Pool(node, kind, count, layouts[kind]) for (node, kind), count in sorted(counted.items())
    )


def _merge_nodes(pools: Sequence[Pool]) -> tuple[Pool, ...]:
    """Return one pool for each kind: nodes make no difference to throughput."""
    merged: dict[str, Pool] = {}
    for pool in pools:
        before = merged[pool.kind].count if pool.kind in merged else 0
        merged[pool.kind] = Pool("", pool.kind, before + pool.count, pool.layouts)
    return tuple(merged[kind] for kind in sorted(merged))


def _choose_nodes(
    problem: Problem,
    by_kind: Problem,
    counts: Counts,
    sums: Sequence[int],
    weights: Mapping[tuple[int, int], float],
) -> Counts:
    columns = sum(len(pool.layouts) for pool in problem.pools)
    columns += len(problem.nodes) * len(problem.occupants)
    if weights and len(problem.nodes) > 1 and columns <= _LOCAL_COLUMNS_MAX:
        found = maximise_local(problem, sums, weights)
        if found is not None:
            return sort_nodes(problem, found)
    return spread(problem, counts, by_kind, weights)


def _name_devices(
    problem: Problem, counts: Counts, devices: Sequence[Device], choices: _Choices
) -> list[Berth]:
    """Return all slices of all devices; `devices` are in order of node, kind and name."""
    waiting = {key: iter(dealt) for key, dealt in deal(problem, counts).items()}
    layouts = {(pool.node, pool.kind): pool.layouts for pool in problem.pools}
    berths = []
    for device in devices:
        key = (device.node, device.kind.name)
        dealt = next(waiting[key])
        if dealt is None:
            berths += [Berth(device.node, device.name, each) for each in device.kind.layouts[0]]
            continue
        slices = {each.name: each for each in device.kind.slices}
        for name, occupant in zip(layouts[key][dealt.layout], dealt.occupants, strict=True):
            rates = {} if occupant is None else choices.rates[occupant][1]
            throughput = {component: float(rate) for component, rate in rates.items()}
            berths.append(Berth(device.node, device.name, slices[name], throughput))
    return berths


def _check(
    components: Sequence[Component],
    devices: Sequence[Device],
    bundles: Sequence[Bundle],
    edges: Mapping[tuple[str, str], float],
) -> None:
    if not components or not devices:
        raise InvalidArgumentError(
            f"place() needs components and devices, and got {len(components)} and {len(devices)}"
        )
    _check_names("component", [each.name for each in components])
    _check_names("device", [each.name for each in devices])
    by_name = {each.name: each for each in components}
    for component in components:
        _check_numbers(component)
    for bundle in bundles:
        for name, rate in bundle.rates_per_s.items():
            if name not in by_name or bundle.slice not in by_name[name].fits:
                raise InvalidArgumentError(
                    f"a bundle on {bundle.slice} has {name}, which is no component with a fit "
                    "there; the fit says how much memory it needs"
                )
            _check_positive(f"rate of {name} in a bundle on {bundle.slice}", rate)
    for edge, weight in edges.items():
        if not {*edge} <= by_name.keys():
            raise InvalidArgumentError(f"edge {edge}: its ends are names of components")
        if not (math.isfinite(weight) and weight >= 0):
            raise InvalidArgumentError(f"edge {edge}: {weight} is no number of bytes")
    kinds: dict[str, DeviceKind] = {}
    sizes: dict[str, Slice] = {}
    for kind in (device.kind for device in devices):
        if kinds.setdefault(kind.name, kind) != kind:
            raise InvalidArgumentError(f"two kinds of device are called {kind.name}; rename one")
        for size in kind.slices:
            if sizes.setdefault(size.name, size) != size:
                raise InvalidArgumentError(f"two sizes of slice are called {size.name}; rename one")


def _check_names(what: str, names: Sequence[str]) -> None:
    twice = sorted(name for name, count in Counter(names).items() if count > 1)
    if twice:
        raise InvalidArgumentError(f"two {what}s are called {twice[0]}; each has its own name")


def _check_numbers(component: Component) -> None:
    _check_positive(f"visits of {component.name}", component.visits)
    if component.replicas_max is not None and component.replicas_max < 1:
        raise InvalidArgumentError(
            f"replicas_max of {component.name} is {component.replicas_max}; each component has a "
            "replica, so it is 1 or more, or None"
        )
    for size, fit in component.fits.items():
        _check_positive(f"rate of {component.name} on {size}", fit.rate_per_s)
        if fit.memory_bytes < 0:
            raise InvalidArgumentError(f"memory of {component.name} on {size} is below 0")


def _check_positive(what: str, value: float) -> None:
    if not (math.isfinite(value) and value > 0):
        raise InvalidArgumentError(f"the {what} is {value}; it must be above 0")


def _check_each_fits(
    components: Sequence[Component], choices: _Choices, slices: Mapping[str, Slice]
) -> None:
    """Refuse a component that no slice of the devices can hold."""
    placeable = {name for _, rates in choices.rates for name in rates}
    for component in components:
        if component.name in placeable:
            continue
        if not component.fits.keys() & slices.keys():
            its = ", ".join(sorted(component.fits)) or "nothing"
            raise InvalidArgumentError(
                f"component {component.name} has fits on {its}, and the devices have "
                f"{', '.join(sorted(slices))}; profile it on one of these"
            )
        raise InvalidArgumentError(
            f"component {component.name} {_describe_need(component, slices)}; profile it with "
            "smaller batches, or give larger devices"
        )


def _check_all_placed(
    components: Sequence[Component],
    throughputs: Sequence[int],
    slices: Mapping[str, Slice],
    devices: int,
) -> None:
    """Refuse devices that can't hold a replica of each component at once."""
    left_out = [each for each, units in zip(components, throughputs, strict=True) if not units]
    if left_out:
        raise InvalidArgumentError(
            f"the {devices} devices have no slice left for component {left_out[0].name}, which "
            f"{_describe_need(left_out[0], slices)}; give more devices, or bundles of components "
            "that can share a slice"
        )


def _describe_need(component: Component, slices: Mapping[str, Slice]) -> str:
    least = min(component.fits[size].memory_bytes for size in component.fits.keys() & slices.keys())
    largest = max(slices.values(), key=lambda each: (each.memory_bytes, each.name))
    return (
        f"needs {format_gib(least)} at least, where the largest slice is {largest.name} with "
        f"{format_gib(largest.memory_bytes)}"
    )
