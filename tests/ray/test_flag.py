"""The flag: bad options raise in ray.init, good ones reach every worker, nothing else changes."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest
import ray
from ray import cloudpickle

import hoplite_ray as hop
from hoplite_ray.config import Config
from hoplite_ray.plugin.hooks import flag, worker
from hoplite_ray.plugin.process import job_options
from tests.ray.raycluster import ARENA_BYTES, RayCluster, not_initialized


@pytest.fixture(autouse=True)
def _unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_options, "_flag_options", job_options._flag_options)
    monkeypatch.setattr(job_options, "_is_given", job_options._is_given)
    monkeypatch.setattr(job_options, "_setup_error", job_options._setup_error)


@pytest.fixture
def before_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    """As before ray.init, also where this module's cluster is there already."""
    monkeypatch.setattr(ray, "is_initialized", not_initialized())


def test_bad_options_raise_in_ray_init() -> None:
    script = (
        "import ray, hoplite_ray\n"
        "try: ray.init(runtime_env={'hoplite': {'arena': 1}})\n"
        "except ValueError as error: print(error, ray.is_initialized())\n"
    )
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert said.stdout.startswith("hoplite option 'arena' is unknown; options are arena_bytes")
    assert said.stdout.rstrip().endswith("False")


def test_a_child_without_the_package_has_its_ray_init() -> None:
    """Case review_14."""
    expand = "import sys; sys.modules['hoplite_ray'] = None; import ray._private.worker as worker; "
    child = f"{expand} print(worker._maybe_modify_runtime_env({{'env_vars': {{}}}}, False))"
    said = subprocess.run([sys.executable, "-c", child], capture_output=True, text=True)
    assert said.stdout == "{'env_vars': {}}\n", said.stderr


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"arena_bytes": "2G"}, "'arena_bytes' is '2G'; it takes an int"),
        ({"arena_bytes": 1.5}, "it takes an int"),
        ({"arena_bytes": 0}, "from 1048576 to"),
        ([("arena_bytes", 1 << 30)], "must be a dict of options, not list"),
        (None, "must be a dict of options, not NoneType"),
    ],
)
def test_bad_values_are_named_with_what_they_may_be(options: Any, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        flag.expand({"hoplite": options})


def test_the_key_is_consumed_and_the_rest_stays(before_ray: None) -> None:
    rest = {"env_vars": {"A": "1"}}
    expanded = flag.expand({**rest, "hoplite": {"arena_bytes": 1 << 30}})
    assert expanded is not None
    assert set(expanded) == {"env_vars", "worker_process_setup_hook"}
    assert job_options.requested_config().arena_bytes == 1 << 30
    assert flag.expand(rest) == rest
    assert flag.expand(None) is None


def test_options_in_the_drivers_environment_reach_its_workers(
    before_ray: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Case 21."""
    monkeypatch.setenv("HOPLITE_RAY_ARENA_BYTES", str(1 << 30))
    monkeypatch.setenv("HOPLITE_RAY_PROGRESS", "0")  # of one process, and no option
    options = {"HOPLITE_RAY_ARENA_BYTES": str(1 << 30)}
    assert flag.expand(None) == {"env_vars": options}
    expanded = flag.expand({"env_vars": {"A": "1"}, "hoplite": {}})
    assert expanded is not None and expanded["env_vars"] == {"A": "1", **options}
    own = {"env_vars": {"HOPLITE_RAY_ARENA_BYTES": "5"}}
    assert flag.expand(own) == own


def test_a_cluster_is_asked_only_for_what_its_own_ray_init_asks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ray, "is_initialized", not_initialized())
    flag.expand({"hoplite": {"arena_bytes": 1 << 30}})
    monkeypatch.setattr(ray, "is_initialized", lambda: True)
    flag.expand({"hoplite": {"arena_bytes": 1 << 29}})  # ray.init(ignore_reinit_error=True)
    hop.runtime_env(arena_bytes=1 << 29)
    assert job_options.is_given()
    assert job_options.requested_config().arena_bytes == 1 << 30
    monkeypatch.setattr(ray, "is_initialized", not_initialized())
    flag.expand({"env_vars": {"A": "1"}})
    assert not job_options.is_given()
    assert job_options.requested_config() == Config()
    flag.expand(hop.runtime_env(arena_bytes=1 << 29))
    assert job_options.is_given()
    assert job_options.requested_config().arena_bytes == 1 << 29


def test_the_flag_is_given_once_per_cluster(
    cluster: RayCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert job_options.is_given()
    flag.expand(None)  # as ray.init(ignore_reinit_error=True) does
    assert job_options.is_given()
    assert ray.get(ray.remote(num_cpus=0)(job_options.is_given).remote())
    monkeypatch.setattr(ray, "is_initialized", not_initialized())
    flag.expand(None)
    assert not job_options.is_given()
    flag.expand(hop.runtime_env())
    assert job_options.is_given()


def test_a_hook_of_the_users_follows_ours(
    before_ray: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_RUNTIME_ENV_HOOK", "tests.ray.test_flag.mark")
    modify = ray._private.worker._maybe_modify_runtime_env
    given = {"hoplite": {"arena_bytes": 1 << 30}}
    expanded = modify(given, False)
    assert set(expanded) == {flag.SETUP_KEY, "marked"}
    assert job_options.requested_config().arena_bytes == 1 << 30
    assert modify(given, True) == given  # as the server of Ray Client asks


def mark(runtime_env: dict[str, Any]) -> dict[str, Any]:
    return {**runtime_env, "marked": True}


def test_runtime_env_carries_the_options_to_other_launchers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    expanded = hop.runtime_env(arena_bytes=1 << 30)
    monkeypatch.setattr(job_options, "_flag_options", Config())
    for name, value in expanded["env_vars"].items():
        monkeypatch.setenv(name, value)
    assert job_options.requested_config().arena_bytes == 1 << 30
    with pytest.raises(ValueError, match="unknown"):
        hop.runtime_env(arena="2G")


def test_workers_have_the_options_and_ran_the_users_setup(cluster: RayCluster) -> None:
    @ray.remote(num_cpus=0)
    def seen() -> tuple[int | None, str | None]:
        return job_options.requested_config().arena_bytes, os.environ.get("SET_BY_THE_USERS_SETUP")

    assert ray.get(seen.remote()) == (ARENA_BYTES, "1")


@pytest.mark.parametrize("users", [None, "os.getpid"])
def test_a_worker_without_the_package_still_starts(users: str | None) -> None:
    setup = cloudpickle.dumps(flag._setup({"arena_bytes": 1 << 30}, users))
    script = (
        "import sys; sys.modules['hoplite_ray'] = None\n"
        "from ray import cloudpickle; cloudpickle.loads(sys.stdin.buffer.read())()\n"
        "print('started')\n"
    )
    said = subprocess.run([sys.executable, "-c", script], input=setup, capture_output=True)
    assert said.stdout == b"started\n"


def test_a_users_setup_may_be_a_function() -> None:
    calls: list[int] = []
    flag._setup({}, lambda: calls.append(1))()
    assert calls == [1]


def test_an_error_of_the_setup_is_kept_for_the_first_use() -> None:
    worker.accept({"arena_bytes": "2G"})
    with pytest.raises(ValueError, match="it takes an int"):
        job_options.requested_config()


def test_a_flag_that_nobody_consumed_raises_at_the_first_call(cluster: RayCluster) -> None:
    @ray.remote(num_cpus=0, runtime_env={"hoplite": {"arena_bytes": 1 << 30}})
    def put() -> None:
        import numpy as np

        hop.put(np.zeros(3))

    with pytest.raises(ValueError, match=r"was not consumed: import hoplite_ray before ray\.init"):
        ray.get(put.remote())


@pytest.mark.timeout(90)  # a Ray of its own starts and ends
def test_init_switches_the_store_on() -> None:
    script = (
        "import numpy as np, ray, hoplite_ray as hop\n"
        "env = {'env_vars': {'MARK': 'own'}}\n"
        "with hop.init('local', runtime_env=env, arena_bytes=32 << 20, num_cpus=1,"
        " include_dashboard=False):\n"
        "    @ray.remote\n"
        "    def double(array):\n"
        "        import os\n"
        "        assert os.environ['MARK'] == 'own'\n"
        "        return hop.array(2 * np.asarray(array))\n"
        "    total = hop.reduce([double.remote(hop.put(np.ones(3))), hop.array(np.ones(3))])\n"
        "    print(hop.get(total, timeout_s=60))\n"
    )
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert said.stdout == "[3. 3. 3.]\n", said.stderr
