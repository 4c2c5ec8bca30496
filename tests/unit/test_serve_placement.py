"""Placement: against an enumeration of everything, against bounds, and as properties."""

from __future__ import annotations

import itertools
import random
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hoplite_ray.errors import HopliteError, InvalidArgumentError
from hoplite_ray.serve.placement.devices import (
    A30,
    A100_40GB,
    Device,
    DeviceKind,
    Layout,
    cpu_slots,
    whole_gpu,
)
from hoplite_ray.serve.placement.ordered_sums import Occupant
from hoplite_ray.serve.placement.place import Bundle, Component, Fit, place
from hoplite_ray.serve.placement.placed import Placement
from hoplite_ray.serve.placement.useful import keep_useful
from tests.house.tree import ROOT

GIB = 1 << 30
L4 = whole_gpu("l4", memory_bytes=22 * GIB)
SMALL, HALF, CUT, WHOLE = "a30-1g.6gb", "a30-2g.12gb", "a30-4g.24gb", "a30"

Vector = tuple[int, ...]  # throughput by component, then its replicas


def gpus(count: int, kind: DeviceKind = A30, per_node: int = 1) -> list[Device]:
    return [Device(f"gpu{at:03}", kind, f"node{at // per_node:02}") for at in range(count)]


def fits(memory_gib: float, **rates: float) -> dict[str, Fit]:
    """Fits on the sizes of an A30, by the short names of the keywords."""
    sizes = {"small": SMALL, "half": HALF, "cut": CUT, "whole": WHOLE}
    return {sizes[name]: Fit(rate, int(memory_gib * GIB)) for name, rate in rates.items()}


@dataclass(frozen=True, slots=True)
class Case:
    """What `place` gets."""

    components: list[Component]
    devices: list[Device]
    bundles: list[Bundle]

    @property
    def placement(self) -> Placement:
        return place(self.components, self.devices, bundles=self.bundles)

    @classmethod
    def random(cls, seed: int) -> Case:
        draw = random.Random(seed)
        count = draw.choice([1, 2, 2, 3, 3, 4, 4])
        kind = DeviceKind("cut", tuple(draw.sample(A30.layouts, draw.choice([2, 2, 3]))))
        kinds = [draw.choice([kind, kind, kind, L4]) for _ in range(count)]
        components = [
            Component(
                name,
                {
                    size.name: Fit(draw.randint(1, 60), draw.choice([2, 4, 5, 8, 14, 20]) * GIB)
                    for size in (*A30.slices, *L4.slices)
                    if draw.random() < 0.9
                },
                visits=draw.choice([0.5, 1, 1, 2]),
                replicas_max=draw.choice([None, None, None, 1, 2]),
            )
            for name in "abc"[: draw.choice([2, 2, 3]) if count < 4 else 2]
        ]
        bundles = []
        for first, second in itertools.combinations(components, 2):
            both = sorted(first.fits.keys() & second.fits.keys())
            if both and draw.random() < 0.5:
                rates = {each.name: draw.randint(1, 40) for each in (first, second)}
                bundles.append(Bundle(draw.choice(both), rates))
        devices = [Device(f"gpu{at}", kind, f"node{at % 2}") for at, kind in enumerate(kinds)]
        return cls(components, devices, bundles)


def add(first: Iterable[Vector], second: Iterable[Vector]) -> set[Vector]:
    return {tuple(map(sum, zip(a, b, strict=True))) for a in first for b in second}


def contents(case: Case, size: str) -> Iterator[Vector]:
    """All that one slice of a size can hold. Throughputs are doubled, so that they are whole."""
    yield (0,) * 2 * len(case.components)
    memory = {
        each.name: each.memory_bytes for device in case.devices for each in device.kind.slices
    }
    singles = [
        {each.name: each.fits[size].rate_per_s} for each in case.components if size in each.fits
    ]
    for rates in [*singles, *(each.rates_per_s for each in case.bundles if each.slice == size)]:
        held = [each for each in case.components if each.name in rates]
        if sum(each.fits[size].memory_bytes for each in held) <= memory[size]:
            throughput = [2 * rates.get(each.name, 0) / each.visits for each in case.components]
            yield tuple(map(int, throughput)) + tuple(each in held for each in case.components)


