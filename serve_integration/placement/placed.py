"""A placement: what it promises, what Ray's nodes offer for it, and what Serve is asked for."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, groupby
from typing import Any

from hoplite_ray.serve.placement.devices import Processor, Slice


@dataclass(frozen=True, slots=True)
class Berth:
    """One slice of one device, and what it holds.

    throughput_per_s:  by component: queries of the pipeline a second that the replica here can
                       serve. It is empty if the slice is idle, and has several names for a bundle.
    resources:         what a Ray node that has this slice offers for it.
    """

    node: str
    device: str
    slice: Slice
    throughput_per_s: Mapping[str, float] = field(default_factory=dict)
    resources: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Traffic:
    """An edge between two components: bytes a query, and the share of queries on one node."""

    bytes_per_query: float
    local_share: float


@dataclass(frozen=True, slots=True)
class Placement:
    """Devices with their layouts and replicas. `place` makes it, and `print` shows it.

    berths:    every slice of every device, by node and device.
    edges:     (component, component) -> its traffic.
    refusals:  sentences about memory that forbids something.
    """

    berths: tuple[Berth, ...]
    edges: Mapping[tuple[str, str], Traffic]
    refusals: tuple[str, ...] = ()

    @property
    def throughput_per_s(self) -> dict[str, float]:
        """Queries of the pipeline a second that each component can serve, lowest first."""
        found: dict[str, float] = {}
        for berth in self.berths:
            _add(found, berth.throughput_per_s)
        return dict(sorted(found.items(), key=lambda each: (each[1], each[0])))

    @property
    def sums_per_s(self) -> list[float]:
        """The sums of the 1, 2, ... lowest throughputs; each is the largest after those before."""
        return list(accumulate(self.throughput_per_s.values()))

    @property
    def rate_per_s(self) -> float:
        """Queries a second that the whole pipeline can serve: the lowest throughput."""
        return min(self.throughput_per_s.values())

    @property
    def replicas(self) -> dict[str, dict[str, int]]:
        """Component -> the name of a slice -> its replicas there."""
        found: dict[str, Counter[str]] = defaultdict(Counter)
        for berth in self.berths:
            for name in berth.throughput_per_s:
                found[name][berth.slice.name] += 1
        return {name: dict(sorted(sizes.items())) for name, sizes in sorted(found.items())}

    @property
    def layouts(self) -> dict[str, tuple[str, ...]]:
        """Device -> the names of its slices."""
        return {
            device: tuple(each.slice.name for each in berths)
            for device, berths in groupby(self.berths, key=lambda each: each.device)
        }

    def serve_options(self) -> dict[str, dict[str, Any]]:
        """Return the options of `@stage`, or of `serve.deployment`, by component.

        A replica on a GPU asks for one custom resource of Ray, and for no GPU of Ray, because
        fractions of GPUs isolate nothing. The resource is `slice-NAME` with the name of the slice.
        It is `stage-COMPONENT` for a component on several sizes or in a bundle, and where Ray could
        mix up components: several of them hold one size on several nodes. A replica in a slot of a
        CPU asks for its cores.

        Each Ray node offers the resources of its slices (see `ray_resources`)::

            export CUDA_VISIBLE_DEVICES=MIG-<UUID of the slice>
            ray start --num-gpus=0 --resources='{"slice-a30-1g.6gb": 1}' --address=...

        Ray counts custom resources and gives no device with them. So start one Ray node for each
        slice, as above: its replica then sees that slice only. With one Ray node a machine, the
        stage's constructor has to choose a free slice.

        Example::

            options = placement.serve_options()
            app = pipeline(text=Text.options(**options["text"]), ...)
        """
        found = {}
        for name in sorted(self.throughput_per_s):
            held = [berth for berth in self.berths if name in berth.throughput_per_s]
            actor_options: dict[str, Any] = {}
            if any(each.slice.processor is Processor.GPU for each in held):
                actor_options["num_gpus"] = 0
            elif len({each.slice.name for each in held}) == 1:
                actor_options["num_cpus"] = held[0].slice.compute
            resource = _resource(name, held[0])
            if resource is not None:
                actor_options["resources"] = {resource: 1}
            found[name] = {"num_replicas": len(held), "ray_actor_options": actor_options}
        return found

    def ray_resources(self) -> dict[str, dict[str, int]]:
        """Return node -> the custom resources that it offers, for `ray start --resources`.

        Idle slices are not among them, else Ray could put replicas there.
        """
        found: dict[str, Counter[str]] = {berth.node: Counter() for berth in self.berths}
        for berth in self.berths:
            found[berth.node].update(berth.resources)
        return {node: dict(sorted(counts.items())) for node, counts in found.items()}

    def explain(self) -> str:
        """Return the placement and its reasons, as a text for people."""
        slowest = [name for name, rate in self.throughput_per_s.items() if rate == self.rate_per_s]
        sums = ", ".join(map(_number, self.sums_per_s))
        lines = [
            str(self),
            "",
            "Why:",
            f"- The pipeline is limited by {' and '.join(slowest)}.",
            f"- The sums of the 1, 2, ... lowest throughputs are {sums} queries/s. No placement "
            "has a larger first one, nor with it a larger second one, and so on.",
        ]
        lines += [f"- {refusal}" for refusal in self.refusals]
        for (source, target), traffic in self.edges.items():
            crossing = (1 - traffic.local_share) * traffic.bytes_per_query * self.rate_per_s
            lines.append(
                f"- {source} -> {target}: {traffic.local_share:.0%} of the queries stay on a node; "
                f"{crossing / 1e6:.4g} MB/s cross the network at the pipeline's rate."
            )
        idle = Counter(each.slice.name for each in self.berths if not each.throughput_per_s)
        if idle:
            lines.append(
                f"- Idle, because no further replica fits there or is allowed: {_count(idle)}."
            )
        lines += ["", "Ray nodes:"]
        lines += [
            f"- {node}: ray start --resources='{json.dumps(resources)}'"
            for node, resources in self.ray_resources().items()
        ]
        return "\n".join(lines)

    def __str__(self) -> str:
        lines = [f"{_number(self.rate_per_s)} queries/s on {len(self.layouts)} devices"]
        for name, rate in self.throughput_per_s.items():
            sizes = _count(Counter(self.replicas[name]))
            lines.append(f"  {name}: {_number(rate)} queries/s, {sizes}")
        for (node, device), berths in groupby(
            self.berths, key=lambda each: (each.node, each.device)
        ):
            held = ", ".join(
                f"{each.slice.name} {' + '.join(each.throughput_per_s) or 'idle'}"
                for each in berths
            )
            lines.append(f"  {node}, {device}: {held}")
        return "\n".join(lines)


def name_resources(berths: Sequence[Berth]) -> list[Berth]:
    """Return the berths with the resources that make Ray follow the placement."""
    sizes: dict[str, set[str]] = defaultdict(set)
    for berth in berths:
        for name in berth.throughput_per_s:
            sizes[name].add(berth.slice.name)
    alone = {name for name, its in sizes.items() if len(its) == 1}
    alone -= {n for each in berths if len(each.throughput_per_s) > 1 for n in each.throughput_per_s}
    for size in {berth.slice.name for berth in berths}:
        held = [
            each for each in berths if each.slice.name == size and alone & {*each.throughput_per_s}
        ]
        names = {name for each in held for name in each.throughput_per_s}
        if len(names) > 1 and len({each.node for each in held}) > 1:
            alone -= names
    found = []
    for berth in berths:
        resources = {
            resource: 1
            for name in sorted(berth.throughput_per_s)
            if (resource := _offer(name, berth, is_alone=name in alone)) is not None
        }
        found.append(replace(berth, resources=resources))
    return found


def _offer(name: str, berth: Berth, *, is_alone: bool) -> str | None:
    """Return the resource of a replica's slice, or None if cores say enough."""
    if not is_alone:
        return f"stage-{name}"
    return None if berth.slice.processor is Processor.CPU else f"slice-{berth.slice.name}"


