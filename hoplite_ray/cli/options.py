"""`hoplite-ray options`: the options of a Ray cluster's nodes, and the job that has fixed them."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from hoplite_ray.cli.cluster.places import NoClusterError, find_cluster
from hoplite_ray.cli.cluster.tables import columns
from hoplite_ray.config import DEFAULTS, Config, variable_of


@dataclass(frozen=True, slots=True)
class Option:
    """One option of the cluster's nodes."""

    name: str
    value: int | str | None  # None: not set
    origin: str  # "default", "flag", "variable"; "first job" if that job has not said
    variable: str  # the environment variable that sets it
    here: int | str | None  # what this shell's environment asks for, if that is another value

    @property
    def text(self) -> str:
        return DEFAULTS[self.name] if self.value is None else str(self.value)

    @property
    def origin_text(self) -> str:
        if self.origin == "flag":
            return f'runtime_env={{"hoplite": {{"{self.name}": ...}}}} of the first job'
        if self.origin == "variable":
            return f"{self.variable} of the first job"
        return {"default": "default: the first job did not ask"}.get(self.origin, "the first job")


def options_of(facts: Mapping[str, Any], here: Config) -> list[Option]:
    """Return the options of a Ray cluster. `here` has the options that this shell asks for."""
    origins = facts["first"].get("origins")
    wanted = here.explicit()
    found = []
    for name in DEFAULTS:
        value = facts["options"].get(name)
        if value is None:
            origin = "default"
        elif origins is None:
            origin = "first job"  # of a release that keeps no origins
        else:
            origin = "flag" if origins.get(name) == "flag" else "variable"
        other: Any = wanted.get(name)
        found.append(
            Option(name, value, origin, variable_of(name), None if other == value else other)
        )
    return found


def options(arguments: argparse.Namespace) -> int:
    """Print the options; 0 if a job that is started from this shell would be taken."""
    if arguments.directory or arguments.control is not None:
        raise NoClusterError(
            "options are those of a Ray cluster; a node without Ray has its own, from its command "
            "line: hoplite_ray.node --help"
        )
    facts = find_cluster(arguments, timeout_s=arguments.timeout_s).ray
    here, wrong = _shell_options()
    found = options_of(facts, here)
    first = facts["first"]
    if arguments.json:
        rows = [asdict(each) for each in found]
        sys.stdout.write(json.dumps({"options": rows, "job": first["job"], "wrong": wrong}) + "\n")
    else:
        sys.stdout.write(_text(found, facts["address"], first))
        if wrong is not None:
            sys.stdout.write(f"{wrong}: until then a job from this shell is refused\n")
    return 1 if wrong is not None or any(each.here is not None for each in found) else 0


def _shell_options() -> tuple[Config, str | None]:
    """Return the options in this shell's environment, or none and the error of a wrong variable."""
    try:
        return Config.from_environment(), None
    except ValueError as error:
        return Config(), str(error)


def _text(found: list[Option], address: str, first: Mapping[str, Any]) -> str:
    rows = [[each.name, each.text, each.origin_text] for each in found]
    lines = [
        f"Ray cluster {address}: fixed by its first job, {first['job']}, of user {first['user']}",
        columns(["OPTION", "VALUE", "FIXED BY"], rows, right=frozenset()),
        "to change one: restart the Ray cluster, then let its first job ask for it, by "
        "hoplite_ray.init(OPTION=VALUE) or by HOPLITE_RAY_OPTION=VALUE; the flag goes before the "
        "variable",
    ]
    lines += [
        f"{each.variable}={each.here} is set here: a job from this shell is refused; unset it"
        for each in found
        if each.here is not None
    ]
    return "\n".join(lines) + "\n"