def enumerate_devices(case: Case, devices: Sequence[Device]) -> set[Vector]:
    """What these devices can give together, by every layout and every content of each slice."""
    limits = [each.replicas_max or len(devices) * 8 for each in case.components]
    found: set[Vector] = {(0,) * 2 * len(limits)}
    for device in devices:
        options: set[Vector] = set()
        for layout in device.kind.layouts:
            held: set[Vector] = {(0,) * 2 * len(limits)}
            for each in layout:
                held = add(held, [*contents(case, each.name)])
            options |= held
        if not any(each.replicas_max for each in case.components):
            options = set(keep_largest(options))
        found = {
            each
            for each in add(found, options)
            if all(n <= limit for n, limit in zip(each[len(limits) :], limits, strict=True))
        }
    return found


def keep_largest(options: Iterable[Vector]) -> Iterator[Vector]:
    """Options that no other one equals or exceeds everywhere; replicas count for nothing."""
    half = [each[: len(each) // 2] for each in options]
    for mine in {*half}:
        if not any(other != mine and all(map(int.__ge__, other, mine)) for other in half):
            yield mine + (0,) * len(mine)


def best(case: Case) -> list[float]:
    """The throughputs of the best placement, lowest first, by looking at all there are."""
    found = enumerate_devices(case, case.devices)
    half = len(case.components)
    return [each / 2 for each in max(sorted(vector[:half]) for vector in found)]


def check(case: Case, placement: Placement) -> None:
    """Check that a placement can be had: layouts, memory, rates and numbers of replicas."""
    by_name = {each.name: each for each in case.components}
    kinds = {each.name: each.kind for each in case.devices}
    bundles = {(each.slice, *sorted(each.rates_per_s.items())) for each in case.bundles}
    assert placement.layouts.keys() == kinds.keys()
    for device, names in placement.layouts.items():
        layouts = [Counter(each.name for each in layout) for layout in kinds[device].layouts]
        assert Counter(names) in layouts
    for berth in placement.berths:
        held = [by_name[name] for name in berth.throughput_per_s]
        size = berth.slice.name
        assert sum(each.fits[size].memory_bytes for each in held) <= berth.slice.memory_bytes
        rates = {each.name: berth.throughput_per_s[each.name] * each.visits for each in held}
        if len(held) == 1:
            single = held[0].fits[size].rate_per_s
            assert rates[held[0].name] == single or (size, *rates.items()) in bundles
        elif held:
            assert (size, *sorted(rates.items())) in bundles
    for each in case.components:
        count = sum(placement.replicas[each.name].values())
        assert 1 <= count <= (each.replicas_max or count)


@pytest.mark.parametrize("first", range(0, 200, 20))
def test_it_equals_an_enumeration_of_everything(first: int) -> None:
    for seed in range(first, first + 20):
        case = Case.random(seed)
        try:
            placement = case.placement
        except InvalidArgumentError as error:
            assert best(case)[0] == 0, f"seed {seed}: {error}"
            continue
        check(case, placement)
        assert [*placement.throughput_per_s.values()] == pytest.approx(best(case)), f"seed {seed}"


PAPER = [
    Component("text", fits(2, small=40, half=60, cut=80)),
    Component("vision", fits(14, cut=5)),
    Component("cross", fits(3, small=20, half=35, cut=50)),
    Component("search", fits(4, small=7.5, half=12, cut=20)),
]


def test_it_finds_the_packing_of_the_paper() -> None:
    """Vortex, figures 5 and 6: 15 queries instead of the 8 of all components on each GPU."""
    everywhere = Bundle(CUT, {each.name: 2 for each in PAPER})
    small = [replace(each, fits={CUT: Fit(5, 5 * GIB)}) for each in PAPER]
    assert place(small, gpus(4), bundles=[everywhere]).rate_per_s == 8
    placement = place(PAPER, gpus(4), bundles=[everywhere])
    assert sorted(placement.layouts.values()) == [(SMALL,) * 4, (CUT,), (CUT,), (CUT,)]
    assert placement.replicas == {
        "text": {SMALL: 1},
        "vision": {CUT: 3},
        "cross": {SMALL: 1},
        "search": {SMALL: 2},
    }
    assert placement.throughput_per_s == {"search": 15, "vision": 15, "cross": 20, "text": 40}
    assert placement.sums_per_s == [15, 30, 50, 90]


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10**6), shuffle=st.randoms())
def test_the_order_of_the_arguments_makes_no_difference(seed: int, shuffle: random.Random) -> None:
    case = Case.random(seed)
    edges = {("a", "b"): 5.0, ("b", "a"): 1.0}
    mixed = Case(
        *(shuffle.sample(each, len(each)) for each in (case.components, case.devices, case.bundles))
    )
    try:
        placement = place(case.components, case.devices, bundles=case.bundles, edges=edges)
    except InvalidArgumentError:
        with pytest.raises(InvalidArgumentError):
            place(mixed.components, mixed.devices, bundles=mixed.bundles)
        return
    again = place(
        mixed.components, mixed.devices, bundles=mixed.bundles, edges=dict(reversed(edges.items()))
    )
    assert again == placement


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10**6), more=st.sampled_from([A30, L4]))
def test_more_devices_never_lower_the_throughputs(seed: int, more: DeviceKind) -> None:
    case = Case.random(seed)
    try:
        before = [*case.placement.throughput_per_s.values()]
    except InvalidArgumentError:
        return
    larger = replace(case, devices=[*case.devices, Device("another", more, "node9")])
    assert [*larger.placement.throughput_per_s.values()] >= before


