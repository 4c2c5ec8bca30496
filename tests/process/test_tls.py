"""Ray's TLS settings: nodes and callers with them connect, and all others are refused."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import numpy as np
import pytest

from hoplite_ray.control.client import ControlClient, RefusedError, UnreachableError
from hoplite_ray.errors import ControlError, NodeLostError
from hoplite_ray.launch import NodeProcess
from tests.certificates import Authority
from tests.process.command import at, hoplite_ray
from tests.process.nodes import MIB, MakeNodes, Nodes, numbers

HERE = "127.0.0.1"
PAGE = Path(__file__).parents[2] / "docs" / "operate" / "certificates.md"


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "ours")


@pytest.fixture
def nodes(authority: Authority, cluster: MakeNodes, monkeypatch: pytest.MonkeyPatch) -> Nodes:
    """Two nodes with TLS; callers of this process have a certificate as well."""
    use(monkeypatch, authority.certify("node", HERE))
    return cluster(2)


def use(monkeypatch: pytest.MonkeyPatch, settings: dict[str, str]) -> None:
    """Call with these settings from now on."""
    monkeypatch.delenv("RAY_USE_TLS", raising=False)
    for name, value in settings.items():
        monkeypatch.setenv(name, value)


def refusal(nodes: Nodes) -> ControlError:
    """What the first node, or nobody, says to a call."""
    control = nodes.processes[0].control
    with pytest.raises(ControlError) as raised:
        nodes.call(0, lambda calls: calls.stats(control))
    assert not nodes.call(0, lambda calls: calls.is_healthy(control))
    return raised.value


def test_nodes_meet_and_are_asked_over_tls(nodes: Nodes) -> None:
    array = numbers(MIB)
    np.testing.assert_array_equal(nodes.get(1, nodes.put(0, array)), array)
    for command in ("status", "doctor", "objects"):
        ran = hoplite_ray(command, *at(*nodes.processes))
        assert ran.status == 0, ran.out + ran.err
    nodes.processes[1].stop()
    nodes.view(0, size=1)


@pytest.mark.parametrize("has_data_tls", [False, True])
def test_the_lines_of_the_page_start_a_node_with_tls(
    authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_data_tls: bool
) -> None:
    """docs/operate/certificates.md, with files, an address and a directory of this machine."""
    blocks = re.findall(r"^ *```sh\n(.*?)^ *```", PAGE.read_text(), re.M | re.S)
    lines, with_data_tls = map(dedent, blocks)
    settings = authority.certify("node", HERE)
    assert set(re.findall(r"^export (\w+)=", lines, re.M)) == settings.keys()
    for name, value in settings.items():
        lines = re.sub(rf"(?<=^export {name}=)\S+", value, lines, flags=re.M)
    command = lines.rstrip().splitlines()[-1].partition("#")[0].strip()
    wanted = with_data_tls.strip() if has_data_tls else command
    here = wanted.replace("DIR", str(tmp_path)).replace("192.0.2.1", HERE)
    assert here != wanted
    monkeypatch.setenv("HOPLITE_RAY_ARENA_BYTES", str(MIB))
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)
    shell = ["bash", "-ec", lines.replace(command, f"exec {here}")]
    with subprocess.Popen(shell, stdout=subprocess.PIPE, text=True) as node:
        try:
            assert node.stdout is not None
            control = json.loads(node.stdout.readline())["control"]
            use(monkeypatch, settings)
            at_it = ("--directory", str(tmp_path))
            assert f"at {control}" in hoplite_ray("doctor", *at_it).out
            use(monkeypatch, {})
            assert "set it here as well" in hoplite_ray("status", *at_it).out
        finally:
            node.terminate()
    assert node.returncode == 0


def test_callers_without_tls_are_refused(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, {})
    error = refusal(nodes)
    assert isinstance(error, UnreachableError)
    assert "if RAY_USE_TLS is set there: set it here as well" in str(error)
    ran = hoplite_ray("status", *at(nodes.processes[0]))
    assert ran.status == 1 and "set it here as well" in ran.out


def test_certificates_of_another_authority_are_refused_both_ways(
    nodes: Nodes, authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = Authority(tmp_path / "theirs").certify("stranger", HERE)
    use(monkeypatch, theirs)
    error = refusal(nodes)
    assert isinstance(error, RefusedError)
    assert "signed by our RAY_TLS_CA_CERT" in str(error)
    trusting = theirs | {"RAY_TLS_CA_CERT": authority.certify("x")["RAY_TLS_CA_CERT"]}
    use(monkeypatch, trusting)
    error = refusal(nodes)
    assert isinstance(error, UnreachableError)
    assert "whose RAY_TLS_SERVER_CERT its RAY_TLS_CA_CERT has not signed" in str(error)


def test_certificates_for_another_address_are_refused(
    authority: Authority, cluster: MakeNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, authority.certify("elsewhere", "127.0.0.9"))
    node = cluster(0)
    node.processes.append(NodeProcess.start(arena_bytes=MIB))
    error = refusal(node)
    assert isinstance(error, RefusedError)
    assert "must name this address" in str(error)


def test_callers_with_tls_are_told_that_a_node_has_none(
    authority: Authority, cluster: MakeNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = cluster(1)
    use(monkeypatch, authority.certify("caller", HERE))
    error = refusal(plain)
    assert "it speaks no TLS, and RAY_USE_TLS is set here" in str(error)


def test_the_secret_is_needed_beside_a_certificate(nodes: Nodes) -> None:
    secret = nodes.processes[0].directory / "secret"
    secret.write_bytes(b"f" * 32)  # the node has read it, and a caller reads it anew
    with pytest.raises(RefusedError, match="does not know this cluster's secret"):
        nodes.call(0, lambda calls: calls.stats(nodes.processes[0].control))


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"RAY_TLS_SERVER_KEY": ""}, "RAY_USE_TLS is set and RAY_TLS_SERVER_KEY is not"),
        ({"RAY_TLS_CA_CERT": "/nowhere"}, "(No such file or directory); give PEM files that fit"),
        ({"RAY_TLS_SERVER_KEY": "OTHER"}, "are of no use together"),
        ({"RAY_TLS_SERVER_CERT": "/proc/self/cmdline"}, "are of no use together"),
    ],
    ids=str,
)
def test_settings_of_no_use_are_said(
    authority: Authority,
    monkeypatch: pytest.MonkeyPatch,
    changed: dict[str, str],
    said: str,
) -> None:
    other = authority.certify("other", HERE)["RAY_TLS_SERVER_KEY"]
    settings = authority.certify("node", HERE) | changed
    use(
        monkeypatch,
        {name: other if value == "OTHER" else value for name, value in settings.items()},
    )
    with pytest.raises(NodeLostError) as raised:
        NodeProcess.start(arena_bytes=MIB)
    assert said in str(raised.value)
    with pytest.raises(ControlError) as raised_here:
        ControlClient(b"f" * 32)
    assert said in str(raised_here.value)
