"""Where data_tls is on, and what that forbids to NCCL."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any, cast

import pytest
import ray

from hoplite_ray._native import WorldEdges
from hoplite_ray.config import Config
from hoplite_ray.errors import WorldError
from hoplite_ray.plugin.process import job_options
from hoplite_ray.plugin.seams import core as seams
from hoplite_ray.plugin.seams import table
from hoplite_ray.worlds.gpu import communicators
from hoplite_ray.worlds.gpu.ability import Ability
from hoplite_ray.worlds.gpu.communicators import NewWorld, connect
from hoplite_ray.worlds.meeting import secrecy

VARIABLE = "HOPLITE_RAY_DATA_TLS"
STORED = {
    "the first job has it": ({"data_tls": "on"}, {}, True),
    "the first job has it not": ({}, {}, False),
    "no job has fixed it, and this one asks for it": (None, {"data_tls": "on"}, True),
    "no job has fixed it, nor asks for it": (None, {}, False),
}


@pytest.mark.parametrize(("fixed", "asked", "is_on"), STORED.values(), ids=STORED.keys())
def test_what_rays_cluster_has_counts(
    monkeypatch: pytest.MonkeyPatch,
    fixed: dict[str, Any] | None,
    asked: dict[str, Any],
    is_on: bool,
) -> None:
    stored = None if fixed is None else json.dumps({"options": fixed}).encode()
    values = SimpleNamespace(read=lambda key: stored)
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setattr(secrecy, "is_ray_running", lambda: True)
    monkeypatch.setattr(seams, "is_client", lambda: False)
    monkeypatch.setattr(table, "KeyValues", lambda address: values)
    monkeypatch.setattr(job_options, "requested_config", lambda: Config.from_options(asked))
    context = SimpleNamespace(gcs_address="here:1")
    monkeypatch.setattr(ray, "get_runtime_context", lambda: context)
    assert secrecy.needs_encryption() is is_on
    monkeypatch.setattr(seams, "is_client", lambda: True)
    assert not secrecy.needs_encryption()


def world_of(*machines: str, is_needed: bool) -> NewWorld:
    """A world whose members have NCCL, each on its machine."""
    ability = Ability(23007, "", is_needed=is_needed)
    abilities = dict.fromkeys(range(len(machines)), ability)
    return NewWorld("w", 0, cast(WorldEdges, None), abilities, len(set(machines)))


def test_between_machines_nccl_is_refused_where_data_must_be_encrypted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said = "between machines NCCL's own connections are not encrypted"
    gpu = asyncio.run(connect(world_of("here", "there", is_needed=False), 0, is_secret=True))
    assert said in gpu.lacks
    with pytest.raises(WorldError, match=said):
        asyncio.run(connect(world_of("here", "there", is_needed=True), 0, is_secret=True))

    async def opened(*_: Any) -> str:
        return "it was opened"

    async def verdict(_: NewWorld, failure: str, number: int) -> str:
        return failure

    monkeypatch.setattr(communicators, "_open_bond", opened)
    monkeypatch.setattr(communicators, "_exchange_failures", verdict)
    for machines, is_secret in ((("here", "here"), True), (("here", "there"), False)):
        gpu = asyncio.run(connect(world_of(*machines, is_needed=False), 0, is_secret=is_secret))
        assert gpu.lacks == "it was opened"
