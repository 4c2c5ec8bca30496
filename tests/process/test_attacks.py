"""Attacks on a node by strangers and by other users of the machine: docs/internals/attacks.md."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import grpc
import grpc.aio
import numpy as np
import pytest

from hoplite_ray.control import control_pb2 as pb
from hoplite_ray.control.auth import METADATA_KEY
from hoplite_ray.control.client import RefusedError
from hoplite_ray.control.methods import full_name
from hoplite_ray.errors import UnauthenticatedError
from hoplite_ray.store import Store
from tests.process.nodes import MIB, WAIT_S, Nodes, numbers
from tests.process.wire import Peer
from tests.signed import clock_of, signed_at

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + b"\4" + bytes(5)
STATS = full_name("Stats")


@pytest.fixture(scope="module")
def pair() -> Iterator[Nodes]:
    nodes = Nodes(0)
    try:
        nodes.add()
        nodes.add()
        nodes.meet()
        yield nodes
    finally:
        nodes.end()


def serves(nodes: Nodes) -> None:
    array = numbers(MIB)
    np.testing.assert_array_equal(nodes.get(1, nodes.put(0, array)), array)
    nodes.stats(0)


def dial(nodes: Nodes) -> socket.socket:
    host, port = nodes.processes[0].control.rsplit(":", 1)
    return socket.create_connection((host, int(port)), WAIT_S)


def drip(stranger: socket.socket, said: bytes) -> None:
    """Say it byte by byte, and return when the node has had enough."""
    stranger.settimeout(0.2)
    for byte in said:
        try:
            stranger.sendall(bytes([byte]))
            while stranger.recv(1 << 16):
                continue
            return
        except TimeoutError:
            continue
        except ConnectionError:
            return
    raise AssertionError("the node heard it all")


def test_a_greeting_byte_by_byte_is_cut_off(pair: Nodes) -> None:
    with dial(pair) as stranger:
        drip(stranger, PREFACE[:-1] * 10)
    peer = Peer(pair, 0)
    with peer.socket as stranger:
        drip(stranger, peer.hello)
    serves(pair)


def test_calls_whose_request_never_comes_end(pair: Nodes) -> None:
    async def silence() -> AsyncIterator[bytes]:
        await asyncio.Event().wait()
        yield b""

    async def attack() -> set[grpc.StatusCode]:
        async with grpc.aio.insecure_channel(pair.processes[0].control) as link:
            paths = (STATS, "/grpc.health.v1.Health/Check", full_name("WatchView"))
            calls = [link.stream_unary(path)(silence()) for path in paths for _ in range(100)]
            return {await call.code() for call in calls}

    assert asyncio.run(attack()) == {grpc.StatusCode.INVALID_ARGUMENT}
    serves(pair)


def test_a_call_that_was_overheard_is_refused(pair: Nodes) -> None:
    request = pb.StatsRequest().SerializeToString()
    secret = pair.processes[0].secret

    async def say_twice() -> tuple[grpc.StatusCode, grpc.StatusCode]:
        async with grpc.aio.insecure_channel(pair.processes[0].control) as link:
            call = link.unary_unary(STATS)
            said = signed_at(await clock_of(link, secret), secret, "Stats", request, late_s=0.0)
            first = call(request, metadata=((METADATA_KEY, said),))
            one = await first.code()
            return one, await call(request, metadata=((METADATA_KEY, said),)).code()

    codes = asyncio.run(say_twice())
    assert codes == (grpc.StatusCode.OK, grpc.StatusCode.UNAUTHENTICATED)


def test_a_request_of_many_mebibytes_is_refused(pair: Nodes) -> None:
    async def attack() -> grpc.StatusCode:
        async with grpc.aio.insecure_channel(pair.processes[0].control) as link:
            return await link.unary_unary(STATS)(bytes(16 * MIB)).code()

    assert asyncio.run(attack()) is grpc.StatusCode.RESOURCE_EXHAUSTED
    serves(pair)


AS_NOBODY = """
import os, sys
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
for path in sys.argv[1:]:
    try:
        os.listdir(path) if path.endswith("/") else os.close(os.open(path, os.O_RDONLY))
        print(path)
    except PermissionError:
        pass
"""


def test_other_users_reach_no_memory_and_no_secret(pair: Nodes) -> None:
    if os.geteuid() != 0:
        return  # only root can try
    mapped = pair.get(1, pair.put(0, numbers(MIB)))  # so that this process has it mapped
    paths = [f"{pair.processes[0].directory}/", str(pair.processes[0].directory / "secret")]
    for pid in (pair.processes[0].process.pid, os.getpid()):
        process = Path(f"/proc/{pid}")
        paths += [f"{process}/fd/", f"{process}/map_files/", str(process / "mem")]
        paths += [str(each) for each in (process / "fd").iterdir() if each.is_file()]
    done = subprocess.run(
        [sys.executable, "-c", AS_NOBODY, *paths], capture_output=True, text=True, check=True
    )
    assert done.stdout == "" and mapped.size == MIB


NODE_OF_NOBODY = """
import encodings.idna, os, sys
from hoplite_ray.node.process import main

os.setgroups([])
os.setgid(65534)
os.setuid(65534)
sys.exit(main(sys.argv[1:]))
"""


def test_two_users_have_nodes_of_their_own_on_one_machine(pair: Nodes) -> None:
    if os.geteuid() != 0:
        return  # only root can be both
    with tempfile.TemporaryDirectory() as directory:
        os.chown(directory, 65534, 65534)
        arguments = [
            "--directory",
            directory,
            "--listen",
            "127.0.0.1:0",
            "--arena-bytes",
            "1048576",
        ]
        other = subprocess.Popen(
            [sys.executable, "-c", NODE_OF_NOBODY, *arguments], stdout=subprocess.PIPE, text=True
        )
        with other:
            try:
                assert other.stdout is not None
                record = json.loads(other.stdout.readline())
                with pytest.raises(UnauthenticatedError, match="that node is of user 65534, this"):
                    Store.attach(record["socket"])
                with pytest.raises(RefusedError):
                    pair.call(0, lambda calls: calls.view(record["control"]))
                array = numbers(MIB)
                np.testing.assert_array_equal(pair.get(1, pair.put(0, array)), array)
            finally:
                other.terminate()
        assert other.returncode == 0
