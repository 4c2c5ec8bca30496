"""The command line of `hoplite-ray`: its commands, their options, and the help of both."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hoplite_ray.base.release import release
from hoplite_ray.cli import commands, options
from hoplite_ray.cli.checks import doctor
from hoplite_ray.cli.live import top, web
from hoplite_ray.cli.tracing import trace
from hoplite_ray.cli.tracing.history import ID_DIGITS


@dataclass(frozen=True, slots=True)
class Command:
    """One command: what runs it, its line in the list of commands, its help, and one example."""

    name: str
    run: Callable[[argparse.Namespace], int]
    summary: str
    description: str
    example: str


COMMANDS = (
    Command(
        "status",
        commands.status,
        "list the nodes, their states, and how full their arenas are",
        "List the nodes of the cluster, their states, and how full their arenas are.\n"
        "Exits with 1 if a node does not answer or can't see a quorum.",
        "hoplite-ray status --address 10.0.0.1:6379",
    ),
    Command(
        "objects",
        commands.objects,
        "list the largest objects of all nodes",
        "List the largest objects of all nodes, and which nodes hold them.\n"
        "Exits with 1 if a node does not tell its objects.",
        "hoplite-ray objects --limit 5 --json",
    ),
    Command(
        "top",
        top.top,
        "show nodes, transfers and trees, again and again",
        "Show the nodes, the largest transfers and the trees they make, again and again\n"
        "until Ctrl-C. The live picture needs the package rich; --once does without it.",
        "hoplite-ray top --once",
    ),
    Command(
        "web",
        web.web,
        "show the same as a page for a browser on this machine",
        "Serve a page that shows what top shows, on this machine's loopback, until Ctrl-C.\n"
        "Prints the page's address, which has a token in it. Needs the package aiohttp.",
        "hoplite-ray web --port 8700",
    ),
    Command(
        "trace",
        trace.trace,
        "show the life of one object over all nodes",
        "Show the life of one object over all nodes, from its put to its last get.\n"
        "Each node remembers the newest moments only, and says since when it does.",
        "hoplite-ray trace 7f3a09c1",
    ),
    Command(
        "drain",
        commands.drain,
        "move the objects that only one node holds to other nodes",
        "Move the objects that only this node holds to other nodes, before it is ended.\n"
        "Exits with 0 when no object is left that only this node holds.",
        "hoplite-ray drain 7a0c6d4b --timeout-s 300",
    ),
    Command(
        "options",
        options.options,
        "list the options of the nodes, and which job has fixed them",
        "List the options that the nodes run with, and which job has fixed each of them.\n"
        "Exits with 1 if the cluster would refuse a job that is started from this shell.",
        "hoplite-ray options --address 10.0.0.1:6379",
    ),
    Command(
        "doctor",
        doctor.doctor,
        "check this machine and its cluster, and name the next steps",
        "Check this machine and its cluster, and name the next step for each trouble.\n"
        "Exits with 1 if a check fails.",
        "hoplite-ray doctor --directory /run/hoplite/a",
    ),
    Command(
        "dashboard",
        commands.dashboard,
        "print a Grafana dashboard of all metrics",
        "Print a Grafana dashboard, which Grafana imports as JSON. It asks no node.",
        "hoplite-ray dashboard > hoplite.json",
    ),
    Command(
        "alerts",
        commands.alerts,
        "print the alert rules of nodes and Serve pipelines",
        "Print the alert rules of nodes and Serve pipelines, as a file for Prometheus.\n"
        "It asks no node.",
        "hoplite-ray alerts > hoplite.yaml",
    ),
)


def parser() -> argparse.ArgumentParser:
    """Return the parser of all commands."""
    whole = argparse.ArgumentParser(
        prog="hoplite-ray",
        description="Show what the nodes of a hoplite_ray cluster are, have and lack.",
        epilog="example:\n  hoplite-ray status\n\n"
        "hoplite-ray COMMAND --help explains a command.\n"
        "Exit status: 0 all is well, 1 it is not, 2 the command line is wrong.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    whole.add_argument(
        "--version",
        action="version",
        version=f"hoplite-ray {release()}",
        help="print the release of hoplite_ray, and exit",
    )
    subcommands = whole.add_subparsers(required=True, metavar="COMMAND")
    for command in COMMANDS:
        sub = subcommands.add_parser(
            command.name,
            help=command.summary,
            description=command.description,
            epilog=f"example:\n  {command.example}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        sub.set_defaults(command=command.run)
        if command.name == "dashboard":
            sub.add_argument(
                "--serving",
                action="store_true",
                help="make the dashboard of Serve stages instead of the nodes'",
            )
        elif command.name != "alerts":
            _add_where(sub)
            _add_options(sub, command.name)
    return whole


def _add_where(sub: argparse.ArgumentParser) -> None:
    """Add the options that name a cluster, of which a caller gives one kind."""
    where: Callable[..., Any] = sub.add_mutually_exclusive_group().add_argument
    where(
        "--directory",
        type=_directory,
        action="append",
        default=[],
        help="directory of a node on this machine; may be repeated",
    )
    where(
        "--address",
        type=_name,
        help="address of a Ray cluster; default: RAY_ADDRESS, or the cluster that runs here",
    )
    where(
        "--control",
        type=_name,
        help="ADDRESS:PORT of a node's control service; needs --secret-file",
    )
    sub.add_argument(
        "--secret-file", type=Path, help="file with the cluster's secret, for --control"
    )


def _add_options(sub: argparse.ArgumentParser, name: str) -> None:
    add: Callable[..., Any] = sub.add_argument
    if name == "web":
        add(
            "--port",
            type=_port,
            default=0,
            help="port of this machine's loopback for the page; default: a free one",
        )
    else:
        add("--json", action="store_true", help="print one JSON document instead of tables")
    if name == "drain":
        add(
            "node",
            metavar="NODE",
            type=_name,
            help="id of the node, its first digits, or the node's control address",
        )
        add(
            "--timeout-s",
            type=_seconds_or_0,
            default=60.0,
            help="seconds to wait until the node is drained; 0 only begins it; default: 60",
        )
    else:
        add(
            "--timeout-s",
            type=_seconds,
            default=10.0,
            help="seconds for the cluster's answers, without Python's imports; default: 10",
        )
    if name == "trace":
        add(
            "object",
            metavar="OBJECT",
            type=_digits,
            help="id of the object in hex, or the id's first digits",
        )
    if name == "top":
        add("--once", action="store_true", help="look twice, print one plain page, and end")
    if name in ("top", "web"):
        add(
            "--interval-s", type=_seconds, default=1.0, help="seconds between two looks; default: 1"
        )
    if name in ("objects", "top"):
        what = "objects" if name == "objects" else "transfers"
        add("--limit", type=_count, default=20, help=f"number of {what} to show; default: 20")


def _seconds(text: str) -> float:
    with suppress(ValueError):
        if 0 < (value := float(text)) < 86400:
            return value
    raise argparse.ArgumentTypeError(f"{text} is not above 0 and below 86400 s")


def _seconds_or_0(text: str) -> float:
    with suppress(ValueError):
        if 0 <= (value := float(text)) < 86400:
            return value
    raise argparse.ArgumentTypeError(f"{text} is not from 0 to below 86400 s")


def _port(text: str) -> int:
    with suppress(ValueError):
        if 0 <= (value := int(text)) <= 65535:
            return value
    raise argparse.ArgumentTypeError(f"{text} is not from 0 to 65535")


def _directory(text: str) -> Path:
    return Path(_name(text))


def _name(text: str) -> str:
    if text.strip():
        return text
    raise argparse.ArgumentTypeError("it is empty, and names nothing: is a variable not set?")


def _digits(text: str) -> str:
    digits = text.strip().lower()
    if 1 <= len(digits) <= ID_DIGITS and set(digits) <= set("0123456789abcdef"):
        return digits
    raise argparse.ArgumentTypeError(
        f"{text!r} is no id of an object; give 1 to {ID_DIGITS} hex digits, as ObjectRef.hex() "
        "and hoplite-ray objects have them"
    )


def _count(text: str) -> int:
    with suppress(ValueError):
        if 1 <= (value := int(text)) <= 100_000:
            return value
    raise argparse.ArgumentTypeError(f"{text} is not from 1 to 100000")
