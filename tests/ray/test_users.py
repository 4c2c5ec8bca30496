"""Two users of one machine on one Ray cluster, each with a Ray node and jobs of their own."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Any

import numpy as np
import pytest
import ray

import hoplite_ray as hop
from hoplite_ray import _native
from hoplite_ray.config import Config
from hoplite_ray.errors import UnauthenticatedError
from hoplite_ray.plugin.node.start import NodePlace, ensure_node
from hoplite_ray.plugin.process.attachment import attachment
from tests.conftest import processes_of_run
from tests.ray.raycluster import LARGE, RayCluster, eventually

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to be two users")

OTHER = 65534
ROOT = Path(__file__).parents[2]

RAY = "import sys; from ray.scripts.scripts import main; sys.argv[0] = 'ray'; main()"

JOB = """
import json, os, sys
import numpy as np, ray, hoplite_ray as hop

address, directory = sys.argv[1:3]
answers = {}

def join(**options):
    ray.init(address, _temp_dir=directory, log_to_driver=False, runtime_env={"hoplite": options})

join(arena_bytes=1 << 20)
try:
    hop.put(np.ones(3))
except ValueError as error:
    answers["conflict"] = str(error)
ray.shutdown()
join()

@ray.remote(num_cpus=0)
def double(array):
    return hop.array(2 * np.asarray(array)), os.getuid()

ref = hop.put(np.ones(200_000, np.float32))
made = [double.options(resources={name: 0.001}).remote(ref) for name in ("other", "n0", "n1")]
pairs = ray.get(made)
answers["users"] = [user for _, user in pairs]
answers["sum"] = float(hop.get(hop.reduce([hop.put(array) for array, _ in pairs])).sum())
reached = []
for path in sys.argv[3:]:
    try:
        os.listdir(path) if os.path.isdir(path) else os.close(os.open(path, os.O_RDONLY))
        reached.append(path)
    except PermissionError:
        pass
answers["reached"] = reached
print(json.dumps(answers))
"""


@dataclass(frozen=True, slots=True)
class OtherUser:
    """A user without root's rights, and the user's directory, where the Ray node works as well."""

    home: Path

    def install(self) -> None:
        """Give him the package as a wheel would, for who builds it is another one."""
        package = self.home / "lib" / "hoplite_ray"
        shutil.copytree(ROOT / "hoplite_ray", package, ignore=shutil.ignore_patterns("__py*__"))
        shutil.copy(_native.__file__, package)

    def begin(self, *command: str) -> subprocess.Popen[str]:
        """The command as that user, who may see the interpreter and the tests."""
        script = _opened(self.home, sys.base_prefix, sys.prefix, str(ROOT))
        as_other = ["setpriv", f"--reuid={OTHER}", f"--regid={OTHER}", "--clear-groups"]
        paths = os.pathsep.join([str(self.home / "lib"), os.environ["PYTHONPATH"]])
        own = [f"HOME={self.home}", f"PYTHONPATH={paths}"]
        words = [*as_other, "env", *own, sys.executable, *command]
        script.append(" ".join(["exec", *map(quote, words)]))
        return subprocess.Popen(
            ["unshare", "-m", "sh", "-e", "-c", "\n".join(script)],
            cwd="/",
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )


def _opened(aside: Path, *needed: str) -> list[str]:
    """Shell lines that let everybody reach these paths, and nothing beside them, in a namespace."""
    paths = {Path(each).resolve() for each in needed}
    closed = {
        next(up for up in reversed(path.parents) if not up.stat().st_mode & 1)
        for path in paths
        if not all(up.stat().st_mode & 1 for up in path.parents)
    }
    lines = []
    for above in closed:
        inside = [path for path in paths if path.is_relative_to(above)]
        kept = {path: f"$aside/{number}" for number, path in enumerate(inside)}
        lines.append(f"aside=$(mktemp -d -p {aside})")
        lines += [f"mkdir {at}; mount --bind {path} {at}" for path, at in kept.items()]
        lines.append(f"mount -t tmpfs -o mode=755 none {above}")
        lines += [f"mkdir -p {path}; mount --move {at} {path}" for path, at in kept.items()]
    return lines


@pytest.fixture(scope="module")
def other(cluster: RayCluster) -> Iterator[OtherUser]:
    """The other user, whose Ray node has joined the cluster."""
    with tempfile.TemporaryDirectory(prefix="user-") as directory:  # short, for Ray's sockets
        os.chown(directory, OTHER, OTHER)
        user = OtherUser(Path(directory))
        user.install()
        started = user.begin(
            *("-c", RAY, "start", "--block", "--address", cluster.cluster.address),
            *("--temp-dir", f"{directory}/ray", "--num-cpus=1", "--resources", '{"other": 1}'),
            *(f"--object-store-memory={100 << 20}", "--disable-usage-stats"),
        )
        try:
            assert eventually(lambda: "other" in ray.cluster_resources(), within_s=60)
            yield user
        finally:
            for pid, command in _of_other():
                if "/raylet/raylet " in command:  # not `ray start`, which would drain it for 30 s
                    os.kill(pid, signal.SIGTERM)
            # Until Ray believes it, it places the next test's actors there.
            assert eventually(lambda: "other" not in ray.cluster_resources(), within_s=60)
            assert eventually(_ended)
            started.communicate()


def _of_other() -> list[tuple[int, str]]:
    """The processes that run as the other user."""
    found = []
    for pid, command in processes_of_run():
        with suppress(FileNotFoundError, ProcessLookupError):
            if os.stat(f"/proc/{pid}").st_uid == OTHER:
                found.append((pid, command))
    return found


def _ended() -> bool:
    """End it; whether there was nothing any more."""
    found = _of_other()
    for pid, _ in found:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return not found


def of_root() -> list[str]:
    """What of this process's node must be closed: its directory, memory and descriptors."""
    directory = attachment().place.directory
    record = json.loads((directory / "node.json").read_text())
    (pid,) = [
        pid for pid, command in processes_of_run() if f"--directory {directory} " in f"{command} "
    ]
    return [
        *(str(directory), record["socket"], str(directory / "secret")),
        *(f"/proc/{pid}/fd", f"/proc/{pid}/map_files", f"/proc/{pid}/mem"),
    ]


