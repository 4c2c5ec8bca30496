"""The command line of a node process, checked before anything is opened.

Every mistake ends in one line that names the option, what it may be and the next step.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import stat
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

from hoplite_ray import _native
from hoplite_ray.base.files import replace_file
from hoplite_ray.config import Config, Memory, arena_bytes, native_value
from hoplite_ray.control.auth import SECRET_BYTES_MIN
from hoplite_ray.control.view import is_address

_NODE_ID_MAX = 2**63 - 1
_INCARNATION_MAX = 2**32 - 1
_OPTION_MAX = 2**63 - 1


@dataclass(frozen=True, slots=True)
class NodeOptions:
    """The options of one node process, checked and with their defaults."""

    directory: Path
    listen: tuple[str, ...]
    control: str
    node_id: int
    incarnation: int
    secret: bytes
    arena_bytes: int
    spill_directory: Path
    overrides: dict[str, int]
    join: tuple[str, ...] = ()
    gcs_address: str | None = None
    watch_pid: int | None = None

    @property
    def socket(self) -> Path:
        """Where clients attach."""
        return self.directory / "node.sock"

    @property
    def record(self) -> Path:
        """The file that the node writes when it is ready: node.json."""
        return self.directory / "node.json"

    @property
    def shortage(self) -> Path:
        """Where the node says why its view can't change, while it can't."""
        return self.directory / "shortage"

    @property
    def log(self) -> Path:
        """The file to which the starter of a node sends its output: node.log."""
        return self.directory / "node.log"


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ValueError(f"{message}; see python -m hoplite_ray.node --help")


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line.

    Raises:  ValueError in one line; SystemExit after --help.
    """
    parser = _Parser(
        prog="python -m hoplite_ray.node",
        description="Run one node of the store, until SIGTERM or until the watched process ends.\n"
        "Prints one line of JSON when clients may attach.",
        epilog="example:\n"
        "  python -m hoplite_ray.node --directory /run/hoplite/a --listen 192.0.2.1:0",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    _add_place(parser.add_argument)
    add: Callable[..., Any] = parser.add_argument
    add("--arena-bytes", type=int, help="bytes of shared memory for objects; default: 20 %% of all")
    add("--spill-directory", type=Path, help="directory for spilled objects; default: --directory")
    add(
        "--option",
        action="append",
        default=[],
        help="NAME=VALUE of an option of the native node; may be repeated",
    )
    add("--trace", action="store_true", help="print the life of every object on standard error")
    add("--watch-pid", type=int, help="process with which the node ends")
    add("--gcs-address", help="ADDRESS:PORT of Ray's GCS, which then keeps the view")
    add(
        "--log-level",
        default="info",
        choices=["debug", "info", "warning", "error"],
        help="least level of the lines in the log; default: info",
    )
    return parser.parse_args(arguments)


def _add_place(add: Callable[..., Any]) -> None:
    """Add the options that say where the node is, which one it is, and what it joins."""
    add(
        "--directory",
        type=Path,
        required=True,
        help="directory of this node alone; made with mode 0700 if missing",
    )
    add(
        "--listen",
        action="append",
        required=True,
        help="ADDRESS:PORT of a rail; port 0: any free one; once for each rail",
    )
    add("--control", help="ADDRESS:PORT of the control service; default: first rail's address")
    add(
        "--join",
        action="append",
        default=[],
        help="ADDRESS:PORT of a member's control service; may be repeated",
    )
    add("--node-id", type=int, help="id of the node; default: a crashed one's here, or random")
    add(
        "--incarnation",
        type=int,
        help="number of this life of the node; default: 1, or one more than a crashed one's here",
    )
    add(
        "--secret-file",
        type=Path,
        help="file with the cluster's secret; default: DIRECTORY/secret, made if missing",
    )


def check_options(asked: argparse.Namespace, directory: Path) -> NodeOptions:
    """Return the options with their defaults. REQUIRES: `directory` is held.

    Raises:  ValueError naming the option, what it may be and the next step.
    """
    for option, addresses in (("--listen", asked.listen), ("--join", asked.join)):
        for address in addresses:
            _check_address(option, address)
    control = asked.control or f"{asked.listen[0].rpartition(':')[0]}:0"
    _check_address("--control", control)
    if asked.gcs_address is not None:
        _check_address("--gcs-address", asked.gcs_address)
    _check_number("--node-id", asked.node_id, _NODE_ID_MAX)
    _check_number("--incarnation", asked.incarnation, _INCARNATION_MAX)
    _check_number("--watch-pid", asked.watch_pid, 2**22)  # the kernel's own PID_MAX_LIMIT
    config = Config.from_environment()
    if asked.arena_bytes is not None:
        config = replace(config, arena_bytes=asked.arena_bytes)
    if asked.spill_directory is not None:
        config = replace(config, spill_directory=str(asked.spill_directory.absolute()))
    own = ("arena_bytes", "spill_directory", "rails")
    overrides = {name: value for name, value in config.explicit().items() if name not in own}
    overrides |= dict(map(_override, asked.option))
    if asked.trace:
        overrides["trace"] = 1
    earlier = _read_earlier(directory)
    return NodeOptions(
        directory=directory,
        listen=tuple(asked.listen),
        control=control,
        node_id=asked.node_id or earlier[0],
        incarnation=asked.incarnation or (earlier[1] if asked.node_id in (None, earlier[0]) else 1),
        secret=_secret(asked.secret_file, directory),
        arena_bytes=arena_bytes(config, Memory.read()),
        spill_directory=Path(config.spill_directory or directory),
        overrides={name: native_value(name, value) for name, value in overrides.items()},
        join=tuple(asked.join),
        gcs_address=asked.gcs_address,
        watch_pid=asked.watch_pid,
    )


def make_directory(directory: Path) -> Path:
    """Make the directory, or check that no other user may enter it.

    Raises:  ValueError if it is none, or others may enter it.
    """
    directory = directory.absolute()
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(
            f"--directory {directory} can't be made ({error.strerror}); "
            f"give a directory that user {os.geteuid()} may make"
        ) from None
    status = directory.stat()
    if status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) & 0o077:
        raise ValueError(
            f"{directory} can be entered by others than user {os.geteuid()}; "
            f"run `chmod 700 {directory}` as its owner, or give another --directory"
        )
    return directory