def test_a_bundle_needs_memory_for_all_of_its_components() -> None:
    components = [Component("a", fits(3, small=10)), Component("b", fits(2.5, small=10))]
    together = Bundle(SMALL, {"a": 9, "b": 9})
    kind = DeviceKind("cut", (A30.layouts[-1],))
    placement = place(components, gpus(1, kind), bundles=[together])
    assert placement.throughput_per_s == {"a": 36, "b": 36}
    larger = [components[0], Component("b", fits(3, small=10))]
    placement = place(larger, gpus(1, kind), bundles=[together])
    assert placement.throughput_per_s == {"a": 20, "b": 20}
    assert placement.refusals == (
        "a and b do not fit together: they need 6.00 GiB on a30-1g.6gb (5.81 GiB).",
    )


def relax(components: Sequence[Component], layouts: Sequence[Layout], count: int) -> float:
    """The lowest throughput if devices and replicas could be divided: an upper bound."""
    from scipy.optimize import linprog

    sizes = sorted({each.name for layout in layouts for each in layout})
    memory = {each.name: each.memory_bytes for layout in layouts for each in layout}
    pairs = [
        (at, size)
        for at, each in enumerate(components)
        for size in sizes
        if size in each.fits and each.fits[size].memory_bytes <= memory[size]
    ]
    columns = len(layouts) + len(pairs) + 1  # the last one is the lowest throughput
    rows, limits = [], []
    for size in sizes:
        row = [-sum(each.name == size for each in layout) for layout in layouts]
        rows.append([*row, *(float(its == size) for _, its in pairs), 0.0])
        limits.append(0.0)
    for at, each in enumerate(components):
        rates = [-each.fits[s].rate_per_s / each.visits if n == at else 0.0 for n, s in pairs]
        rows.append([*[0.0] * len(layouts), *rates, 1.0])
        limits.append(0.0)
    whole = [[1.0] * len(layouts) + [0.0] * (columns - len(layouts))]
    objective = np.zeros(columns)
    objective[-1] = -1
    return float(-linprog(objective, A_ub=rows, b_ub=limits, A_eq=whole, b_eq=[count]).fun)


@pytest.mark.parametrize(
    ("kind", "count"),
    [(A30, 4), (A30, 8), (A100_40GB, 4), pytest.param(A100_40GB, 8, marks=pytest.mark.slow)],
    ids=lambda each: getattr(each, "name", each),
)
@pytest.mark.timeout(60)
def test_64_gpus_come_within_a_few_percent_of_their_bound(kind: DeviceKind, count: int) -> None:
    draw = random.Random(count)
    components = []
    for at in range(count):
        power, base = draw.uniform(0.5, 1), draw.uniform(20, 200)
        memory = int(draw.choice([2, 3, 4, 5.5, 9, 15]) * GIB)
        rates = {s.name: Fit(base * s.compute**power, memory) for s in kind.slices}
        components.append(Component(f"c{at}", rates, visits=draw.choice([1, 1, 2])))
    placement = place(components, gpus(64, kind, per_node=8))
    check(Case(components, gpus(64, kind, per_node=8), []), placement)
    bound = relax(components, kind.layouts, 64)
    assert 0.97 * bound <= placement.rate_per_s <= bound * (1 + 1e-9)


