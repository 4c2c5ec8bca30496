"""`hoplite-ray doctor`: every check, whatever is there: no cluster, a dead node, a frozen one."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from hoplite_ray.cli.checks import machine, members
from hoplite_ray.cli.checks.finding import Finding
from hoplite_ray.cli.cluster.places import Cluster, NoClusterError
from hoplite_ray.cli.cluster.survey import Survey, ask_each, find_and_survey
from hoplite_ray.control import control_pb2 as pb
from hoplite_ray.errors import ControlError

_ROOT = Path("/")
_PROBE_SHARE = 0.12  # of the time limit, beside Ray's half and the survey's 30 %


def doctor(arguments: argparse.Namespace) -> int:
    """Print a line per check; 0 unless one of them failed."""
    findings: list[Finding] = []
    for finding in _findings(arguments):
        findings.append(finding)
        if not arguments.json:
            sys.stdout.write(f"{finding}\n")
            sys.stdout.flush()
    counts = {level: sum(f.level == level for f in findings) for level in ("ok", "warn", "fail")}
    if arguments.json:
        document = {"healthy": not counts["fail"], "findings": [asdict(each) for each in findings]}
        sys.stdout.write(json.dumps(document) + "\n")
    else:
        sys.stdout.write(", ".join(f"{count} {level}" for level, count in counts.items()) + "\n")
    return 1 if counts["fail"] else 0


def _findings(arguments: argparse.Namespace) -> Iterator[Finding]:
    yield from machine.checks(_ROOT)
    is_named = bool(arguments.directory or arguments.address or arguments.control)
    try:
        cluster, seen = find_and_survey(arguments)
    except NoClusterError as error:
        yield Finding("fail" if is_named else "warn", "cluster", str(error))
        return
    except ControlError as error:
        yield Finding("fail", "cluster", str(error))
        return
    yield Finding("ok", "cluster", f"{cluster.name}, view {seen.view.epoch}")
    yield from members.checks(cluster, seen, _probes(cluster, seen, arguments.timeout_s), _ROOT)


def _probes(
    cluster: Cluster, seen: Survey, timeout_s: float
) -> list[list[pb.Probe] | ControlError]:
    nodes = [node for node in seen.nodes if node.answers]
    limit_s = timeout_s * _PROBE_SHARE
    return asyncio.run(
        ask_each(cluster, nodes, lambda calls, node: calls.probe(node.control, timeout_s=limit_s))
    )
