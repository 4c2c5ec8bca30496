"""Checks of a cluster: its nodes, their directories, and the ways between them."""

from __future__ import annotations

import os
import stat
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from hoplite_ray.cli.checks.finding import Finding, Level
from hoplite_ray.cli.cluster.places import Cluster, Place
from hoplite_ray.cli.cluster.survey import NodeReport, Survey
from hoplite_ray.cli.cluster.tables import size
from hoplite_ray.config import Memory, shown
from hoplite_ray.control import control_pb2 as pb
from hoplite_ray.errors import ControlError

_SKEW_GOOD_S = 0.5  # from then on lines of two logs are in another order than a person expects
_JOURNAL_BYTES_GOOD = 64 << 20  # a million objects of processes that still live

_NEXT: dict[str, str] = {
    "minority": "mend the network between it and the others, and under Ray look at the head node; "
    "without Ray, if most nodes are gone for good, end it and start it again",
    "silent": "look at its machine and node.log there; if it is gone, the others will say so",
    "refused": "give the secret of this cluster: DIRECTORY/secret of one of its nodes",
    "failing": "look at node.log in its directory",
    "dead": "under Ray the next call of hoplite_ray on that Ray node starts it again, without Ray "
    "its own command line does; its log says why it ended",
    "outside": "end it, or look at node.log: it is cut off from the others",
}


def checks(
    cluster: Cluster, seen: Survey, probes: list[list[pb.Probe] | ControlError], root: Path
) -> Iterator[Finding]:
    """Make every check; `probes` are the answers of the nodes, in the survey's order."""
    answering = [node for node in seen.nodes if node.answers]
    for node in seen.nodes:
        yield _node(node, root)
    yield from _reach(seen, answering, probes)
    if healthy := [node for node in answering if node.is_healthy]:
        yield _views(seen, healthy)
    if answering:
        yield from _agreement(answering)
        yield _rails(cluster, answering)
    for node in answering:
        if node.skew_s or node.skew_error_s:
            yield from _clock(node)
    for place in cluster.places:
        yield from _directory(place)
    local = [node for node in seen.nodes if node.directory and "arena_bytes" in node.counters]
    if local:
        yield _arenas(local, Memory.read(root), cluster.ray.get("memory_threshold"))
    for place in cluster.stale:
        yield _stale(place)


def _node(node: NodeReport, root: Path) -> Finding:
    if node.is_healthy:
        return Finding("ok", str(node), node.state)
    state = _process_state(node.pid, root) if node.directory and node.state == "silent" else ""
    if state in ("T", "t"):
        cause = f"its process {node.pid} is stopped, by SIGSTOP or a debugger"
        return Finding("fail", str(node), cause, f"kill -CONT {node.pid}")
    return Finding("fail", str(node), f"{node.state}: {node.why}", _NEXT[node.state])


