"""Where data_tls is on, and what that forbids to edges of stages."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import pytest
import ray

from hoplite_ray.config import Config
from hoplite_ray.errors import WorldError
from hoplite_ray.plugin import flag, seams
from hoplite_ray.serve.outlet import outlets_of
from hoplite_ray.worlds import secrecy

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


def test_an_ingress_with_edges_is_refused_where_data_must_be_encrypted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(VARIABLE, "on")
    with pytest.raises(WorldError, match="edges between replicas are not encrypted: give"):
        asyncio.run(outlets_of({}, "worlds", "a query"))
    assert asyncio.run(outlets_of({}, "serve", "a query")) == {}
    monkeypatch.delenv(VARIABLE)
    assert asyncio.run(outlets_of({}, "worlds", "a query")) == {}
