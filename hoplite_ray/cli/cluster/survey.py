"""Ask all nodes of a cluster at once, and report each node, whether it answers or not."""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from hoplite_ray.cli.cluster.places import Cluster, Place, find_cluster
from hoplite_ray.control import control_pb2 as pb
from hoplite_ray.control.client import ControlClient, RefusedError, UnreachableError
from hoplite_ray.control.view import NodeKey, View
from hoplite_ray.errors import ControlError

_T = TypeVar("_T")

RAY_SHARE = 0.5  # of the time limit, for Ray's answers once it is imported
_SURVEY_SHARE = 0.3  # of the time limit, for the nodes' answers; the rest is the command's own


@dataclass(slots=True)
class NodeReport:
    """One incarnation of a node, as this command sees it.

    state:  serving, draining; minority (too few members answer it for the view to change), silent
            (no answer in time), refused (another secret), failing (any other answer), dead (its
            process is gone, on this machine), or outside (it runs, and is no member).
    """

    node_id: int
    incarnation: int
    control: str
    rails: tuple[str, ...] = ()
    directory: Path | None = None
    pid: int | None = None
    state: str = "silent"
    why: str = ""
    counters: dict[str, int] = field(default_factory=dict)
    description: pb.Description | None = None
    skew_s: float = 0.0  # of its clock, against ours
    skew_error_s: float = 0.0
    ray_node_id: str | None = None  # None without Ray

    @property
    def key(self) -> NodeKey:
        """The name of this incarnation of the node."""
        return (self.node_id, self.incarnation)

    @property
    def is_healthy(self) -> bool:
        """True if the node serves or drains."""
        return self.state in ("serving", "draining")

    @property
    def answers(self) -> bool:
        """True if the node has answered."""
        return self.is_healthy or self.state == "minority"

    def __str__(self) -> str:
        name = f"node {self.node_id:x}/{self.incarnation}" if self.node_id else "a node"
        return f"{name} at {self.control}"


@dataclass(slots=True)
class RayNode:
    """A Ray node, and the id of its node of hoplite_ray, if that is known."""

    ray_node_id: str
    address: str
    hostname: str
    alive: bool
    node_id: int | None


@dataclass(slots=True)
class Survey:
    """The newest view of any node, and a report of every node in it or otherwise known.

    ray_nodes:  under Ray, every Ray node that lives, or that the nodes still have as a member.
    """

    view: View
    nodes: list[NodeReport]
    ray_nodes: list[RayNode] = field(default_factory=list)

    @property
    def is_healthy(self) -> bool:
        """True if there are nodes, and all of them serve or drain."""
        return bool(self.nodes) and all(node.is_healthy for node in self.nodes)


def find_and_survey(
    arguments: argparse.Namespace, *, timeout_s: float | None = None
) -> tuple[Cluster, Survey]:
    """Find the cluster that the command line names, and ask its nodes.

    `timeout_s` replaces the time limit of the command line.
    """
    timeout_s = arguments.timeout_s if timeout_s is None else timeout_s
    cluster = find_cluster(arguments, timeout_s=timeout_s * RAY_SHARE)
    return cluster, asyncio.run(survey(cluster, timeout_s=timeout_s * _SURVEY_SHARE))


async def survey(cluster: Cluster, *, timeout_s: float) -> Survey:
    """Ask all nodes for the view, then each member for itself; each round takes half the time."""
    calls = ControlClient(cluster.secret)
    try:
        view, failures = await _newest_view(calls, cluster, timeout_s / 2)
        reports = [NodeReport(m.node_id, m.incarnation, m.control, m.rails) for m in view.members]
        await asyncio.gather(*(_ask(calls, report, timeout_s / 2) for report in reports))
    finally:
        await calls.close()
    unheard = {} if view.members else failures  # without a view no node is known to be outside it
    for place in cluster.places:
        _attach_place(reports, place, unheard)
    if not reports:
        reports += [_report_failure(control, error) for control, error in failures.items()]
    return Survey(view, reports, _ray_nodes(cluster.ray.get("raylets", ()), reports))