def _override(text: str) -> tuple[str, int]:
    name, _, value = text.partition("=")
    try:
        number = native_value(name, value)
    except ValueError:
        number = None
    known = _native.option_ranges()
    if name not in known or number is None:
        raise ValueError(f"--option {text!r} is not NAME=VALUE with one of {', '.join(known)}")
    if abs(number) > _OPTION_MAX:
        raise ValueError(f"--option {text!r} is larger than any option may be; give it a lower one")
    return name, number


def _check_address(option: str, address: str) -> None:
    if option == "--join" or option == "--gcs-address":
        if not is_address(address):
            raise ValueError(
                f"{option} {address!r} is not ADDRESS:PORT; "
                "give the address at which the running one answers"
            )
        return
    name, _, port = address.rpartition(":")
    is_any = name in ("0.0.0.0", "[::]", "::")
    if is_any or not is_address(address if port != "0" else f"{name}:1"):
        raise ValueError(
            f"{option} {address!r} is not ADDRESS:PORT of one network interface; "
            "give the address by which other nodes reach this one, port 0 for any"
        )


def _check_number(option: str, value: int | None, largest: int) -> None:
    if value is not None and not 1 <= value <= largest:
        raise ValueError(
            f"{option} {value} is out of range; it takes an int from 1 to {largest}; "
            "leave it out for the default"
        )


def _read_earlier(directory: Path) -> tuple[int, int]:
    """Return the id of a node that crashed here, and its next incarnation; else new ones."""
    try:
        record = json.loads((directory / "node.json").read_text())
        return int(record["node_id"]), int(record["incarnation"]) + 1
    except (OSError, ValueError, KeyError, TypeError):
        return secrets.randbits(63) or 1, 1


def _secret(given: Path | None, directory: Path) -> bytes:
    """Read the cluster's secret, or make one for a new cluster; keeps it in the directory."""
    own = directory / "secret"
    try:
        if given is not None:
            secret = given.read_bytes().strip()
        elif own.exists():
            secret = own.read_bytes().strip()
        else:
            secret = secrets.token_hex(32).encode()
    except OSError as error:
        raise ValueError(
            f"the secret in {given or own} can't be read ({error.strerror}); "
            "give a --secret-file with the cluster's secret"
        ) from None
    if len(secret) < SECRET_BYTES_MIN:
        raise ValueError(
            f"the secret in {given or own} has {len(secret)} bytes; "
            f"put at least {SECRET_BYTES_MIN} random ones there"
        )
    replace_file(own, secret)
    return secret