def test_rates_a_thousand_times_apart_keep_their_precision() -> None:
    """Their common unit would be too small: they are rounded, by less than 1 % of the lowest."""
    components = [
        Component("fast", fits(1, small=9876.54321, whole=20000.0001)),
        Component("slow", fits(1, small=3.14159, whole=20.2)),
    ]
    placement = place(components, gpus(4))
    assert placement.throughput_per_s == pytest.approx(
        {"slow": 70.02477, "fast": 9876.54321}, rel=1e-4
    )


BOTH, HUGE = ("big", "little"), ("big", "big")
USEFUL = [
    ("a large slice is better for all", {"big": [9, 3], "little": [4, 2]}, [HUGE]),
    ("a large slice is worse for one", {"big": [9, 1], "little": [4, 2]}, [BOTH, HUGE]),
    ("one component fits the little one only", {"big": [9, 0], "little": [4, 2]}, [BOTH, HUGE]),
    ("nothing fits the little one", {"big": [9, 3]}, [HUGE]),
    ("nothing fits the large one", {"little": [9, 3]}, [BOTH]),
    ("both are alike: the first one is kept", {"big": [9, 3], "little": [9, 3]}, [BOTH]),
]


@pytest.mark.parametrize(("why", "units", "kept"), USEFUL, ids=[why for why, _, _ in USEFUL])
def test_layouts_are_useless_if_another_one_is_as_good_for_everything(
    why: str, units: dict[str, list[int]], kept: list[tuple[str, ...]]
) -> None:
    occupants = [
        Occupant(size, {component: each})
        for size, of_components in units.items()
        for component, each in enumerate(of_components)
        if each
    ]
    assert [*keep_useful([BOTH, HUGE], occupants)] == kept


def local_traffic(case: Case, edges: Mapping[tuple[str, str], float]) -> float:
    """The most traffic within nodes of all placements with the best throughputs."""
    half = len(case.components)
    nodes = sorted({each.node for each in case.devices})
    by_node = [
        {
            vector[:half]
            for vector in enumerate_devices(case, [d for d in case.devices if d.node == node])
        }
        for node in nodes
    ]
    names = [each.name for each in case.components]
    found: tuple[list[int], float] = ([], 0.0)
    for shares in itertools.product(*by_node):
        totals = sorted(map(sum, zip(*shares, strict=True)))
        traffic = 0.0
        for (source, target), weight in edges.items():
            a, b = names.index(source), names.index(target)
            traffic += weight * min(totals[0], sum(min(each[a], each[b]) for each in shares))
        found = max(found, (totals, traffic))
    return found[1] / 2


@pytest.mark.parametrize("first", range(0, 40, 10))
def test_expensive_edges_stay_on_a_node_if_that_costs_nothing(first: int) -> None:
    """Rates by the share of the GPU make many placements equal, so there is a choice."""
    for seed in range(first, first + 10):
        draw = random.Random(seed)
        shares = {"small": 1, "half": 2, "whole": 4}
        components = [
            Component(name, fits(5, **{size: base * n for size, n in shares.items()}))
            for name, base in zip(
                "abc"[: draw.choice([2, 3])], [3, draw.randint(1, 6), 4], strict=False
            )
        ]
        edges = {("a", "b"): float(draw.randint(1, 9)), ("b", components[-1].name): 4.0}
        edges = {edge: weight for edge, weight in edges.items() if edge[0] != edge[1]}
        case = Case(components, gpus(2, DeviceKind("cut", A30.layouts[:1] + A30.layouts[2:])), [])
        placement = place(case.components, case.devices, edges=edges)
        kept = sum(
            each.local_share * each.bytes_per_query * placement.rate_per_s
            for each in placement.edges.values()
        )
        assert [*placement.throughput_per_s.values()] == pytest.approx(best(case))
        assert kept == pytest.approx(local_traffic(case, edges), rel=1e-3), f"seed {seed}"


