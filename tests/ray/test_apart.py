"""Stewards and the jobs that they serve: none of their environments, values and errors is read."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray

import hoplite_ray as hop
from hoplite_ray.plugin.process import job_options
from hoplite_ray.plugin.seams import core as seams
from hoplite_ray.plugin.seams import values as value_seams
from hoplite_ray.plugin.steward.source import SourceError
from hoplite_ray.plugin.steward.steward import Steward
from hoplite_ray.plugin.steward_client.client import steward_on, undo_environment
from tests.ray.gates import Gate
from tests.ray.raycluster import LARGE, RayCluster, eventually

LESSONS = """
import numpy as np

class BadBatch(Exception):
    def __init__(self, text, number):
        super().__init__(text, number)
        self.number = number

def ones(size):
    return np.ones(size)

class Batch:
    "Unpickled by this module alone, and then an array."
    def __init__(self, size):
        self.size = size
    def __reduce__(self):
        return ones, (self.size,)

class Stranger:
    pass
"""
JOB = """
import json, sys
import numpy as np, ray, hoplite_ray as hop
import lessons  # beside this program: no environment has it
ray.init(sys.argv[1], log_to_driver=False)

@ray.remote(num_cpus=0)
def returns(value):
    return value

@ray.remote(num_cpus=0)
def breaks():
    raise lessons.BadBatch("no data", 7)

def raised(ref):
    try:
        return repr(hop.get(ref, timeout_s=60))
    except lessons.BadBatch as error:
        return f"BadBatch {error.number}"
    except hop.ReduceError as error:
        return f"{type(error.__cause__).__name__} {error.fates}"
    except hop.HopliteError as error:
        return f"{type(error).__name__}: {error}"

whole = hop.put(np.ones(3))
print(json.dumps([
    raised(hop.reduce([whole, breaks.remote()])),
    raised(hop.gather([whole, breaks.remote()])),
    raised(hop.reduce([whole, breaks.remote()], count=2)),
    raised(hop.reduce([whole, returns.remote(lessons.Batch(3))])),
    raised(hop.reduce([whole, returns.remote(lessons.Stranger())])),
    float(hop.get(hop.reduce([returns.remote(lessons.Batch(200_000)) for _ in range(2)])).sum()),
]))
"""


@ray.remote(num_cpus=0)
def returns(value: Any) -> Any:
    return value


@ray.remote(num_cpus=0)
def fails(error: Exception) -> None:
    raise error


def node_here() -> str:
    return str(ray.get_runtime_context().get_node_id())


@pytest.mark.timeout(120)  # a second driver starts
def test_another_jobs_errors_and_values_need_its_modules_in_that_job_alone(
    cluster: RayCluster, tmp_path: Path
) -> None:
    """Case review_04."""
    kept = hop.array(np.ones(LARGE))  # so the steward of the first job is there
    (tmp_path / "lessons.py").write_text(LESSONS)
    (tmp_path / "job.py").write_text(JOB)
    command = [sys.executable, str(tmp_path / "job.py"), cluster.cluster.address]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    reduced, gathered, counted, small, unfit, large = json.loads(done.stdout)
    assert reduced == gathered == "BadBatch 7"
    assert counted.startswith("BadBatch (")
    assert "BadBatch: ('no data', 7)" in counted
    assert small == "array([2., 2., 2.])"
    assert unfit.startswith("WrongTypeError: source 1 returned Stranger, which can't be put: ")
    assert large == 400_000
    del kept


def test_a_steward_has_nothing_of_its_jobs_environment(cluster: RayCluster) -> None:
    """Case review_04: its own environment, and a driver's directories, decide no import there."""
    kept = hop.array(np.ones(LARGE))
    given = ray.get_runtime_context().runtime_env
    assert given["env_vars"] and given["worker_process_setup_hook"]

    def look(_steward: Steward) -> tuple[dict[str, Any], dict[str, str], list[str], bool]:
        job = ray._private.worker.global_worker.core_worker.get_job_config()
        ours = ray.get_runtime_context().runtime_env
        return ours, dict(os.environ), list(job.py_driver_sys_path), job_options.is_given()

    ours, variables, directories, is_given = ray.get(
        steward_on(node_here()).__ray_call__.remote(look)
    )
    assert set(ours) <= {"env_vars"}
    assert not set(given["env_vars"]) & set(variables)
    assert directories  # of the driver, which every other worker has in its import path
    assert not is_given
    del kept


