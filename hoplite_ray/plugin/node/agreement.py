"""The options of a cluster's nodes: the first start fixes them for all, in Ray's table."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

import ray

from hoplite_ray import _native
from hoplite_ray.config import Config
from hoplite_ray.errors import WireVersionMismatchError
from hoplite_ray.plugin.seams import core as seams
from hoplite_ray.plugin.seams import table


def has_data_tls(asked: Config) -> bool:
    """Return True if this cluster's nodes encrypt data, or if a start with `asked` makes them."""
    stored = table.KeyValues(ray.get_runtime_context().gcs_address).read("options")
    fixed = json.loads(stored)["options"] if stored else asked.explicit()
    return bool(fixed.get("data_tls") == "on")


def agree(values: table.KeyValues, asked: Config, origins: Mapping[str, str]) -> Config:
    """Fix the cluster's options, or compare `asked` with the fixed ones."""
    wanted = asked.explicit()
    stored = values.read("options")
    if stored is None:
        own = {
            "job": seams.this_job(),
            "user": os.getuid(),
            "wire": _native.WIRE_VERSION,
            "origins": dict(origins),
        }
        stored = values.put_if_absent("options", json.dumps({"options": wanted, **own}).encode())
    first = json.loads(stored)
    _refuse_unlike(first)
    fixed: dict[str, object] = first["options"]
    for name, value in wanted.items():
        if fixed.get(name) != value:
            present = f"{name}={fixed[name]}" if name in fixed else f"the default {name}"
            raise ValueError(
                f"this job asks for {name}={value}, but this cluster's nodes run with {present}, "
                f"as the first job has fixed it: {first['job']} of user {first['user']}; "
                f"leave {name} out, or restart the Ray cluster"
            )
    return Config.from_options(fixed)


def _refuse_unlike(first: dict[str, Any]) -> None:
    """Refuse another wire version: in one view, such nodes would end each other's lives."""
    wire = first.get("wire", 1)  # 1 for releases that write none
    if wire != _native.WIRE_VERSION:
        raise WireVersionMismatchError(
            f"this process has wire version {_native.WIRE_VERSION}, but this cluster's nodes run "
            f"with {wire}, as the first job has fixed it: {first['job']} of user {first['user']}; "
            "install one release of hoplite_ray for all, or restart the Ray cluster"
        )
