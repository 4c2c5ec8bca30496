"""Programs that come to a cluster by other ways than `python PROGRAM`: one cluster for all."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.ray.raycluster import RayCluster, free_port

PROGRAM = """
import sys
import numpy as np, ray, hoplite_ray as hop

@ray.remote(num_cpus=0)
def double(array):
    return hop.array(2 * np.asarray(array))

how = eval(sys.argv[1])
(ray.init if how else hop.init)(**how)  # without arguments: the submission has the flag
ref = hop.put(np.ones(100_000))
print("sum", hop.get(hop.reduce([double.remote(ref) for _ in range(3)])).sum(), flush=True)
"""

CLIENT = """
import sys
import numpy as np, ray, hoplite_ray as hop

def answer(use):
    try:
        print(use())
    except Exception as error:
        said = str(error).splitlines()[-1]
        print(said if "Error" in said else f"{type(error).__name__} {said}")

@ray.remote(num_cpus=0)
def put():
    hop.put(np.ones(3))

ray.init(sys.argv[1], runtime_env={"hoplite": {"arena_bytes": 1 << 26}})
ref = ray.put(1)
for use in (
    lambda: hop.put(np.ones(3)),
    lambda: hop.array(np.ones(3)),
    lambda: hop.empty(3),
    lambda: hop.get(ref),
    lambda: hop.wait([ref]),
    lambda: hop.reduce([ref]),
    lambda: hop.gather([ref]),
    lambda: hop.delete(ref),
    lambda: hop.sources(ref),
    lambda: ray.get(put.remote()),
):
    answer(use)
"""


FLAG = {"hoplite": {"arena_bytes": 64 << 20}}
SUM = "sum 600000.0"
WRONG = "hoplite_ray.errors.InvalidArgumentError: "


@pytest.fixture(scope="module")
def launched() -> Iterator[RayCluster]:
    """A Ray cluster whose dashboard takes jobs, in this virtual environment as uv sees it."""
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("VIRTUAL_ENV", sys.prefix)
        environment.setenv("PATH", f"{sys.prefix}/bin", prepend=os.pathsep)
        # Each node's agent takes jobs at one fixed port, which another cluster here may have.
        agent = {"dashboard_agent_listen_port": free_port()}
        rays_own = {"setup_worker_path": None, "include_log_monitor": True}
        how = {"include_dashboard": True, "dashboard_port": 0, **agent, **rays_own}
        cluster = RayCluster.start(1, **how)
        try:
            yield cluster
        finally:
            cluster.stop()


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """A folder of its own, which `uv run` hands to every worker."""
    file = tmp_path / "program.py"
    file.write_text(PROGRAM)
    return file


def begun(*command: str, **options: str) -> subprocess.Popen[str]:
    environment = {key: value for key, value in os.environ.items() if key != "RAY_ADDRESS"}
    return subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
        **options,
    )


def said(process: subprocess.Popen[str]) -> str:
    with process:
        return process.communicate()[0]


def driver(cluster: RayCluster, program: Path, **runtime_env: object) -> subprocess.Popen[str]:
    how = {"address": cluster.cluster.address, "runtime_env": runtime_env}
    return begun(sys.executable, str(program), repr(how))


@pytest.mark.timeout(180)  # a Ray of its own starts, and three jobs with it
def test_two_jobs_side_by_side_and_a_third_that_asks_for_other_options(
    launched: RayCluster, program: Path
) -> None:
    submit = ["ray", "job", "submit", "--address", f"http://{launched.cluster.webui_url}"]
    flag = {**FLAG, "env_vars": {"PYTHONPATH": os.environ["PYTHONPATH"]}}
    submit += ["--runtime-env-json", json.dumps(flag), "--", sys.executable, str(program), "{}"]
    side_by_side = [begun(*submit), driver(launched, program, **FLAG)]
    said_by = [said(job) for job in side_by_side]  # both end before the first is judged
    for job, text in zip(side_by_side, said_by, strict=True):
        assert SUM in text
        assert job.returncode == 0, text
    other = driver(launched, program, hoplite={"arena_bytes": 32 << 20})
    text = said(other)
    assert other.returncode == 1, text
    # Ray may print what it has heard of the cluster after the traceback.
    answer = [line for line in text.splitlines() if line.startswith(WRONG)][-1]
    assert answer.startswith(
        f"{WRONG}this job asks for arena_bytes=33554432, but this cluster's nodes run with "
        "arena_bytes=67108864, as the first job has fixed it: "
    )
    assert f"{program}" in answer
    assert answer.endswith(
        f" of user {os.getuid()}; leave arena_bytes out, or restart the Ray cluster; "
        "hoplite-ray options shows the rest"
    )


@pytest.mark.timeout(90)
def test_uv_run_hands_the_flag_to_every_worker(launched: RayCluster, program: Path) -> None:
    how = repr({"address": launched.cluster.address, "runtime_env": FLAG})
    uv = ["uv", "run", "--offline", "--no-project", "--active", str(program), how]
    text = said(begun(*uv, cwd=str(program.parent)))
    assert SUM in text, text


@pytest.mark.timeout(90)
def test_ray_client_is_refused_at_the_first_use(launched: RayCluster) -> None:
    port = free_port()
    server = begun(
        *(sys.executable, "-m", "ray.util.client.server", "--mode", "specific-server"),
        *("--address", launched.cluster.address, "--host", "127.0.0.1", "--port", str(port)),
    )
    try:
        text = said(begun(sys.executable, "-c", CLIENT, f"ray://127.0.0.1:{port}"))
    finally:
        server.terminate()
        said(server)
    answers = [line for line in text.splitlines() if "Error" in line]
    assert len(answers) == 10, text
    for answer in answers[:-1]:
        assert answer.startswith("HopliteError this process is connected by Ray Client (ray://)")
        assert answer.endswith("run the program there, by 'ray job submit -- python PROGRAM'")
    assert answers[-1].startswith(f'{WRONG}runtime_env={{"hoplite": ...}} was not consumed')
    assert answers[-1].endswith("Ray Client (ray://) consumes none: use 'ray job submit'")
