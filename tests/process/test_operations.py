"""The commands of docs/reference/cli.md run as they stand, and answer in the words of the page.

Names of nodes, objects and directories are those of real nodes; an answer is compared by its shape.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from signal import SIGINT

import pytest

from hoplite_ray.launch import NodeProcess
from tests.process.command import UNHURRIED, at, hoplite_ray, stopped
from tests.process.nodes import MIB, WAIT_S, MakeNodes, Nodes, numbers

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "cli.md"
COMMANDS = {
    match[1]: match[2]
    for match in re.finditer(r"^```\n\$ (hoplite-ray .*)\n((?s:.*?))^```", PAGE.read_text(), re.M)
}
_HEADING = re.compile(r"^ *[A-Z]+(?: +[A-Z]+)+$", re.M)
_ID = re.compile(r"\b[0-9a-f]{8,}\b")
_TOPIC = re.compile(r"^(?:ok|warn|fail) +([a-z][a-zA-Z -]*?)(?: [0-9a-f]{8,}/\d+ at \S+)?: ", re.M)


@pytest.fixture(scope="module")
def three() -> Iterator[Nodes]:
    """Three nodes that declare no peer dead while a test has stopped one."""
    patient = {"liveness_dead_ms": 60_000, "liveness_cut_ms": 60_000}
    nodes = Nodes(3, arena_bytes=32 * MIB, options=patient)
    nodes.view(0, size=3)
    nodes.put(0, numbers(3 * MIB))
    yield nodes
    nodes.end()


def command(verb: str) -> tuple[str, str]:
    """The page's one command of a verb, and its answer there."""
    (found,) = [line for line in COMMANDS if line.split()[1] == verb]
    return found, COMMANDS[found]


def asked(line: str, *nodes: NodeProcess, **words: str) -> list[str]:
    """The arguments of a command of the page, at these nodes instead of its own."""
    own = shlex.split(re.sub(r"--directory \S+", "", line))[1:]
    return [*(words.get(word, word) for word in own), *at(*nodes)]


def run(line: str, *nodes: NodeProcess, **words: str) -> str:
    limit = () if "--timeout-s" in line or "dashboard" in line else UNHURRIED
    return hoplite_ray(*asked(line, *nodes, **words), *limit).out


def headings(text: str) -> list[list[str]]:
    return [line.split() for line in _HEADING.findall(text)]


def verbs(life: str) -> set[str]:
    """The words of a life's moments: `12.457  6cf2eb3cd8e6c8af  grants …`."""
    return set(re.findall(r"^ *[\d.]+ +[0-9a-f]+ +(\w+)", life, re.M))


def shape(text: str) -> str:
    """An answer without what is of one machine or one moment."""
    text = _ID.sub("ID", re.sub(r"token=\S{43}$", "token=T", text, flags=re.M))
    return re.sub(r"\d+(\.\d+)*(:\d+)?", "N", text)


@pytest.mark.parametrize("verb", ["status", "objects"])
def test_a_table_has_the_columns_of_the_page(three: Nodes, verb: str) -> None:
    line, told = command(verb)
    with stopped(three.processes[1]):
        said = run(line, three.processes[0])
    assert headings(said) == headings(told) != []


def test_top_has_the_tables_of_the_page(three: Nodes) -> None:
    line, told = command("top")
    first, second, _ = three.processes
    # An object whose home is frozen too has no known sender; not all of twelve are such objects.
    object_ids = [three.put(0, numbers(MIB, seed)) for seed in range(12)]
    with stopped(first):
        gets = [three[1].begin_get(object_id) for object_id in object_ids]
        for _ in range(5):  # the frozen one costs each look its limit, which a busy one may miss
            said = run(line.replace("--timeout-s 60", "--timeout-s 4"), second)
            if headings(said) == headings(told):
                break
    for get in gets:
        get.result(WAIT_S)
    assert headings(said) == headings(told) != []


def test_the_doctor_looks_at_what_the_page_says(three: Nodes) -> None:
    line, told = command("doctor")
    with stopped(three.processes[1]):
        said = run(line, *three.processes[:2])
    assert set(_TOPIC.findall(told)) <= set(_TOPIC.findall(said))


def test_trace_tells_a_life_as_the_page_does(three: Nodes) -> None:
    line, told = command("trace")
    object_id = three.put(0, numbers(3 * MIB))
    three.get(1, object_id)
    said = run(line, three.processes[0], **{line.split()[2]: object_id.hex()[:10]})
    assert headings(said) == headings(told) != []
    assert {"has", "put", "asks", "sends", "first"} <= verbs(told) & verbs(said)


def test_web_prints_an_address_like_the_one_of_the_page(three: Nodes) -> None:
    line, told = command("web")
    started = [sys.executable, "-m", "hoplite_ray.cli", *asked(line, three.processes[0])]
    with subprocess.Popen(started, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        said = running.stdout.readline()
        running.send_signal(SIGINT)
    assert shape(said) == shape(told)


def test_a_node_is_drained_or_says_what_it_still_holds(cluster: MakeNodes) -> None:
    nodes = cluster(0)
    for arena_bytes in (16 * MIB, 16 * MIB, 64 * MIB):
        nodes.add(arena_bytes=arena_bytes)
    nodes.view(0, size=3)
    nodes.put(2, numbers(40 * MIB))
    for line, told in COMMANDS.items():
        if line.split()[1] != "drain":
            continue
        victim = nodes.processes[1 if "is drained" in told else 2]
        said = run(line, nodes.processes[0], **{line.split()[2]: f"{victim.node_id:x}"})
        assert shape(said) == shape(told)


@pytest.mark.parametrize(
    ("verb", "file", "part"),
    [("dashboard", "hoplite.json", '"panels"'), ("alerts", "hoplite.yaml", "rules:")],
)
def test_a_file_is_written_where_the_page_says(
    tmp_path: Path, verb: str, file: str, part: str
) -> None:
    line, _ = command(verb)
    folder = str(Path(sys.executable).parent)
    path = os.pathsep.join([folder, os.environ["PATH"]])
    subprocess.run(["bash", "-c", line], cwd=tmp_path, env={**os.environ, "PATH": path}, check=True)
    assert part in (tmp_path / file).read_text()


def test_all_commands_of_the_page_are_run_here() -> None:
    assert {line.split()[1] for line in COMMANDS} == {
        "status",
        "objects",
        "top",
        "web",
        "trace",
        "drain",
        "doctor",
        "dashboard",
        "alerts",
        "options",  # of Ray: in tests/ray/test_command.py
    }
    page = PAGE.read_text()
    unmarked = re.findall(r"^```(\w*)$", page, re.M)[::2].count("")
    assert len(COMMANDS) == page.count("\n$ ") == unmarked