def _process_state(pid: int | None, root: Path) -> str:
    try:
        return (root / f"proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""


def _reach(
    seen: Survey, nodes: list[NodeReport], probes: list[list[pb.Probe] | ControlError]
) -> Iterator[Finding]:
    """Report which member does not reach which, by the members' own attempts.

    A way leads from one node that answers to another one.
    """
    answering = {node.key for node in nodes}
    names = {node.key: str(node) for node in seen.nodes}
    tried = reached = 0
    for node, answer in zip(nodes, probes, strict=True):
        if isinstance(answer, ControlError):
            next_step = "ask again; if it stays so, look at node.log there"
            yield Finding(
                "warn", "ports", f"{node} did not say whom it reaches: {answer}", next_step
            )
            continue
        for probe in answer:
            key = (probe.node_id, probe.incarnation)
            if key not in answering:  # it has a line of its own
                continue
            failures = [*filter(None, [probe.control_failure]), *probe.rail_failures]
            tried += 1
            reached += not failures
            if failures:
                cause = f"{node} does not reach {names[key]}: {'; '.join(failures)}"
                next_step = (
                    "allow all TCP between the nodes, because Ray nodes choose ports at each "
                    "start (docs/operate/network-and-ports.md)"
                )
                yield Finding("fail", "ports", cause, next_step)
    if tried:
        cause = f"{reached} of {tried} ways between the nodes are open"
        if reached == tried:
            yield Finding("ok", "ports", cause)
        else:
            yield Finding("fail", "ports", cause, "mend the ways that the lines above name")


def _views(seen: Survey, healthy: list[NodeReport]) -> Finding:
    epoch = seen.view.epoch
    late = [node for node in healthy if node.counters["view_epoch"] != epoch]
    if not late:
        return Finding("ok", "view", f"all {len(healthy)} nodes have view {epoch}")
    cause = f"{', '.join(map(str, late))} have not view {epoch}"
    return Finding("warn", "view", cause, "ask again: a change takes less than a second to spread")


def _agreement(answering: list[NodeReport]) -> Iterator[Finding]:
    """Compare what must be the same on all nodes."""
    described = [(node, node.description) for node in answering if node.description is not None]
    restart = "run the same on all nodes, and restart the others"
    looks: list[tuple[str, Level, str, list[str]]] = [
        (
            "releases",
            "fail",
            restart,
            [f"hoplite_ray {d.release}, wire version {d.wire_version}" for _, d in described],
        ),
        ("Pythons", "warn", restart, [d.python for _, d in described]),
        (
            "options",
            "fail",
            "restart the nodes that differ",
            [_options(d) for _, d in described],
        ),
        (
            "congestion controls",
            "warn",
            "set net.ipv4.tcp_congestion_control alike",
            [d.congestion_control for _, d in described],
        ),
    ]
    for about, level, next_step, values in looks:
        kinds = defaultdict(list)
        for (node, _), value in zip(described, values, strict=True):
            kinds[value].append(f"{node.node_id:x}")
        if len(kinds) == 1:
            yield Finding("ok", about, f"alike: {values[0] or 'all defaults'}")
            continue
        parts = (f"{value or 'all defaults'} on {', '.join(on)}" for value, on in kinds.items())
        yield Finding(level, about, "; ".join(parts), next_step)


def _rails(cluster: Cluster, answering: list[NodeReport]) -> Finding:
    """Report the addresses between which the nodes send blocks, and why these."""
    networks = cluster.ray.get("options", {}).get("rails")
    why = "as each node's --listen"
    if cluster.ray:
        why = f"in {networks}, of the option rails" if networks else "Ray's own address of the node"
    counts = {len(node.rails) for node in answering}
    if len(counts) == 1:
        return Finding("ok", "rails", f"{counts.pop()} of each node, {why}")
    counts_text = ", ".join(f"{node.node_id:x}: {len(node.rails)}" for node in answering)
    return Finding("warn", "rails", f"not alike: {counts_text}", "give all nodes as many --listen")


def _options(description: pb.Description) -> str:
    """Return the options that were set, without `trace`, which an operator sets at one node."""
    options = sorted(description.options.items())
    return " ".join(f"{name}={shown(name, value)}" for name, value in options if name != "trace")


def _clock(node: NodeReport) -> Iterator[Finding]:
    skew_s = max(0.0, abs(node.skew_s) - node.skew_error_s)
    text = f"{node} is {abs(node.skew_s):.2f} s {'ahead of' if node.skew_s > 0 else 'behind'} ours"
    if skew_s < _SKEW_GOOD_S:
        yield Finding("ok", "clock", text)
        return
    cause = f"{text}: nodes go on, but times of logs and of Serve's hops don't compare"
    yield Finding("warn", "clock", cause, "set the clocks of both machines by NTP")


def _journal_bytes(directory: Path) -> Iterator[int]:
    """The size of each journal there; they are renamed and removed meanwhile."""
    for each in directory.glob("[!.]*"):
        with suppress(FileNotFoundError):
            yield each.stat().st_size


def _directory(place: Place) -> Iterator[Finding]:
    about = f"directory {place.directory}"
    wrong = []
    for file, allowed in ((place.directory, 0o700), (place.directory / "secret", 0o600)):
        try:
            status = file.stat()
        except FileNotFoundError:
            continue
        if status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) & ~allowed:
            mode = f"{stat.S_IMODE(status.st_mode):o}"
            wrong.append((file, f"{file} has mode {mode}, owner {status.st_uid}", f"{allowed:o}"))
    for file, cause, allowed_text in wrong:
        yield Finding("fail", about, cause, f"chmod {allowed_text} {file}, as its owner")
    journals = list(_journal_bytes(place.directory / "journal"))
    if sum(journals) > _JOURNAL_BYTES_GOOD:
        cause = f"{len(journals)} journals have {size(sum(journals))}"
        yield Finding("warn", about, cause, "end the processes that put and keep so many objects")
    elif not wrong:
        cause = f"ours alone; {len(journals)} journals of {size(sum(journals))}"
        yield Finding("ok", about, cause)


def _arenas(local: list[NodeReport], memory: Memory, threshold: float | None) -> Finding:
    """Report whether this machine has memory for full arenas."""
    total = sum(node.counters["arena_bytes"] for node in local)
    to_come = total - sum(node.counters["arena_bytes_used"] for node in local)
    left = memory.available_bytes - to_come
    text = f"{len(local)} of {size(total)} in all, with {size(to_come)} yet to be filled"
    have = f"{size(memory.available_bytes)} of {size(memory.total_bytes)} are available"
    if left < 0:
        cause = f"{text}; {have}: when they are full, the kernel ends processes"
        return Finding("fail", "arenas", cause, "give the next cluster less arena_bytes")
    if threshold is not None and left < (1 - threshold) * memory.total_bytes:
        cause = f"{text}; {have}: when they are full, memory is used beyond the {threshold:.0%} "
        cause += "above which Ray kills workers"
        return Finding("warn", "arenas", cause, "give the next cluster less arena_bytes")
    return Finding("ok", "arenas", f"{text}; {have}")


def _stale(place: Place) -> Finding:
    about = f"directory {place.directory}"
    if place.is_running:
        cause = "its raylet is gone, and its node still runs"
        return Finding("fail", about, cause, "end the process that node.json there names")
    cause = "its raylet is gone, and so is its node"
    return Finding("warn", about, cause, f"rm -r {place.directory}, once its node.log is read")