@ray.remote(num_cpus=0)
def make() -> tuple[int, Any]:
    return os.getuid(), hop.array(np.ones(LARGE, np.float32))


@pytest.mark.timeout(180)  # a Ray node starts, and two jobs
def test_jobs_of_two_users_work_side_by_side_and_apart(
    cluster: RayCluster, other: OtherUser
) -> None:
    mine = hop.put(np.ones(LARGE, np.float32))
    job = other.begin("-c", JOB, cluster.cluster.address, f"{other.home}/ray", *of_root())
    with job:
        while job.poll() is None:  # ours goes on meanwhile
            user, array = ray.get(make.options(resources={"other": 0.001}).remote())
            assert user == OTHER
            assert hop.get(hop.reduce([mine, hop.put(array)])).sum() == 2 * LARGE
        assert job.stdout is not None
        said = job.stdout.read()
    assert job.returncode == 0, said
    [line] = [each for each in said.splitlines() if each.startswith("{")]  # Ray's own are beside it
    told = json.loads(line)
    assert told["users"] == [OTHER, 0, 0]
    assert told["sum"] == 3 * 2 * 200_000
    assert told["reached"] == []
    assert told["conflict"].startswith("this job asks for arena_bytes=1048576, but this cluster's")
    assert " of user 0; leave arena_bytes out" in told["conflict"]


def test_a_directory_that_another_user_has_made_is_refused(cluster: RayCluster) -> None:
    with tempfile.TemporaryDirectory() as directory:
        place = NodePlace(attachment().place.ray_node_id, Path(directory, "taken"))
        place.directory.mkdir()
        os.chown(place.directory, OTHER, OTHER)
        with pytest.raises(UnauthenticatedError, match=f"was made by user {OTHER}, this process"):
            ensure_node(place, Config())
        assert not any(place.directory.iterdir())


GUEST = """
import sys
import numpy as np, ray, hoplite_ray as hop

ray.init(sys.argv[1], _temp_dir=sys.argv[2], log_to_driver=False)
try:
    hop.put(np.ones(3))
except hop.HopliteError as error:
    print(type(error).__name__, error)
"""


@pytest.mark.timeout(180)  # a Ray node starts, and a job
def test_a_program_of_one_user_on_a_ray_node_of_another_is_told(
    cluster: RayCluster, other: OtherUser
) -> None:
    user, array = ray.get(make.options(resources={"other": 0.001}).remote())
    assert user == OTHER
    ran = subprocess.run(  # root may go where no other user may
        [sys.executable, "-c", GUEST, cluster.cluster.address, f"{other.home}/ray"],
        capture_output=True,
        text=True,
    )
    told = "UnauthenticatedError this process is of user 0, and the Ray node that it is connected"
    assert f"{told} to of user {OTHER}, as is its node of hoplite_ray: submit" in ran.stdout, ran
    assert hop.get(array).sum() == LARGE  # its node has the life that it had
    assert ray.get(make.options(resources={"other": 0.001}).remote())[0] == OTHER
    assert not [*Path(f"{other.home}/ray").glob("session_*/hoplite-0-*")]
