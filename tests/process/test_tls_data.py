"""The option data_tls: nodes encrypt what they send each other, and all else is as without."""

from __future__ import annotations

import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from hoplite_ray.errors import NodeLostError, ObjectLostError
from hoplite_ray.launch import NodeProcess
from hoplite_ray.store import new_id
from tests.certificates import Authority, serial_of, serial_shown
from tests.process.nodes import MIB, WAIT_S, MakeNodes, Nodes, numbers
from tests.process.test_failures import SLOW, is_under_way
from tests.process.wire import HELLO, dial, frame

HERE = "127.0.0.1"
ON = {"data_tls": "on"}
ETHERTYPE_ALL = 3
SO_RCVBUFFORCE = 33  # which Python has no name for


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "ours")


@pytest.fixture
def certified(authority: Authority, monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes that start from here on have a certificate."""
    for name, value in authority.certify("node", HERE).items():
        monkeypatch.setenv(name, value)


class Sniffer:
    """Reads every packet on loopback, and knows who said a marker in plain bytes."""

    def __init__(self, marker: bytes) -> None:
        self._marker = marker
        self._packets = socket.socket(
            socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETHERTYPE_ALL)
        )
        # All of it, for a reader who gets no turn meanwhile: more than the system's usual limit.
        self._packets.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 64 * MIB)
        self._packets.bind(("lo", 0))
        self._is_over = threading.Event()
        self._has_read = threading.Condition()
        self._thread = threading.Thread(target=self._read)
        self.seen_bytes: dict[int, int] = {}  # by either port
        self.told: set[int] = set()  # ports on which the marker was seen
        self._thread.start()

    def _read(self) -> None:
        self._packets.settimeout(0.1)
        while not self._is_over.is_set():
            try:
                packet = self._packets.recv(1 << 17)
            except TimeoutError:
                continue
            ethernet, ip = 14, (packet[14] & 15) * 4
            if packet[12:14] != b"\x08\x00" or packet[ethernet + 9] != socket.IPPROTO_TCP:
                continue
            ports = struct.unpack_from(">HH", packet, ethernet + ip)
            with self._has_read:
                for port in ports:
                    self.seen_bytes[port] = self.seen_bytes.get(port, 0) + len(packet)
                if self._marker in packet:
                    self.told.update(ports)
                self._has_read.notify_all()

    def wait_for(self, condition: Callable[[], bool]) -> None:
        with self._has_read:
            assert self._has_read.wait_for(condition, WAIT_S)

    def end(self) -> None:
        self._is_over.set()
        self._thread.join()
        self._packets.close()


@pytest.fixture
def marked() -> Iterator[tuple[bytes, Sniffer]]:
    marker = numbers(24, seed=4711).tobytes()
    sniffer = Sniffer(marker)
    yield marker, sniffer
    sniffer.end()


def rail_port(nodes: Nodes, rank: int) -> int:
    return int(nodes.processes[rank].rails[0].rpartition(":")[2])


def exchange(nodes: Nodes, marker: bytes) -> None:
    """Small and large objects, both ways, in all of which the marker is everywhere."""
    for size_bytes in (240, 8 * MIB):
        array = np.resize(np.frombuffer(marker, np.uint8), size_bytes)
        for rank in (0, 1):
            np.testing.assert_array_equal(nodes.get(1 - rank, nodes.put(rank, array)), array)


def counted(nodes: Nodes, rank: int, name: str, least: int = 1) -> None:
    """Return once a counter of a node is that high."""
    nodes.counters(rank, lambda now: now[name] >= least)


def log(node: NodeProcess) -> str:
    return (node.directory / "node.log").read_text()


def test_no_byte_of_an_object_is_on_the_wire(
    certified: None, cluster: MakeNodes, marked: tuple[bytes, Sniffer]
) -> None:
    marker, sniffer = marked
    nodes = cluster(2, options=ON)
    exchange(nodes, marker)
    ports = {rail_port(nodes, rank) for rank in (0, 1)}
    sniffer.wait_for(lambda: sum(map(sniffer.seen_bytes.get, ports, (0, 0))) > 16 * MIB)
    assert not sniffer.told & ports


def test_the_sniffer_would_have_seen_it(cluster: MakeNodes, marked: tuple[bytes, Sniffer]) -> None:
    marker, sniffer = marked
    nodes = cluster(2)
    exchange(nodes, marker)
    ports = {rail_port(nodes, rank) for rank in (0, 1)}
    sniffer.wait_for(lambda: bool(sniffer.told & ports))


def test_objects_go_to_all_nodes_and_are_reduced(certified: None, cluster: MakeNodes) -> None:
    nodes = cluster(4, options=ON)
    large = numbers(24 * MIB)
    object_id = nodes.put(0, large)
    pending = [nodes[rank].begin_get(object_id) for rank in range(1, 4)]
    for each in pending:
        np.testing.assert_array_equal(each.result(timeout_s=WAIT_S).value, large)
    sources = [nodes.put(rank, np.full(MIB, rank + 1.0)) for rank in range(4)]
    nodes[2].reduce(target := new_id(), sources, op="sum", timeout_s=WAIT_S)
    for rank in range(4):
        np.testing.assert_array_equal(nodes.get(rank, target), np.full(MIB, 10.0))


def test_a_node_that_is_killed_is_dead_to_the_others(certified: None, cluster: MakeNodes) -> None:
    nodes = cluster(3, options=ON)
    only_there = nodes.put(2, numbers(4 * MIB))
    for rank in (0, 1):
        counted(nodes, rank, "link_handshakes", 6)  # three for each peer: one is of liveness
    nodes.kill(2)
    with pytest.raises(ObjectLostError):
        nodes.client(0).begin_get(only_there, exists=True).result(WAIT_S)
    nodes.view(0, size=2)
    assert "its process has ended" in "".join(map(log, nodes.processes[:2]))
    array = numbers(MIB, seed=1)
    np.testing.assert_array_equal(nodes.get(1, nodes.put(0, array)), array)
    nodes.processes[1].stop()
    nodes.view(0, size=1)


def test_a_get_goes_on_when_its_sender_is_killed(certified: None, cluster: MakeNodes) -> None:
    nodes = cluster(3, options={**ON, **SLOW})
    array = numbers(32 * MIB)
    object_id = nodes.put(0, array)
    nodes.get(1, object_id)
    pending = nodes[2].begin_get(object_id)
    is_under_way(nodes, 2)
    nodes.kill(0)
    np.testing.assert_array_equal(pending.result(WAIT_S).value, array)


def test_a_greeting_without_tls_is_refused_and_said(certified: None, cluster: MakeNodes) -> None:
    nodes = cluster(1, options=ON)
    with dial(nodes, 0) as stranger:
        stranger.sendall(frame(HELLO, b"x" * 64))
        stranger.settimeout(WAIT_S)
        assert stranger.recv(100)[:2] == b"\x15\x03"  # an alert, by which the dialler knows
    counted(nodes, 0, "link_handshakes_refused")
    assert "refused: it speaks no TLS, and data_tls is on here" in log(nodes.processes[0])


def test_a_certificate_of_another_authority_is_refused(
    certified: None, cluster: MakeNodes, tmp_path: Path
) -> None:
    nodes = cluster(1, options=ON)
    theirs = Authority(tmp_path / "theirs").certify("stranger", HERE)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.load_cert_chain(theirs["RAY_TLS_SERVER_CERT"], theirs["RAY_TLS_SERVER_KEY"])
    with dial(nodes, 0) as plain, context.wrap_socket(plain) as stranger:
        assert stranger.version() == "TLSv1.3"
        with pytest.raises((ssl.SSLError, ConnectionResetError)):  # that of a dialler comes last
            stranger.recv(1)
    counted(nodes, 0, "link_handshakes_refused")
    assert "its certificate is refused" in log(nodes.processes[0])


@pytest.mark.parametrize("options", [{}, ON], ids=["without", "with"])
def test_a_node_unlike_the_others_may_not_join(
    certified: None, cluster: MakeNodes, options: dict[str, str]
) -> None:
    nodes = cluster(2, options={} if options else ON)
    theirs, ours = ("on", "off") if options else ("off", "on")
    said = rf"it has data_tls {theirs}, and node .* has it {ours}; give all nodes the same data_tls"
    with pytest.raises(NodeLostError, match=said):
        nodes.add(options=options)
    assert f"it has data_tls {theirs}" in log(nodes.processes[0])
    nodes.view(0, size=2)


def share(nodes: Nodes) -> None:
    """Bring an object of each living node to the others, over data connections."""
    nodes.meet()
    ranks = nodes.ranks()
    assert len(ranks) == 2
    for giver, taker in (ranks, ranks[::-1]):
        array = numbers(MIB, seed=len(nodes.processes))
        np.testing.assert_array_equal(nodes.get(taker, nodes.put(giver, array)), array)


def restart_one_by_one(nodes: Nodes) -> None:
    for rank in nodes.ranks():
        nodes.stores[rank].close()
        nodes.processes[rank].stop()
        nodes.add()
        share(nodes)


def test_renewed_files_count_from_the_next_life_on(
    authority: Authority, certified: None, cluster: MakeNodes
) -> None:
    nodes = cluster(2, options=ON)
    renewed = serial_of(settings := authority.certify("node", HERE))  # renewed under the nodes
    assert serial_shown(nodes.processes[0].control, settings) != renewed, (
        "a node shows what it read at its start"
    )
    share(nodes)
    restart_one_by_one(nodes)
    shown = {serial_shown(nodes.processes[rank].control, settings) for rank in nodes.ranks()}
    assert shown == {renewed}


def test_an_authority_is_changed_in_three_rounds_while_objects_are_shared(
    authority: Authority, certified: None, cluster: MakeNodes, tmp_path: Path
) -> None:
    nodes = cluster(2, options=ON)
    ours = authority.certify("node", HERE)
    theirs = Authority(tmp_path / "theirs").certify("node", HERE)
    restart_one_by_one(nodes)
    trusted, coming = (Path(each["RAY_TLS_CA_CERT"]) for each in (ours, theirs))
    trusted.write_bytes(trusted.read_bytes() + coming.read_bytes())
    restart_one_by_one(nodes)
    for name in ("RAY_TLS_SERVER_CERT", "RAY_TLS_SERVER_KEY"):
        Path(theirs[name]).replace(ours[name])
    restart_one_by_one(nodes)
    coming.replace(trusted)
    restart_one_by_one(nodes)


def test_without_rays_settings_no_node_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_USE_TLS", raising=False)
    with pytest.raises(NodeLostError, match="data_tls is on and RAY_USE_TLS is not; set RAY_USE"):
        NodeProcess.start(arena_bytes=MIB, options=ON)


def test_a_missing_file_is_named(certified: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_TLS_CA_CERT", "/nowhere")
    with pytest.raises(NodeLostError, match=r"authority /nowhere .*No such file or directory"):
        NodeProcess.start(arena_bytes=MIB, options=ON)
