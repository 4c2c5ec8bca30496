"""What `hoplite-ray options` says of each option."""

from __future__ import annotations

import argparse
import json
from dataclasses import fields
from typing import Any

import pytest

from hoplite_ray.cli import options
from hoplite_ray.cli.cluster.places import Cluster, NoClusterError
from hoplite_ray.cli.options import options_of
from hoplite_ray.config import DEFAULTS, Config
from hoplite_ray.plugin.process import job_options

TOLD: dict[str, Any] = {
    "address": "10.0.0.1:6379",
    "options": {"arena_bytes": 1 << 30, "when_full": "spill"},
    "first": {
        "job": "01000000 (python train.py)",
        "user": 1000,
        "origins": {"arena_bytes": "flag", "when_full": "HOPLITE_RAY_WHEN_FULL"},
    },
}


def test_every_option_has_a_default_that_is_told() -> None:
    assert list(DEFAULTS) == [each.name for each in fields(Config)]


def test_each_option_names_what_has_fixed_it() -> None:
    found = {each.name: each for each in options_of(TOLD, Config())}
    assert list(found) == list(DEFAULTS)
    assert (found["arena_bytes"].value, found["arena_bytes"].origin) == (1 << 30, "flag")
    assert (found["when_full"].value, found["when_full"].origin) == ("spill", "variable")
    assert (found["data_tls"].value, found["data_tls"].text) == (None, "off")
    assert found["data_tls"].origin_text == "default: the first job did not ask"


def test_a_job_of_a_release_without_origins_is_named_alone() -> None:
    first = {"job": "01000000", "user": 0, "origins": None}
    found = options_of({**TOLD, "first": first}, Config())
    assert {each.origin_text for each in found if each.value is not None} == {"the first job"}


@pytest.mark.parametrize(
    ("variable", "status"), [(None, 0), ("spill", 0), ("fail", 1)], ids=["none", "same", "other"]
)
def test_a_variable_that_has_a_job_refused_is_named(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    variable: str | None,
    status: int,
) -> None:
    monkeypatch.delenv("HOPLITE_RAY_WHEN_FULL", raising=False)
    if variable is not None:
        monkeypatch.setenv("HOPLITE_RAY_WHEN_FULL", variable)
    cluster = Cluster("Ray cluster", b"", (), ray=TOLD)
    monkeypatch.setattr(options, "find_cluster", lambda asked, timeout_s: cluster)
    asked = argparse.Namespace(directory=[], control=None, json=False, timeout_s=1.0)
    assert options.options(asked) == status
    told = capsys.readouterr().out
    assert "fixed by its first job, 01000000 (python train.py), of user 1000" in told
    assert "to change one: restart the Ray cluster" in told
    is_named = "HOPLITE_RAY_WHEN_FULL=fail is set here: a job from this shell is refused" in told
    assert is_named == (status == 1)


def test_a_wrong_variable_is_named_below_the_options(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOPLITE_RAY_ARENA_BYTES", "abc")
    cluster = Cluster("Ray cluster", b"", (), ray=TOLD)
    monkeypatch.setattr(options, "find_cluster", lambda asked, timeout_s: cluster)
    asked = argparse.Namespace(directory=[], control=None, json=False, timeout_s=1.0)
    assert options.options(asked) == 1
    *table, last = capsys.readouterr().out.splitlines()
    assert any(line.startswith("arena_bytes ") for line in table)
    assert last.startswith("HOPLITE_RAY_ARENA_BYTES='abc' is no integer; ")
    assert last.endswith(": until then a job from this shell is refused")
    asked.json = True
    assert options.options(asked) == 1
    assert "HOPLITE_RAY_ARENA_BYTES='abc'" in json.loads(capsys.readouterr().out)["wrong"]


def test_nodes_without_ray_have_no_options_of_a_cluster() -> None:
    asked = argparse.Namespace(directory=["/run/a"], control=None, json=False, timeout_s=1.0)
    with pytest.raises(NoClusterError, match="a node without Ray has its own"):
        options.options(asked)


def test_the_flag_goes_before_a_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_options, "_flag_options", Config(arena_bytes=1 << 30))
    monkeypatch.setenv("HOPLITE_RAY_ARENA_BYTES", str(1 << 20))
    monkeypatch.setenv("HOPLITE_RAY_WHEN_FULL", "spill")
    assert job_options.requested_config() == Config(arena_bytes=1 << 30, when_full="spill")
    assert job_options.origins() == {"arena_bytes": "flag", "when_full": "HOPLITE_RAY_WHEN_FULL"}