def test_on_many_nodes_both_ends_of_an_edge_are_dealt_together() -> None:
    """Sixteen machines of two GPUs: one whole for the vision stage, one cut for the others."""
    components = [
        Component("vision", fits(14, whole=20)),
        Component("cross", fits(5, small=20)),
        Component("text", fits(5, small=7)),
        Component("rare", fits(5, small=400), replicas_max=1),
    ]
    edges = {("vision", "cross"): 16e6, ("text", "cross"): 1e5, ("rare", "text"): 1.0}
    placement = place(components, gpus(32, per_node=2), edges=edges)
    shares = {edge: each.local_share for edge, each in placement.edges.items()}
    assert shares["vision", "cross"] == 1
    assert shares["text", "cross"] > 0.9


def test_serve_options_name_the_size_where_that_is_enough() -> None:
    placement = place(PAPER, gpus(4))
    small = {"num_gpus": 0, "resources": {f"slice-{SMALL}": 1}}
    assert placement.serve_options() == {
        "cross": {"num_replicas": 1, "ray_actor_options": small},
        "search": {"num_replicas": 2, "ray_actor_options": small},
        "text": {"num_replicas": 1, "ray_actor_options": small},
        "vision": {
            "num_replicas": 3,
            "ray_actor_options": {"num_gpus": 0, "resources": {f"slice-{CUT}": 1}},
        },
    }
    offered = [*placement.ray_resources().values()]
    assert Counter(map(str, offered)) == {
        str({f"slice-{CUT}": 1}): 3,
        str({f"slice-{SMALL}": 4}): 1,
    }


def test_serve_options_name_the_stage_where_ray_could_mix_them_up() -> None:
    """Two stages hold one size on two nodes; another is on two sizes; two share a slice."""
    kind = DeviceKind("cut", (A30.layouts[-1],))
    two = [Component("a", fits(5, small=10)), Component("b", fits(5, small=10))]
    options = place(two, gpus(2, kind)).serve_options()
    assert options["a"]["ray_actor_options"]["resources"] == {"stage-a": 1}
    assert place(two, gpus(2, kind)).ray_resources() == {
        "node00": {"stage-a": 2, "stage-b": 2},
        "node01": {"stage-a": 2, "stage-b": 2},
    }
    mixed = [Component("a", {**fits(5, small=10), "l4": Fit(30, GIB)}), two[1]]
    placement = place(mixed, [*gpus(1, kind), Device("l4", L4, "node00")])
    assert placement.replicas == {"a": {"l4": 1}, "b": {SMALL: 4}}
    placement = place(mixed[:1], [*gpus(1, kind), Device("l4", L4, "node00")])
    assert placement.ray_resources() == {"node00": {"stage-a": 5}}
    bundle = Bundle(SMALL, {"a": 9, "b": 9})
    light = [replace(each, fits=fits(2, small=10)) for each in two]
    placement = place(light, gpus(1, kind), bundles=[bundle])
    assert placement.ray_resources() == {"node00": {"stage-a": 4, "stage-b": 4}}


def test_slots_of_a_cpu_ask_for_cores() -> None:
    machines = [Device("cpu", cpu_slots(3, cores=2), "node00"), *gpus(1)]
    components = [
        Component("model", fits(5, whole=10)),
        Component("words", {"cpu-2": Fit(4, GIB)}),
    ]
    placement = place(components, machines)
    assert placement.serve_options() == {
        "model": {
            "num_replicas": 1,
            "ray_actor_options": {"num_gpus": 0, "resources": {"slice-a30": 1}},
        },
        "words": {"num_replicas": 3, "ray_actor_options": {"num_cpus": 2}},
    }
    assert placement.ray_resources() == {"node00": {"slice-a30": 1}}


