"""Find a cluster's nodes: by directories, by Ray, or by one control address."""

from __future__ import annotations

import argparse
import json
import os
import select
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hoplite_ray.base.locks import is_held
from hoplite_ray.control.view import View, is_address
from hoplite_ray.errors import ControlError

_IMPORT_S = 120.0  # for the import of Ray: 1 s, and tens of seconds on a busy machine


class NoClusterError(ControlError):
    """There is no node to ask; the text names the places that were searched."""


@dataclass(frozen=True, slots=True)
class Place:
    """The directory of one node of this machine. A node holds its lock as long as it lives."""

    directory: Path
    record: dict[str, Any] | None  # node.json: there while the node serves, and after a crash
    is_running: bool

    @classmethod
    def read(cls, directory: Path) -> Place:
        """Read a directory, which may be no node's.

        Raises:  NoClusterError if this user may not read it.
        """
        record = None
        try:
            with suppress(FileNotFoundError, NotADirectoryError, ValueError):
                loaded = json.loads((directory / "node.json").read_text())
                needed = {"node_id", "incarnation", "control", "pid"}
                if isinstance(loaded, dict) and needed <= loaded.keys():
                    record = loaded
            return cls(directory, record, _is_node_running(directory / "node.lock"))
        except OSError as error:
            raise NoClusterError(
                f"{directory} can't be read ({error.strerror}); "
                "run this as the user who started the node"
            ) from None

    @property
    def secret(self) -> bytes | None:
        """The cluster's secret as the node keeps it."""
        with suppress(OSError):
            return (self.directory / "secret").read_bytes().strip()
        return None


@dataclass(frozen=True, slots=True)
class Cluster:
    """A cluster to ask: the addresses of its nodes, and its secret."""

    name: str
    secret: bytes
    controls: tuple[str, ...]
    view: View = field(default_factory=View)
    places: tuple[Place, ...] = ()
    stale: tuple[Place, ...] = ()  # of raylets that are gone
    ray: dict[str, Any] = field(default_factory=dict)


def find_cluster(arguments: argparse.Namespace, *, timeout_s: float) -> Cluster:
    """Return the cluster that the command names, or the Ray cluster that this machine is part of.

    Raises:  NoClusterError saying where it was looked for, and the next step; ControlError if
             there is one that does not answer.
    """
    if arguments.control is not None:
        return _by_control(arguments.control, arguments.secret_file)
    if arguments.directory:
        return _by_directories(arguments.directory)
    return _by_ray(arguments.address, timeout_s)


def _by_control(control: str, secret_file: Path | None) -> Cluster:
    if not is_address(control):
        raise NoClusterError(
            f"--control {control!r} is not ADDRESS:PORT; node.json of a node's directory has it"
        )
    if secret_file is None:
        raise NoClusterError("--control needs --secret-file; a node keeps it in its directory")
    try:
        secret = secret_file.read_bytes().strip()
    except OSError as error:
        raise NoClusterError(
            f"the secret in {secret_file} can't be read: {error.strerror}"
        ) from None
    return Cluster(f"node at {control}", secret, (control,))


def _by_directories(directories: Sequence[Path]) -> Cluster:
    places = tuple(Place.read(directory.absolute()) for directory in directories)
    recorded = [place for place in places if place.record is not None]
    if not recorded:
        raise NoClusterError(
            f"no node has started in {', '.join(str(place.directory) for place in places)}; "
            "give the --directory of a node: the one with node.json in it"
        )
    secret = next((place.secret for place in recorded if place.secret), None)
    if secret is None:
        raise NoClusterError(f"{recorded[0].directory}/secret can't be read")
    controls = tuple(place.record["control"] for place in recorded if place.record)
    return Cluster(f"nodes in {', '.join(map(str, directories))}", secret, controls, places=places)


def _by_ray(address: str | None, timeout_s: float) -> Cluster:
    facts = _ask_ray(address, timeout_s)
    name = f"Ray cluster {facts['address']}"
    places = [(Place.read(Path(each)), alive) for each, alive in facts["directories"].items()]
    if facts["secret"] is None:
        raise NoClusterError(
            f"{name} has no node yet: the first call of hoplite_ray in a job starts them"
        )
    view = View.from_bytes(bytes.fromhex(facts["view"])) if facts["view"] else View()
    return Cluster(
        name=name,
        secret=facts["secret"].encode(),
        controls=tuple(member.control for member in view.members),
        view=view,
        places=tuple(place for place, alive in places if alive),
        stale=tuple(place for place, alive in places if not alive),
        ray=facts,
    )


def _ask_ray(address: str | None, timeout_s: float) -> dict[str, Any]:
    """Ask Ray in a separate process, because Ray's client has no time limit.

    The time limit begins when that process has imported Ray, which takes long on a busy machine.
    """
    command = [sys.executable, "-m", "hoplite_ray.plugin.node.discovery", *filter(None, [address])]
    where = address or os.environ.get("RAY_ADDRESS") or "this machine"
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, bufsize=0) as process:
        assert process.stdout is not None
        try:
            if not select.select([process.stdout], [], [], _IMPORT_S)[0]:
                raise ControlError(
                    f"Python did not import Ray within {_IMPORT_S:g} s; look at this machine's "
                    "load and disks, or give the --directory of a node"
                )
            process.stdout.readline()  # byte by byte, as there is no buffer
            out, err = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            raise ControlError(
                f"Ray at {where} did not answer within {timeout_s:g} s; "
                "look at its head node, or give the --directory of a node"
            ) from None
        finally:
            process.kill()  # without effect once it has ended
    if process.returncode != 0:
        last = (err.decode(errors="replace").strip().splitlines() or ["it said nothing"])[-1]
        raise NoClusterError(
            f"no Ray cluster was found at {where} ({last}); "
            "give --address, or the --directory of a node"
        )
    facts: dict[str, Any] = json.loads(out.splitlines()[-1])
    return facts


def _is_node_running(lock: Path) -> bool:
    """Return whether a node holds the lock of its directory."""
    try:
        return is_held(lock)
    except (FileNotFoundError, NotADirectoryError):
        return False
