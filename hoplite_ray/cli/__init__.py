"""The `hoplite-ray` command: what the nodes of a cluster are, have and lack.

    hoplite-ray status            the nodes: alive, how full their arenas are
    hoplite-ray objects           the objects of all nodes, largest first
    hoplite-ray top               what is under way: nodes, transfers, trees, live
    hoplite-ray web               the same as a page for a browser on this machine
    hoplite-ray trace OBJECT      the life of one object over all nodes, from put to get
    hoplite-ray drain NODE        move what only that node has elsewhere, before it is ended
    hoplite-ray options           what the nodes run with, and which job has fixed it
    hoplite-ray doctor            every check of this machine and its cluster, with the next step
    hoplite-ray dashboard         a Grafana dashboard of what the nodes tell Prometheus

Exit status: 0 all is well, 1 it is not, 2 the command line is wrong. docs/reference/cli.md has
samples.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from hoplite_ray.cli import commands, doctor, options, top, trace, web
from hoplite_ray.cli.lives import ID_DIGITS
from hoplite_ray.errors import HopliteError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status."""
    asked = _parser().parse_args(arguments)
    if getattr(asked, "secret_file", None) is not None and asked.control is None:
        sys.stderr.write("hoplite-ray: --secret-file goes with --control\n")
        return 2
    try:
        return int(asked.command(asked))
    except HopliteError as error:
        sys.stderr.write(f"hoplite-ray: {error}\n")
        return 1
    except BrokenPipeError:  # whoever read us has seen enough
        sys.stderr.close()
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="hoplite-ray",
        description="What the nodes of a hoplite_ray cluster are, have and lack.",
        allow_abbrev=False,
    )
    subcommands = parser.add_subparsers(required=True, metavar="COMMAND")
    for name, command, help_text in (
        ("status", commands.status, "the nodes: alive, how full their arenas are"),
        ("objects", commands.objects, "the objects of all nodes, largest first"),
        ("top", top.top, "what is under way: nodes, transfers, trees, live"),
        ("web", web.web, "what is under way, as a page for a browser on this machine"),
        ("trace", trace.trace, "the life of one object over all nodes"),
        ("drain", commands.drain, "move what only that node has elsewhere"),
        ("options", options.options, "what the nodes run with, and which job has fixed it"),
        ("doctor", doctor.doctor, "every check of this machine and its cluster"),
    ):
        sub = subcommands.add_parser(name, help=help_text, allow_abbrev=False)
        sub.set_defaults(command=command)
        _add_options(sub, name)
    sub = subcommands.add_parser("dashboard", help="a Grafana dashboard of all metrics")
    sub.add_argument("--serving", action="store_true", help="of stages, instead of nodes")
    sub.set_defaults(command=commands.dashboard)
    return parser


def _add_options(parser: argparse.ArgumentParser, name: str) -> None:
    add: Callable[..., Any] = parser.add_argument
    where: Callable[..., Any] = parser.add_mutually_exclusive_group().add_argument
    where(
        "--directory",
        type=_directory,
        action="append",
        default=[],
        help="of a node; may be repeated",
    )
    where(
        "--address",
        type=_name,
        help="of a Ray cluster; default: RAY_ADDRESS, or the one that runs here",
    )
    where(
        "--control", type=_name, help="ADDRESS:PORT of a node's control service; with --secret-file"
    )
    add("--secret-file", type=Path, help="the cluster's secret, for --control")
    if name == "web":
        add("--port", type=_port, default=0, help="of this machine's loopback; default: a free one")
    else:
        add("--json", action="store_true", help="one JSON document on standard output")
    if name == "drain":
        add(
            "node",
            metavar="NODE",
            type=_name,
            help="its id, or the first digits of it, or its control address",
        )
        add("--timeout-s", type=_seconds, default=60.0, help="how long to wait; default: 60")
    else:
        add(
            "--timeout-s",
            type=_seconds,
            default=10.0,
            help="for everything but imports; default: 10",
        )
    if name == "trace":
        add("object", metavar="OBJECT", type=_digits, help="its id in hex, or the first digits")
    if name == "top":
        add("--once", action="store_true", help="look twice, print one plain page, and end")
    if name in ("top", "web"):
        add("--interval-s", type=_seconds, default=1.0, help="between two looks; default: 1")
    if name in ("objects", "top"):
        add("--limit", type=_count, default=20, help="how many; default: 20")


def _seconds(text: str) -> float:
    with suppress(ValueError):
        if 0 < (value := float(text)) < 86400:
            return value
    raise argparse.ArgumentTypeError(f"{text} is not above 0 and below 86400 s")


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
