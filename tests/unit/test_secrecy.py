"""Where data_tls is on, and what that forbids to NCCL."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any, cast

import pytest
import ray

from hoplite_ray._native import WorldPort
from hoplite_ray.config import Config
from hoplite_ray.errors import WorldError
from hoplite_ray.plugin import flag, seams
from hoplite_ray.worlds.gpu import communicators
from hoplite_ray.worlds.gpu.communicators import connect
from hoplite_ray.worlds.meeting import secrecy
from hoplite_ray.worlds.meeting.life import Life
from hoplite_ray.worlds.meeting.members import Ability, Member, Record

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
    monkeypatch.setattr(secrecy, "ray_runs", lambda: True)
    monkeypatch.setattr(seams, "is_client", lambda: False)
    monkeypatch.setattr(seams, "KeyValues", lambda address: values)
    monkeypatch.setattr(flag, "asked", lambda: Config.from_options(asked))
    context = SimpleNamespace(gcs_address="here:1")
    monkeypatch.setattr(ray, "get_runtime_context", lambda: context)
    assert secrecy.needs_encryption() is is_on
    monkeypatch.setattr(seams, "is_client", lambda: True)
    assert not secrecy.needs_encryption()


def life(*machines: str, is_needed: bool) -> Life:
    """A life whose members have NCCL, each on its machine."""
    ability = Ability(23007, "", is_needed=is_needed)
    addresses = (("127.0.0.1", 1),)
    members = {
        rank: Member(rank, str(rank), addresses, machine, ability)
        for rank, machine in enumerate(machines)
    }
    made = Life(Record("w", 1, "life", b"token", members[0]), 0, "auto")
    port = SimpleNamespace(open_world=lambda *_: SimpleNamespace(close=lambda: None))
    made.open(cast(WorldPort, port), 1, members)
    return made


def test_between_machines_nccl_is_refused_where_data_must_be_encrypted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said = "between machines NCCL's own connections are not encrypted"
    gpu = asyncio.run(connect(life("here", "there", is_needed=False), 0, is_secret=True))
    assert said in gpu.lacks
    with pytest.raises(WorldError, match=said):
        asyncio.run(connect(life("here", "there", is_needed=True), 0, is_secret=True))

    async def opened(*_: Any) -> str:
        return "it was opened"

    async def verdict(_: Life, failure: str, number: int) -> str:
        return failure

    monkeypatch.setattr(communicators, "_open", opened)
    monkeypatch.setattr(communicators, "_verdict", verdict)
    for machines, is_secret in ((("here", "here"), True), (("here", "there"), False)):
        gpu = asyncio.run(connect(life(*machines, is_needed=False), 0, is_secret=is_secret))
        assert gpu.lacks == "it was opened"
