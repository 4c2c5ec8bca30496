"""The node process and its control service: start, identity and end."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import subprocess
import sys
import time
from contextlib import suppress
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from hoplite_ray.control.client import ControlClient, RefusedError
from hoplite_ray.errors import ControlError, NodeLostError
from hoplite_ray.launch import NodeProcess
from hoplite_ray.metrics.counters import NodeStats
from hoplite_ray.store import Store, new_id
from tests.process.command import stopped
from tests.process.nodes import MIB, WAIT_S, MakeNodes

NODE = [sys.executable, "-m", "hoplite_ray.node"]


def last_words(*arguments: str, **environment: str) -> str:
    """Start a node that must not start; returns the one line it says."""
    done = subprocess.run(
        [*NODE, *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **environment},
    )
    assert (done.returncode, done.stdout) == (2, "")
    said = [line for line in done.stderr.splitlines() if " level=" not in line]
    assert len(said) == 1, done.stderr
    return said[0]


def test_a_node_says_who_it_is(cluster: MakeNodes, tmp_path: Path) -> None:
    nodes = cluster(
        1, directory=tmp_path / "node", options={"credit_bytes": 1 << 20, "when_full": "fail"}
    )
    node = nodes.processes[0]
    record = json.loads((node.directory / "node.json").read_text())
    assert record["pid"] == node.process.pid
    assert record["node_id"] == node.node_id == nodes[0].node_id
    options = {"arena_bytes": 256 * MIB, "credit_bytes": 1 << 20, "when_full": "fail"}
    assert record["options"] == options
    assert stat.S_IMODE(node.directory.stat().st_mode) == 0o700
    assert stat.S_IMODE((node.directory / "secret").stat().st_mode) == 0o600


def test_a_node_is_as_nice_as_the_process_that_it_watches(tmp_path: Path) -> None:
    before, ours = ["nice", "-n", "3"], os.getpriority(os.PRIO_PROCESS, 0)
    node = NodeProcess.start(directory=tmp_path / "nice", arena_bytes=16 * MIB, before=before)
    found: dict[str, set[int]] = {"others": set(), "hoplite-live": set()}
    for task in Path(f"/proc/{node.process.pid}/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):  # gRPC ends threads as it likes
            name = (task / "comm").read_text().strip()
            niceness = os.getpriority(os.PRIO_PROCESS, int(task.name))
            found[name if name in found else "others"].add(niceness)
    node.stop()
    if os.geteuid() == 0:
        assert found == {"others": {ours}, "hoplite-live": {-20}}
    else:  # without the right to raise a priority
        assert found == {"others": {ours + 3}, "hoplite-live": {ours + 3}}


def test_a_node_that_is_told_to_end_leaves_nothing_but_its_secret(
    cluster: MakeNodes, tmp_path: Path
) -> None:
    nodes = cluster(2, directory=None)
    node = NodeProcess.start(
        directory=tmp_path / "third", beside=nodes.processes[0], arena_bytes=16 * MIB
    )
    assert len(nodes.view(0, size=3).members) == 3
    assert node.stop() == 0
    assert len(nodes.view(1, size=2).members) == 2
    assert {each.name for each in node.directory.iterdir()} == {"node.lock", "node.log", "secret"}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_end_it_with_status_0(cluster: MakeNodes, number: int) -> None:
    node = cluster(1).processes[0].process
    node.send_signal(number)
    assert node.wait() == 0


def test_it_ends_with_the_process_that_it_watches(tmp_path: Path) -> None:
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as watched:
        arguments = ["--directory", str(tmp_path / "node"), "--listen", "127.0.0.1:0"]
        arguments += ["--arena-bytes", str(16 * MIB), "--watch-pid", str(watched.pid)]
        with subprocess.Popen([*NODE, *arguments], stdout=subprocess.PIPE) as node:
            assert node.stdout is not None
            assert node.stdout.readline().startswith(b"{")
            watched.kill()
            assert node.wait() == 0
    assert not (tmp_path / "node/node.json").exists()
    assert not (tmp_path / "node/node.sock").exists()


def test_it_ends_so_also_while_it_waits_for_rays_own_table(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        closed = "{}:{}".format(*nobody.getsockname())
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as watched:
        arguments = ["--directory", str(tmp_path / "node"), "--listen", "127.0.0.1:0"]
        arguments += ["--watch-pid", str(watched.pid), "--gcs-address", closed]
        with subprocess.Popen([*NODE, *arguments, "--arena-bytes", str(16 * MIB)]) as node:
            while not (tmp_path / "node/node.sock").exists():  # then it enters
                time.sleep(0.01)
            watched.kill()
            assert node.wait() in (0, -signal.SIGALRM)  # within its limit


def test_it_does_not_start_for_a_process_that_is_gone(tmp_path: Path) -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    words = last_words(
        *("--directory", str(tmp_path / "node"), "--listen", "127.0.0.1:0"),
        *("--arena-bytes", str(16 * MIB), "--watch-pid", str(gone.pid)),
    )
    assert f"process {gone.pid}" in words


def test_a_node_that_crashed_is_the_same_one_in_its_next_life(
    cluster: MakeNodes, tmp_path: Path
) -> None:
    nodes = cluster(1)
    how = {"directory": tmp_path / "node", "beside": nodes.processes[0], "arena_bytes": 16 * MIB}
    first = NodeProcess.start(**how)
    first.kill()
    nodes.view(0, size=1)
    second = NodeProcess.start(**how)
    try:
        assert (second.node_id, second.incarnation) == (first.node_id, 2)
        assert nodes.view(0, size=2).members[1].key == (first.node_id, 2)
        with Store.attach(second.socket) as store:
            assert store._client.node_incarnation == 2
    finally:
        second.kill()


def test_a_node_that_is_held_for_dead_starts_its_next_life(cluster: MakeNodes) -> None:
    nodes = cluster(3)
    first, second, third = nodes.processes

    async def lie(calls: ControlClient) -> None:
        with pytest.raises(ControlError, match="reports only what it has seen itself"):
            await calls.report_death(first.control, nodes.key(1), reporter=third.node_id)

    async def comes_back(calls: ControlClient) -> None:
        async for view in calls.watch(first.control, 0):
            if view.has((second.node_id, 2)):
                return

    nodes.call(0, lie)
    with stopped(second):
        nodes.view(0, size=2)
    nodes.call(0, comes_back)
    record_file = second.directory / "node.json"
    deadline = time.monotonic() + WAIT_S
    while not record_file.exists() and time.monotonic() < deadline:
        time.sleep(0.01)  # it is there once clients may come, a little after the view
    record = json.loads(record_file.read_text())
    assert (record["incarnation"], record["pid"]) == (2, second.process.pid)
    with Store.attach(second.socket) as store:
        assert store._client.node_incarnation == 2
    with pytest.raises(NodeLostError):
        nodes[1].begin_get(bytes(28)).result(WAIT_S)


def test_a_wrong_secret_is_refused(cluster: MakeNodes, tmp_path: Path) -> None:
    nodes = cluster(1)
    wrong = tmp_path / "wrong"
    wrong.write_text("f" * 32)
    with pytest.raises(NodeLostError, match="does not know this cluster's secret"):
        NodeProcess.start(
            join=[nodes.processes[0].control], secret_file=wrong, arena_bytes=16 * MIB
        )
    with pytest.raises(RefusedError):
        NodeStats.read(nodes.processes[0].control, b"f" * 32)
    assert len(nodes.view(0, size=1).members) == 1


def test_health_and_stats_of_every_node(cluster: MakeNodes) -> None:
    nodes = cluster(2)
    for rank in (0, 1):
        assert nodes.call(
            0, partial(ControlClient.is_healthy, address=nodes.processes[rank].control)
        )
        stats = nodes.wait_for(rank, lambda stats: stats.members == 2)
        assert stats.arena_bytes == 256 * MIB
    nodes.kill(1)
    assert not nodes.call(0, partial(ControlClient.is_healthy, address=nodes.processes[1].control))


def test_nobody_at_that_address(cluster: MakeNodes) -> None:
    nodes = cluster(1)
    nodes.kill(0)
    with pytest.raises(ControlError, match="Stats at 127"):
        NodeStats.read(nodes.processes[0].control, b"f" * 32)


def test_counters_of_another_release_are_named() -> None:
    with pytest.raises(ControlError, match="publishes no arena_bytes"):
        NodeStats.from_counters({"objects": 1})


def test_one_node_per_directory(cluster: MakeNodes, tmp_path: Path) -> None:
    cluster(1, directory=tmp_path / "node")
    with pytest.raises(NodeLostError, match="another node runs in"):
        NodeProcess.start(directory=tmp_path / "node", arena_bytes=16 * MIB)


def test_a_control_address_is_one_nodes(cluster: MakeNodes, tmp_path: Path) -> None:
    taken = cluster(1).processes[0].control
    words = last_words(
        *("--directory", str(tmp_path / "node"), "--listen", "127.0.0.1:0"),
        *("--arena-bytes", str(16 * MIB), "--control", taken),
    )
    assert f"can't listen on {taken} for control calls (Address already in use)" in words


def test_a_directory_that_others_may_enter_is_refused(tmp_path: Path) -> None:
    os.chmod(tmp_path, 0o755)
    with pytest.raises(NodeLostError, match="run `chmod 700"):
        NodeProcess.start(directory=tmp_path, arena_bytes=16 * MIB)


REFUSED = {
    "any address": (["--listen", "0.0.0.0:0"], "is not ADDRESS:PORT of one network interface"),
    "no port": (["--listen", "127.0.0.1"], "is not ADDRESS:PORT of one network interface"),
    "control": (["--control", "[::]:0"], "--control '[::]:0' is not ADDRESS:PORT"),
    "option": (["--option", "credit=1"], "is not NAME=VALUE with one of"),
    "arena": (["--arena-bytes", "17"], "'arena_bytes' is 17; it takes an int from"),
    "not ours": (["--listen", "192.0.2.1:0"], "192.0.2.1"),
    "control not ours": (
        ["--control", "192.0.2.1:0"],
        "can't listen on 192.0.2.1:0 for control calls (Cannot assign requested address)",
    ),
    "short secret": (["--secret-file", "/dev/null"], "0 bytes; put at least 16 random ones there"),
    "no secret": (["--secret-file", "/nowhere"], "/nowhere can't be read (No such file"),
    "negative id": (["--node-id", "-1"], "--node-id -1 is out of range; it takes an int from 1"),
    "huge id": (["--node-id", str(2**64)], f"to {2**63 - 1}; leave it out for the default"),
    "no life": (["--incarnation", "0"], "--incarnation 0 is out of range"),
    "huge life": (["--incarnation", str(2**32)], f"an int from 1 to {2**32 - 1}"),
    "no process": (["--watch-pid", "0"], "--watch-pid 0 is out of range"),
    "no number": (["--watch-pid", "abc"], "invalid int value: 'abc'; see python -m"),
    "join": (["--join", "nowhere"], "--join 'nowhere' is not ADDRESS:PORT; give the address at"),
    "join any": (["--join", "127.0.0.1:0"], "--join '127.0.0.1:0' is not ADDRESS:PORT"),
    "Ray": (["--gcs-address", "nonsense"], "--gcs-address 'nonsense' is not ADDRESS:PORT"),
    "no value": (["--option", "credit_bytes="], "is not NAME=VALUE with one of"),
    "a sign": (["--option", "credit_bytes=--1"], "is not NAME=VALUE with one of"),
    "too little": (["--option", "credit_bytes=-1"], "'credit_bytes'=-1: must be 1 to"),
    "too much": (["--option", f"credit_bytes={2**80}"], "is larger than any option may be"),
    "no port number": (["--listen", "127.0.0.1:99999"], "'127.0.0.1:99999' is not ADDRESS:PORT"),
    "a name": (["--listen", "localhost:0"], "'localhost:0': expected a numeric address"),
    "unknown": (["--frobnicate"], "unrecognized arguments: --frobnicate; see python -m"),
    "log level": (["--log-level", "loud"], "invalid choice: 'loud'"),
    "too large": (["--arena-bytes", str(1 << 47)], "bytes does not fit"),
}


@pytest.mark.parametrize(("arguments", "words"), REFUSED.values(), ids=REFUSED.keys())
def test_bad_options_end_it_with_one_clear_line(
    tmp_path: Path, arguments: list[str], words: str
) -> None:
    if "--listen" not in arguments:
        arguments = [*arguments, "--listen", "127.0.0.1:0"]
    if "--arena-bytes" not in arguments:
        arguments = [*arguments, "--arena-bytes", str(16 * MIB)]
    assert words in last_words("--directory", str(tmp_path / "node"), *arguments)


def test_bad_environment_and_bad_places_end_it_with_one_clear_line(tmp_path: Path) -> None:
    listen = ["--listen", "127.0.0.1:0"]
    where = ["--directory", str(tmp_path / "node"), *listen]
    words = last_words(*where, HOPLITE_RAY_ARENA_BYTES="much")
    assert "HOPLITE_RAY_ARENA_BYTES='much' is no integer" in words
    assert "arguments are required: --directory" in last_words(*listen)
    for directory in ("/dev/null", "/proc/node"):
        words = last_words("--directory", directory, *listen)
        assert f"--directory {directory} can't be made" in words
        assert f"give a directory that user {os.geteuid()} may make" in words


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_node_that_waits_to_join_ends_when_it_is_told(tmp_path: Path, number: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # takes connections, says nothing
        join = f"127.0.0.1:{silent.getsockname()[1]}"
        arguments = ["--directory", str(tmp_path), "--listen", "127.0.0.1:0", "--join", join]
        arguments += ["--arena-bytes", str(16 * MIB)]
        with subprocess.Popen([*NODE, *arguments], stdout=subprocess.PIPE) as node:
            connection, _ = silent.accept()  # so it is in the middle of its join
            with connection:
                node.send_signal(number)
                assert node.wait() == 0
            assert node.stdout is not None
            assert node.stdout.read() == b""
    assert {each.name for each in tmp_path.iterdir()} == {"node.lock", "secret"}


def test_of_two_that_start_at_once_in_one_directory_one_lives(tmp_path: Path) -> None:
    arguments = ["--directory", str(tmp_path), "--listen", "127.0.0.1:0"]
    arguments += ["--arena-bytes", str(16 * MIB)]
    how = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    nodes = [subprocess.Popen([*NODE, *arguments], **how) for _ in range(2)]
    ended = [node for node in nodes if node.stdout is not None and not node.stdout.readline()]
    assert len(ended) == 1
    assert ended[0].wait() == 2
    [lives] = [node for node in nodes if node is not ended[0]]
    record = json.loads((tmp_path / "node.json").read_text())
    assert record["pid"] == lives.pid
    lives.terminate()
    _, said = lives.communicate()
    assert lives.returncode == 0, said
    assert b"another node runs in" in ended[0].communicate()[1]


def test_the_log_of_a_node_is_bounded(tmp_path: Path) -> None:
    log = tmp_path / "node.log"
    earlier = b"of an earlier life\n" * (1 << 20)
    log.write_bytes(earlier)
    node = NodeProcess.start(directory=tmp_path, arena_bytes=16 * MIB)
    try:
        kept = tmp_path / "node.log.1"
        while not kept.exists() or log.stat().st_size:  # the test's limit ends it else
            assert node.process.poll() is None
        assert kept.read_bytes().startswith(earlier)
        assert b"ready" in kept.read_bytes()[len(earlier) :]
    finally:
        node.stop()
    assert node.process.returncode == 0


def test_a_log_that_can_not_be_kept_ends_no_node(tmp_path: Path) -> None:
    log = tmp_path / "node.log"
    log.write_bytes(b"of an earlier life\n" * (1 << 20))
    (tmp_path / "node.log.1").mkdir()
    node = NodeProcess.start(directory=tmp_path, arena_bytes=16 * MIB)
    try:
        while log.stat().st_size > MIB:  # the test's limit ends it else
            assert node.process.poll() is None
        with Store.attach(node.socket) as store:
            store.put(new_id(), np.zeros(3), timeout_s=WAIT_S)
    finally:
        node.stop()
    assert node.process.returncode == 0


UNTIDY = """
import os
from hoplite_ray.store import Store
store = Store.start(arena_bytes=16 << 20)
if os.fork() == 0:
    raise SystemExit  # the child's end is not the node's
os.wait()
assert store.node.process.poll() is None
print(store.node.process.pid, store.node.directory)
"""


def test_a_program_that_never_closes_its_store_leaves_nothing() -> None:
    done = subprocess.run(
        [sys.executable, "-c", UNTIDY], capture_output=True, text=True, check=True
    )
    pid, directory = done.stdout.split()
    assert not Path(directory).exists()
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid), 0)


def test_a_socket_name_that_is_too_long_is_refused(tmp_path: Path) -> None:
    directory = tmp_path / ("d" * 100)
    with pytest.raises(NodeLostError, match="socket"):
        NodeProcess.start(directory=directory, arena_bytes=16 * MIB)