async def ask_each(
    cluster: Cluster,
    nodes: list[NodeReport],
    what: Callable[[ControlClient, NodeReport], Awaitable[_T]],
) -> list[_T | ControlError]:
    """Make one call to each of `nodes` at once; returns the answers in order."""
    calls = ControlClient(cluster.secret)

    async def one(node: NodeReport) -> _T | ControlError:
        try:
            return await what(calls, node)
        except ControlError as error:
            return error

    try:
        return list(await asyncio.gather(*map(one, nodes)))
    finally:
        await calls.close()


async def _newest_view(
    calls: ControlClient, cluster: Cluster, timeout_s: float
) -> tuple[View, dict[str, ControlError]]:
    failures: dict[str, ControlError] = {}

    async def one(control: str) -> View:
        try:
            return await calls.view(control, timeout_s=timeout_s)
        except ControlError as error:
            failures[control] = error
            return View()

    views = await asyncio.gather(*map(one, cluster.controls))
    return max([cluster.view, *views], key=lambda view: view.epoch), failures


async def _ask(calls: ControlClient, report: NodeReport, timeout_s: float) -> None:
    """Fill in the node's own answers."""
    try:
        async with asyncio.timeout(timeout_s):
            report.counters = await calls.stats(report.control, timeout_s=timeout_s)
            asked_s = time.time()
            description = await calls.describe(report.control, timeout_s=timeout_s)
            report.skew_error_s = (time.time() - asked_s) / 2
            report.skew_s = description.clock_s - asked_s - report.skew_error_s
            is_healthy = await calls.is_healthy(report.control, timeout_s=timeout_s)
    except (ControlError, TimeoutError) as error:
        report.state, report.why = _failure(error, timeout_s)
        return
    report.description, report.pid = description, description.pid
    report.state = "draining" if description.draining else "serving"
    if description.shortage:
        report.state, report.why = "minority", description.shortage
    if not is_healthy:
        report.state, report.why = "failing", "its health service says NOT_SERVING: it is leaving"
    if (description.node_id, description.incarnation) != report.key:
        report.state = "failing"
        report.why = f"another life of it, {description.incarnation}, answers there"


def _failure(error: Exception, timeout_s: float) -> tuple[str, str]:
    if isinstance(error, RefusedError):
        return "refused", str(error)
    if isinstance(error, UnreachableError | TimeoutError):
        return "silent", str(error) or f"no answer within {timeout_s:g} s"
    return "failing", str(error)


def _attach_place(
    reports: list[NodeReport], place: Place, unheard: dict[str, ControlError]
) -> None:
    """Add a node's directory to its report; add a report for a node that is no member."""
    record: dict[str, Any] | None = place.record
    if record is None:
        return
    key = (record["node_id"], record["incarnation"])
    for report in reports:
        if report.node_id == key[0] and report.incarnation >= key[1]:
            report.directory = place.directory
            if report.key == key:
                report.pid = record["pid"]
                if not place.is_running:
                    report.state, report.why = "dead", f"its process {record['pid']} has ended"
            return
    state, why = "dead", f"its process {record['pid']} has ended"
    if place.is_running:
        state, why = "outside", "it runs, but is not in the view"
        if error := unheard.get(record["control"]):
            state, why = _failure(error, 0)
    rails = tuple(record.get("rails", ()))
    reports.append(
        NodeReport(*key, record["control"], rails, place.directory, record["pid"], state, why)
    )


def _ray_nodes(told: Iterable[dict[str, Any]], reports: list[NodeReport]) -> list[RayNode]:
    """Say of each report on which Ray node it is; return the Ray nodes, those with a node first."""
    of_node = {report.node_id: report for report in reports}
    found = []
    for each in told:
        report = of_node.get(each["node_id"])
        if report is not None:
            report.ray_node_id = each["ray_node_id"]
        if report is not None or each["alive"]:
            found.append(RayNode(**{**each, "node_id": report and report.node_id}))
    order = [report.node_id for report in reports]
    return sorted(found, key=lambda each: order.index(each.node_id) if each.node_id else len(order))


def _report_failure(control: str, error: ControlError) -> NodeReport:
    state, why = _failure(error, 0)
    return NodeReport(0, 0, control, state=state, why=why)
