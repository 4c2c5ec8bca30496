"""`hop.init`: what reaches ray.init, and what is refused, without Ray."""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping
from dataclasses import fields
from types import SimpleNamespace
from typing import Any

import pytest
import ray

import hoplite_ray as hop
from hoplite_ray.config import Config

FLAG = {"arena_bytes": 1 << 30}


@pytest.fixture(autouse=True)
def begin_calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, dict[str, Any]]]:
    """What ray.init is called with."""
    calls: list[tuple[Any, dict[str, Any]]] = []
    rays_own = inspect.signature(ray.init)

    def init(address: str | None = None, **keywords: Any) -> str:
        calls.append((address, keywords))
        return "context"

    init.__signature__ = rays_own  # type: ignore[attr-defined]
    monkeypatch.setattr(ray, "init", init)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.delenv("RAY_JOB_CONFIG_JSON_ENV_VAR", raising=False)
    return calls


def test_it_takes_every_option_and_no_name_is_also_rays() -> None:
    takes = inspect.signature(hop.init).parameters
    options = [option.name for option in fields(Config)]
    assert list(takes) == ["address", "runtime_env", *options, "ray_init"]
    assert not {*options} & {*inspect.signature(ray.init).parameters}
    assert {*options} == {*Config.names()}


def test_options_become_the_flag_and_the_rest_is_rays(begin_calls: list[Any]) -> None:
    assert hop.init("auto", when_full="spill", num_cpus=2, _node_ip_address="::1") == "context"
    flag = {"hoplite": {"when_full": "spill"}}
    rest = {"num_cpus": 2, "_node_ip_address": "::1"}
    assert begin_calls == [("auto", {"runtime_env": flag, **rest})]


def test_without_an_option_the_store_is_switched_on(begin_calls: list[Any]) -> None:
    hop.init()
    assert begin_calls == [(None, {"runtime_env": {"hoplite": {}}})]


def test_the_users_own_runtime_env_stays(begin_calls: list[Any]) -> None:
    own = {"env_vars": {"A": "1"}, "worker_process_setup_hook": "module.setup"}
    hop.init(runtime_env=own, **FLAG)
    hop.init(job_config=SimpleNamespace(runtime_env=own), **FLAG)
    for _, keywords in begin_calls:
        assert keywords["runtime_env"] == {**own, "hoplite": FLAG}
    assert own.keys() == {"env_vars", "worker_process_setup_hook"}


@pytest.mark.parametrize("own", [{"hoplite": {}}, {"hoplite": FLAG}, "that of launchers"])
def test_two_flags_are_refused(begin_calls: list[Any], own: Any) -> None:
    if not isinstance(own, Mapping):
        own = {"worker_process_setup_hook": set_up_hoplite}
    for options in ({}, FLAG):
        with pytest.raises(hop.InvalidArgumentError, match='has the flag "hoplite" already'):
            hop.init(runtime_env=own, **options)
    assert begin_calls == []


def set_up_hoplite() -> None:
    """Has the name of what `hop.runtime_env()` returns."""


def test_a_submission_with_the_flag_is_enough(
    begin_calls: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    submitted = {"runtime_env": {"hoplite": FLAG}, "metadata": {}}
    monkeypatch.setenv("RAY_JOB_CONFIG_JSON_ENV_VAR", json.dumps(submitted))
    hop.init(runtime_env={"env_vars": {"A": "1"}})
    assert begin_calls == [(None, {"runtime_env": {"env_vars": {"A": "1"}}})]
    with pytest.raises(hop.InvalidArgumentError, match="leave arena_bytes out of hop"):
        hop.init(**FLAG)
    monkeypatch.setenv("RAY_JOB_CONFIG_JSON_ENV_VAR", json.dumps({"runtime_env": {}}))
    hop.init(**FLAG)
    assert begin_calls[1:] == [(None, {"runtime_env": {"hoplite": FLAG}})]


@pytest.mark.parametrize(
    ("wrong", "error", "text"),
    [
        ({"arena_byte": 1}, hop.InvalidArgumentError, "'arena_byte' .* is arena_bytes meant?"),
        ({"num_cpu": 1}, hop.InvalidArgumentError, "'num_cpu' .* is num_cpus meant?"),
        ({"x": 1}, hop.InvalidArgumentError, "'x' is no hoplite option .*; options are arena_b"),
        ({"arena_bytes": 1}, ValueError, "'arena_bytes' is 1; it takes an int from 1048576"),
        ({"runtime_env": 5}, hop.WrongTypeError, "runtime_env is a int; it takes a dict"),
        ({"address": "ray://host:1"}, hop.HopliteError, "ray://host:1 is a cluster of Ray Client"),
    ],
)
def test_what_is_wrong_is_said_before_ray_starts(
    begin_calls: list[Any], wrong: dict[str, Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        hop.init(**wrong)
    assert begin_calls == []


@pytest.mark.parametrize("address", [None, "auto"])
def test_ray_client_in_the_environment_is_refused(
    monkeypatch: pytest.MonkeyPatch, begin_calls: list[Any], address: str | None
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "ray://there:10001")
    with pytest.raises(hop.HopliteError, match="ray://there:10001 is a cluster of Ray Client"):
        hop.init(address)
    hop.init("local")
    assert [address for address, _ in begin_calls] == ["local"]
