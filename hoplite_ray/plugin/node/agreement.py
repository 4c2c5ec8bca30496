"""The options of a cluster's nodes: the first start fixes them for all, in Ray's table.

An option is stored only if the machine of the first start has what it asks for. Another machine may
have less: its node then does not start, and the error names the job that has fixed the option.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import ray

from hoplite_ray import _native
from hoplite_ray.base.interfaces import interfaces
from hoplite_ray.config import Config, Memory, ray_arena_bytes
from hoplite_ray.control.tls import Tls
from hoplite_ray.errors import InvalidArgumentError, WireVersionMismatchError
from hoplite_ray.plugin.node import rails
from hoplite_ray.plugin.seams import core as seams
from hoplite_ray.plugin.seams import table


@dataclass(frozen=True, slots=True)
class Resources:
    """The rails, the memory and the arena that this machine gives a node."""

    rails: list[rails.Rail]
    memory: Memory
    arena_bytes: int

    @classmethod
    def find(cls, options: Config) -> Resources:
        """Find what a node with these options needs.

        Raises: InvalidArgumentError naming the option for which this machine lacks something;
                ControlError if data_tls is on without Ray's TLS settings.
        """
        if options.data_tls == "on":
            Tls.for_data()
        if options.when_full == "spill" and options.spill_directory is not None:
            _try_to_spill(options.spill_directory)
        memory = Memory.read()
        return cls(
            rails.choose(options.rails, seams.node_address(), interfaces()),
            memory,
            ray_arena_bytes(options, memory),
        )


@dataclass(frozen=True, slots=True)
class Agreement:
    """The options of all nodes of the cluster, and the job that has fixed them, in words."""

    options: Config
    fixed_by: str

    def find_resources(self) -> Resources:
        """Find what a node of this cluster needs on this machine.

        Raises: as Resources.find; an InvalidArgumentError says also how to change an option.
        """
        try:
            return Resources.find(self.options)
        except ValueError as error:
            raise InvalidArgumentError(
                f"{error}; the first job has fixed the options of all nodes: {self.fixed_by}; "
                "mend this machine, or keep work that uses the store off it, or restart the Ray "
                "cluster and fix a value that suits every machine (docs/operate/configure.md)"
            ) from error


def has_data_tls(asked: Config) -> bool:
    """Return True if this cluster's nodes encrypt data, or if a start with `asked` makes them."""
    stored = table.KeyValues(ray.get_runtime_context().gcs_address).read("options")
    fixed = json.loads(stored)["options"] if stored else asked.explicit()
    return bool(fixed.get("data_tls") == "on")


def agree(values: table.KeyValues, asked: Config, origins: Mapping[str, str]) -> Agreement:
    """Fix the cluster's options, or compare `asked` with the fixed ones.

    Raises: InvalidArgumentError if `asked` differs from them, or if none are fixed and this
            machine can't start a node with `asked`; ControlError, and WireVersionMismatchError, as
            ensure_node.
    """
    wanted = asked.explicit()
    stored = values.read("options")
    if stored is None:
        Resources.find(asked)  # raises, so that no later job inherits what can't be
        own = {
            "job": seams.this_job(),
            "user": os.getuid(),
            "wire": _native.WIRE_VERSION,
            "origins": dict(origins),
        }
        stored = values.put_if_absent("options", json.dumps({"options": wanted, **own}).encode())
    first = json.loads(stored)
    _refuse_other_version(first)
    fixed: dict[str, object] = first["options"]
    fixed_by = f"{first['job']} of user {first['user']}"
    for name, value in wanted.items():
        if fixed.get(name) != value:
            present = f"{name}={fixed[name]}" if name in fixed else f"the default {name}"
            raise InvalidArgumentError(
                f"this job asks for {name}={value}, but this cluster's nodes run with {present}, "
                f"as the first job has fixed it: {fixed_by}; "
                f"leave {name} out, or restart the Ray cluster; hoplite-ray options shows the rest"
            )
    return Agreement(Config.from_options(fixed), fixed_by)


def _try_to_spill(directory: str) -> None:
    """Make a file there, as a node does when it starts."""
    try:
        tempfile.TemporaryFile(dir=directory).close()
    except OSError as error:
        raise InvalidArgumentError(
            f"spill_directory={directory} takes no file on this machine ({error.strerror}); make "
            f"that directory on every machine of the cluster, for user {os.getuid()} to write to"
        ) from error


def _refuse_other_version(first: dict[str, Any]) -> None:
    """Refuse another wire version: in one view, such nodes would end each other's lives."""
    wire = first.get("wire", 1)  # 1 for releases that write none
    if wire != _native.WIRE_VERSION:
        raise WireVersionMismatchError(
            f"this process has wire version {_native.WIRE_VERSION}, but this cluster's nodes run "
            f"with {wire}, as the first job has fixed it: {first['job']} of user {first['user']}; "
            "install one release of hoplite_ray for all, or restart the Ray cluster"
        )
