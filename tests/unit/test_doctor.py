"""What the doctor finds on machines and in clusters that are ill; the files of /proc are made."""

from __future__ import annotations

import errno
import os
import resource
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from hoplite_ray.cli import commands
from hoplite_ray.cli.checks import machine, members
from hoplite_ray.cli.checks.finding import Finding
from hoplite_ray.cli.cluster.places import Cluster, Place
from hoplite_ray.cli.cluster.survey import NodeReport, Survey
from hoplite_ray.cli.cluster.tables import columns, size
from hoplite_ray.config import Config, Memory, describe_small_arena, ray_arena_bytes
from hoplite_ray.control import control_pb2 as pb
from hoplite_ray.control.view import View
from hoplite_ray.errors import ControlError

GIB = 1 << 30
FILES = {
    "proc/meminfo": f"MemTotal: {16 * GIB >> 10} kB\nMemAvailable: {8 * GIB >> 10} kB\n",
    "proc/sys/fs/file-nr": "1000\t0\t100000\n",
    "proc/sys/vm/max_map_count": "65530\n",
    "proc/sys/net/ipv4/tcp_congestion_control": "cubic\n",
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A machine that is well."""
    for name, text in FILES.items():
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return tmp_path


def found(findings: list[Finding], about: str) -> Finding:
    """The only finding about that."""
    [only] = [each for each in findings if each.about == about]
    return only


def test_a_machine_that_is_well(root: Path) -> None:
    findings = {each.about: each for each in machine.checks(root)}
    assert findings["memory"].cause.startswith("8.0 GiB of 16.0 GiB are available")
    for about in ("Python", "Ray", "native module", "memory", "open files of all", "mappings"):
        assert findings[about].level == "ok", findings[about]


ILL = {
    "memory": ("proc/meminfo", "MemTotal: 1000000 kB\nMemAvailable: 1000 kB\n", "fail"),
    "open files of all": ("proc/sys/fs/file-nr", "99000\t0\t100000\n", "warn"),
    "mappings": ("proc/sys/vm/max_map_count", "1024\n", "warn"),
    "congestion control": ("proc/sys/net/ipv4/tcp_congestion_control", "reno\n", "warn"),
}


@pytest.mark.parametrize("about", ILL)
def test_a_machine_that_is_ill_is_told_what_to_do(root: Path, about: str) -> None:
    name, text, level = ILL[about]
    (root / name).write_text(text)
    finding = found(list(machine.checks(root)), about)
    assert (finding.level, bool(finding.next_step)) == (level, True)


@pytest.mark.parametrize("about", ["open files of all", "mappings", "congestion control"])
def test_what_a_sandbox_does_not_tell_is_a_line(root: Path, about: str) -> None:
    name, _, _ = ILL[about]
    (root / name).unlink()
    finding = found(list(machine.checks(root)), about)
    assert (finding.level, finding.cause) == (
        "ok",
        f"not known here: /{name}: No such file or directory",
    )


@pytest.mark.parametrize("record", ["3", "[]", "null", '"text"', "{}", "{"])
def test_a_node_json_that_is_none_is_no_record(tmp_path: Path, record: str) -> None:
    (tmp_path / "node.json").write_text(record)
    assert Place.read(tmp_path) == Place(tmp_path, None, is_running=False)


def test_a_whole_id_names_its_node() -> None:
    nodes = [report(each) for each in (1, 0x10, 0x1F)]
    seen = Survey(View(3), nodes)
    for name, node in (("1", nodes[0]), ("1F", nodes[2]), (nodes[1].control, nodes[1])):
        assert commands._find_node(seen, name) is node
    for name, words in (("2", "names no node"), ("", "names 3 nodes")):
        with pytest.raises(ControlError, match=f"{words}; there are 1, 10, 1f"):
            commands._find_node(seen, name)


def test_a_bad_variable_is_a_line(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOPLITE_RAY_ARENA_BYTES", "much")
    finding = found(list(machine.checks(root)), "memory")
    assert (finding.level, "HOPLITE_RAY_ARENA_BYTES='much'" in finding.cause) == ("fail", True)


@pytest.mark.parametrize(
    ("limit", "level"),
    [(100, "fail"), (1024, "warn"), (65536, "ok"), (resource.RLIM_INFINITY, "ok")],
)
def test_open_files(limit: int, level: str) -> None:
    assert machine._open_files(limit).level == level


@pytest.mark.parametrize(
    ("running", "level"), [((3, 10, 9), "fail"), ((3, 11, 0), "ok"), ((3, 15, 0), "fail")]
)
def test_pythons(running: tuple[int, ...], level: str) -> None:
    assert machine._python(running).level == level


@pytest.mark.parametrize(
    ("installed", "level"), [(None, "fail"), ("2.59.1", "fail"), ("2.60.0", "ok"), ("3.0", "fail")]
)
def test_rays(installed: str | None, level: str) -> None:
    assert machine._ray(installed).level == level


@pytest.mark.parametrize(
    ("call", "check"), [("memfd_create", machine._memfd), ("pidfd_open", machine._pidfd)]
)
def test_a_seccomp_profile_that_refuses_a_call(
    call: str, check: Callable[[], Finding], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (check().level, check().cause) == ("ok", f"{call} works")

    def refuse(*_: object) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, call, refuse)
    finding = check()
    assert (finding.level, finding.cause) == ("fail", f"{call}: Operation not permitted")
    assert f"allow {call} in the seccomp profile" in finding.next_step


def test_the_ranges_are_those_of_the_package() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]

    def text(wanted: tuple[tuple[int, int], tuple[int, int]]) -> str:
        low, high = (".".join(map(str, each)) for each in wanted)
        return f">={low},<{high}"

    assert project["requires-python"] == text(machine.PYTHON)
    assert f"ray{text(machine.RAY)}" in project["dependencies"]


def test_a_native_module_that_does_not_load(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "hoplite_ray._native", None)
    finding = machine._native()
    assert (finding.level, "does not load" in finding.cause) == ("fail", True)


def report(node_id: int, **changes: object) -> NodeReport:
    """A node that is well, but for the changes."""
    node = NodeReport(node_id, 1, f"10.0.0.{node_id}:5", (f"10.0.0.{node_id}:7",), state="serving")
    node.counters = {"view_epoch": 3, "arena_bytes": GIB, "arena_bytes_used": 0}
    node.description = pb.Description(release="1", wire_version=2, python="3.11", pid=1)
    node.skew_error_s = 0.001
    for name, value in changes.items():
        setattr(node, name, value)
    return node


def of(
    *nodes: NodeReport,
    root: Path = Path("/"),
    cluster: Cluster | None = None,
    probes: list[list[pb.Probe] | ControlError] | None = None,
) -> list[Finding]:
    """What is found of these nodes."""
    cluster = cluster or Cluster("test", b"", ())
    if probes is None:
        probes = [[] for node in nodes if node.answers]
    return list(members.checks(cluster, Survey(View(3), list(nodes)), probes, root))


def test_nodes_that_are_well() -> None:
    findings = of(report(1), report(2))
    assert {each.level for each in findings} == {"ok"}


@pytest.mark.parametrize(
    ("skew_s", "error_s", "level"),
    [(0.4, 0.0, "ok"), (-1.0, 0.0, "warn"), (1.0, 0.9, "ok"), (300.0, 0.1, "warn")],
)
def test_clocks(skew_s: float, error_s: float, level: str) -> None:
    finding = found(of(report(1, skew_s=skew_s, skew_error_s=error_s)), "clock")
    assert finding.level == level
    assert ("behind" if skew_s < 0 else "ahead of") in finding.cause


DIFFERENT: dict[str, tuple[Callable[[pb.Description], object], str, str]] = {
    "releases": (lambda d: setattr(d, "wire_version", 1), "fail", "wire version 1 on 2"),
    "Pythons": (lambda d: setattr(d, "python", "3.12"), "warn", "3.11 on 1; 3.12 on 2"),
    "options": (
        lambda d: d.options.update(a=1, trace=1, when_full=2),
        "fail",
        "all defaults on 1; a=1 when_full=spill on 2",
    ),
    "congestion controls": (lambda d: setattr(d, "congestion_control", "bbr"), "warn", "bbr on 2"),
}


@pytest.mark.parametrize("about", DIFFERENT)
def test_what_differs_is_named_with_the_nodes(about: str) -> None:
    change, level, words = DIFFERENT[about]
    other = report(2)
    assert other.description is not None
    change(other.description)
    finding = found(of(report(1), other), about)
    assert (finding.level, words in finding.cause) == (level, True)


def test_a_node_that_is_late_with_the_view() -> None:
    late = report(2, counters={"view_epoch": 2, "arena_bytes": 1, "arena_bytes_used": 0})
    finding = found(of(report(1), late), "view")
    assert (finding.level, finding.cause) == ("warn", "node 2/1 at 10.0.0.2:5 have not view 3")


@pytest.mark.parametrize("state", ["minority", "silent", "refused", "failing", "dead", "outside"])
def test_every_bad_state_has_a_next_step(state: str) -> None:
    finding = found(of(report(1, state=state, why="reason")), "node 1/1 at 10.0.0.1:5")
    assert finding.level == "fail"
    assert "reason" in finding.cause and finding.next_step


def test_ways_between_the_nodes() -> None:
    blocked = pb.Probe(node_id=2, incarnation=1, rail_failures=["10.0.0.2:7: timed out"])
    gone = pb.Probe(node_id=3, incarnation=1, control_failure="10.0.0.3:5 is silent")
    well = pb.Probe(node_id=1, incarnation=1)
    findings = of(
        report(1),
        report(2),
        report(3, state="silent"),
        probes=[[blocked, gone], [well, gone]],
    )
    ports = [each for each in findings if each.about == "ports"]
    assert [each.level for each in ports] == ["fail", "fail"]
    assert ports[0].cause == (
        "node 1/1 at 10.0.0.1:5 does not reach node 2/1 at 10.0.0.2:5: 10.0.0.2:7: timed out"
    )
    assert ports[1].cause == "1 of 2 ways between the nodes are open"
    opened = pb.Probe(node_id=2, incarnation=1)
    summary = found(of(report(1), report(2), probes=[[opened, gone], [well]]), "ports")
    assert (summary.level, summary.cause) == ("ok", "2 of 2 ways between the nodes are open")
    silent = found(of(report(1), probes=[ControlError("Probe at x: too late")]), "ports")
    assert (silent.level, "too late" in silent.cause) == ("warn", True)


@pytest.mark.parametrize(
    ("arena", "used", "threshold", "level"),
    [(4, 0, None, "ok"), (9, 0, None, "fail"), (9, 2, None, "ok"), (7, 0, 0.9, "warn")],
)
def test_arenas(root: Path, arena: int, used: int, threshold: float | None, level: str) -> None:
    counters = {"view_epoch": 3, "arena_bytes": arena * GIB, "arena_bytes_used": used * GIB}
    local = report(1, directory=Path("/nowhere"), counters=counters)
    cluster = Cluster("test", b"", (), ray={"memory_threshold": threshold})
    assert found(of(local, root=root, cluster=cluster), "arenas").level == level


def test_directories_of_dead_raylets(tmp_path: Path) -> None:
    left = Place(tmp_path / "left", None, is_running=False)
    runs = Place(tmp_path / "runs", None, is_running=True)
    findings = of(report(1), cluster=Cluster("test", b"", (), stale=(left, runs)))
    assert found(findings, f"directory {left.directory}").level == "warn"
    assert found(findings, f"directory {runs.directory}").level == "fail"


def test_a_journal_that_goes_while_it_is_looked_at(tmp_path: Path) -> None:
    """The steward renames and removes them: of one that is gone there is a name, and no size."""
    (tmp_path / "journal").mkdir()
    (tmp_path / "journal/1-a").symlink_to(tmp_path / "gone")
    findings = list(members._directory(Place(tmp_path, {"control": ""}, is_running=True)))
    assert [each.level for each in findings] == ["ok"]


def test_journals_that_have_grown(tmp_path: Path) -> None:
    (tmp_path / "journal").mkdir()
    with open(tmp_path / "journal/1-a", "wb") as file:
        file.truncate(100 << 20)
    place = Place(tmp_path, None, is_running=True)
    finding = found(of(cluster=Cluster("test", b"", (), places=(place,))), f"directory {tmp_path}")
    assert (finding.level, finding.cause) == ("warn", "1 journals have 100.0 MiB")


def test_columns_and_sizes() -> None:
    table = columns(
        ("NAME", "SIZE"), [("a", "1.0 MiB"), ("long", "2 B")], right=frozenset({"SIZE"})
    )
    assert table.splitlines() == ["NAME     SIZE", "a     1.0 MiB", "long      2 B"]
    assert [size(each) for each in (0, 1023, 1536, 5 << 40, 5 << 50)] == [
        "0 B",
        "1023 B",
        "1.5 KiB",
        "5.0 TiB",
        "5120.0 TiB",
    ]


def test_a_small_arena_is_printed_by_the_rule_of_a_node_under_ray(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RAY_memory_usage_threshold", raising=False)
    monkeypatch.delenv("HOPLITE_RAY_ARENA_BYTES", raising=False)
    total, available = 20 * GIB, 3 * GIB  # 2 GiB are spare below 95 % use
    text = f"MemTotal: {total >> 10} kB\nMemAvailable: {available >> 10} kB\n"
    (root / "proc/meminfo").write_text(text)
    cause = found(list(machine.checks(root)), "memory").cause
    assert "gets an arena of 1.0 GiB: the arena has" in cause
    assert f"instead of {total // 5}, 20 % of memory" in cause
    assert cause.endswith("free memory, or set arena_bytes")


def test_an_arena_of_a_fifth_is_not_called_small() -> None:
    memory = Memory(16 * GIB, 8 * GIB)
    size_bytes = ray_arena_bytes(Config(), memory)
    assert size_bytes >= memory.total_bytes // 5
    assert describe_small_arena(Config(), memory, size_bytes) == ""
    assert describe_small_arena(Config(arena_bytes=GIB), memory, GIB) == ""