def test_the_explanation_names_limits_memory_edges_and_resources() -> None:
    components = [
        Component("vision", fits(14, small=2, half=4, whole=5)),
        Component("text", fits(5, small=40), replicas_max=1),
    ]
    placement = place(components, gpus(2), edges={("text", "vision"): 2e6})
    assert placement.explain().splitlines() == [
        "5 queries/s on 2 devices",
        "  vision: 5 queries/s, 1 x a30",
        "  text: 40 queries/s, 1 x a30-1g.6gb",
        "  node00, gpu000: a30 vision",
        "  node01, gpu001: a30-1g.6gb text, a30-1g.6gb idle, a30-1g.6gb idle, a30-1g.6gb idle",
        "",
        "Why:",
        "- The pipeline is limited by vision.",
        "- The sums of the 1, 2, ... lowest throughputs are 5, 45 queries/s. No placement has a "
        "larger first one, nor with it a larger second one, and so on.",
        "- vision does not fit: it needs 14.00 GiB on a30-1g.6gb (5.81 GiB), 14.00 GiB on "
        "a30-2g.12gb (11.69 GiB).",
        "- text -> vision: 0% of the queries stay on a node; 10 MB/s cross the network at the "
        "pipeline's rate.",
        "- Idle, because no further replica fits there or is allowed: 3 x a30-1g.6gb.",
        "",
        "Ray nodes:",
        """- node00: ray start --resources='{"slice-a30": 1}'""",
        """- node01: ray start --resources='{"slice-a30-1g.6gb": 1}'""",
    ]


ONE = Component("a", fits(5, whole=10))
OTHER_L4 = whole_gpu("l4", memory_bytes=1)
REFUSED: list[tuple[str, dict[str, Any]]] = [
    ("needs components and devices, and got 0 and 1", {"components": []}),
    ("needs components and devices, and got 1 and 0", {"devices": []}),
    ("two components are called a", {"components": [ONE, ONE]}),
    ("two devices are called gpu000", {"devices": gpus(1) * 2}),
    ("visits of a is 0", {"components": [replace(ONE, visits=0)]}),
    ("replicas_max of a is 0", {"components": [replace(ONE, replicas_max=0)]}),
    ("rate of a on a30 is nan", {"components": [Component("a", fits(5, whole=float("nan")))]}),
    ("memory of a on a30 is below 0", {"components": [Component("a", fits(-1, whole=1))]}),
    ("a bundle on a30 has b, which is no component", {"bundles": [Bundle(WHOLE, {"b": 1})]}),
    ("a bundle on a30-1g.6gb has a, which is", {"bundles": [Bundle(SMALL, {"a": 1})]}),
    ("rate of a in a bundle on a30 is -1", {"bundles": [Bundle(WHOLE, {"a": -1})]}),
    (r"edge \('a', 'b'\): its ends are names", {"edges": {("a", "b"): 1.0}}),
    (r"edge \('a', 'a'\): -1 is no number", {"edges": {("a", "a"): -1}}),
    (
        "two sizes of slice are called l4",
        {"devices": [*gpus(1, L4), Device("x", DeviceKind("other", OTHER_L4.layouts), "node")]},
    ),
    ("two kinds of device are called l4", {"devices": [*gpus(1, L4), Device("x", OTHER_L4, "n")]}),
    (
        "component a has fits on l4, and the devices have a30, a30-1g.6gb",
        {"components": [Component("a", {"l4": Fit(1, 1)})]},
    ),
    (
        "component a needs 30.00 GiB at least, where the largest slice is a30-4g.24gb with 23.44",
        {"components": [Component("a", fits(30, whole=10, cut=9))]},
    ),
    (
        "the 1 devices have no slice left for component b, which needs 15.00 GiB at least, where",
        {"components": [ONE, Component("b", fits(15, whole=1))]},
    ),
]


@pytest.mark.parametrize(("text", "changes"), REFUSED, ids=[text for text, _ in REFUSED])
def test_what_can_not_be_placed_is_refused(text: str, changes: dict[str, Any]) -> None:
    arguments: dict[str, Any] = {"components": [ONE], "devices": gpus(1), **changes}
    with pytest.raises(InvalidArgumentError, match=text):
        place(arguments.pop("components"), arguments.pop("devices"), **arguments)


def test_without_scipy_the_error_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy.optimize", None)
    with pytest.raises(HopliteError, match=r"pip install '\.\[planner\]'"):
        place([ONE], gpus(1))


def test_the_page_prints_what_it_says(capsys: pytest.CaptureFixture[str]) -> None:
    page = (ROOT / "docs/reference/serving.md").read_text().partition("## Placement")[2]
    program, printed = re.findall(r"^```(?:python|text)\n(.*?)^```", page, re.S | re.M)[:2]
    exec(compile(program, "program.py", "exec"), {})
    assert capsys.readouterr().out == printed