def test_an_inherited_environment_is_taken_away_part_by_part(cluster: RayCluster) -> None:
    @ray.remote(num_cpus=0)
    class Inherits:
        def create(self) -> tuple[dict[str, Any], str | None, str | None]:
            context = ray.get_runtime_context()
            apart = undo_environment(context.runtime_env)
            self.child = seams.create_actor(Child, [], apart)
            return ray.get(self.child.look.remote())  # type: ignore[no-any-return]

    @ray.remote(num_cpus=0)
    class Child:
        def look(self) -> tuple[dict[str, Any], str | None, str | None]:
            environment = ray.get_runtime_context().runtime_env
            return environment, os.environ.get("ONLY_HERE"), os.environ.get("HOME")

    variables = {"ONLY_HERE": "yes", "HOME": "/nowhere"}
    parent = Inherits.options(runtime_env={"env_vars": variables}).remote()
    environment, only_here, home = ray.get(parent.create.remote(), timeout=60)
    assert "worker_process_setup_hook" not in environment
    assert (only_here, home) == ("", os.environ.get("HOME"))


def test_an_environment_apart_keeps_no_key() -> None:
    given = {"pip": {"packages": ["x"]}, "working_dir": "gcs://y", "env_vars": {"A": "1"}}
    assert undo_environment(given) == {
        "pip": None,
        "working_dir": None,
        "env_vars": {"A": "${A}"},
    }
    assert undo_environment({}) == {}


def unread(ref: ray.ObjectRef[Any]) -> value_seams.Unread:
    ray.wait([ref], timeout=60)
    found = value_seams.fetch_unread(ref, 60.0)
    assert found is not None
    return found


def test_a_value_is_made_of_the_names_that_are_given_and_else_not_at_all(
    cluster: RayCluster,
) -> None:
    from hoplite_ray.plugin.steward.source import _NAMES

    put = hop.put(np.ones(3))
    handle = value_seams.read_value(unread(put), _NAMES)
    assert isinstance(handle, hop.Array) and handle._object_id == put.binary()
    made = value_seams.read_value(unread(returns.remote(hop.array(np.ones(3)))), _NAMES)
    assert made.shape == (3,)
    for other in (np.ones(3), Steward, 7, [put], {"a": handle}):
        value = value_seams.read_value(unread(ray.put(other)), _NAMES)
        assert not isinstance(value, (np.ndarray, type, int))
    assert value_seams.read_value(unread(ray.put(7)), _NAMES) is None


def test_an_object_that_does_not_come_in_time_is_no_error(cluster: RayCluster) -> None:
    @ray.remote(num_cpus=0)
    class Never:
        async def ends(self) -> None:
            import asyncio

            await asyncio.Event().wait()

    never = Never.remote()
    assert value_seams.fetch_unread(never.ends.remote(), 0.1) is None


def test_a_tasks_error_stays_unread_and_rays_own_are_read(cluster: RayCluster) -> None:
    @ray.remote(num_cpus=0, max_retries=0)
    def dies() -> None:
        os._exit(1)

    @ray.remote(num_cpus=0)
    class Broken:
        def __init__(self) -> None:
            raise ValueError("no start")

        def method(self) -> None:
            pass

    assert value_seams.failure_in(unread(returns.remote(1))) is None
    message = value_seams.failure_in(unread(fails.remote(ValueError("no data"))))
    assert isinstance(message, bytes)
    assert isinstance(value_seams.error_of(message).cause, ValueError)  # type: ignore[attr-defined]
    assert value_seams.text_of(message).strip().endswith("ValueError: no data")
    assert str(SourceError(message)).endswith("ValueError: no data")
    died = value_seams.failure_in(unread(dies.remote()))
    assert isinstance(died, ray.exceptions.WorkerCrashedError)
    broken = Broken.remote()
    message = value_seams.failure_in(unread(broken.method.remote()))
    assert isinstance(message, bytes) and "no start" in value_seams.text_of(message)
    assert value_seams.text_of(b"\xff") == "an error of which Ray knows no text"


def test_bare_sources_are_read_after_their_steward_was_restarted(cluster: RayCluster) -> None:
    gate = Gate.remote()
    kept = hop.array(np.ones(LARGE))
    total = hop.reduce([gate.passed.remote(np.ones(3)), hop.put(np.ones(3))])
    steward = steward_on(node_here())
    before = ray.get(steward.__ray_call__.remote(lambda self: self._life.number))
    ray.kill(steward, no_restart=False)
    assert eventually(
        lambda: ray.get(steward.__ray_call__.remote(lambda self: self._life.number)) > before,
        within_s=60,
    )
    ray.get(gate.open.remote())
    assert hop.get(total, timeout_s=60).tolist() == [2, 2, 2]
    del kept