def _resource(name: str, berth: Berth) -> str | None:
    """Return which of a berth's resources is that of one of its components."""
    own = f"stage-{name}"
    return own if own in berth.resources else next(iter(berth.resources), None)


def measure_edges(
    berths: Sequence[Berth], edges: Mapping[tuple[str, str], float]
) -> dict[tuple[str, str], Traffic]:
    """Return each edge with the share of its queries that can stay on a node, at the full rate."""
    here: dict[str, dict[str, float]] = defaultdict(dict)
    totals: dict[str, float] = {}
    for berth in berths:
        _add(here[berth.node], berth.throughput_per_s)
        _add(totals, berth.throughput_per_s)
    rate = min(totals.values())
    found = {}
    for (source, target), weight in edges.items():
        local = sum(min(rates.get(source, 0), rates.get(target, 0)) for rates in here.values())
        found[source, target] = Traffic(weight, min(1.0, local / rate))
    return found


def _add(totals: dict[str, float], more: Mapping[str, float]) -> None:
    for name, rate in more.items():
        totals[name] = totals.get(name, 0.0) + rate


def format_gib(size_bytes: int) -> str:
    """Return a size as a text in GiB, for example "5.81 GiB"."""
    return f"{size_bytes / (1 << 30):.2f} GiB"


def _number(value: float) -> str:
    return f"{value:.4g}"


def _count(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{count} x {name}" for name, count in sorted(sizes.items()))
