"""hop.Table in a cluster: puts, cuts and watches of many processes, and deaths of most of them."""

from __future__ import annotations

import asyncio
import inspect
import itertools
import json
import logging
import os
import re
import signal
import tempfile
import time
from pathlib import Path
from textwrap import dedent
from typing import Any

import numpy as np
import pytest
import ray

import hoplite_ray as hop
from hoplite_ray.plugin.node.start import NodePlace, node_number
from hoplite_ray.plugin.process.attachment import attachment
from hoplite_ray.plugin.seams import table as seams_table
from hoplite_ray.plugin.surface.api import encode_value
from hoplite_ray.plugin.tables.operations import Operations
from hoplite_ray.plugin.tables.snapshot import Snapshot
from hoplite_ray.plugin.tables.watching import Watch
from hoplite_ray.tables.log import Options, log_prefix, state_prefix, value_ids
from tests.ray.raycluster import LARGE, RayCluster, eventually, is_gone
from tests.ray.table_actors import SMALL, Handler, Reader, Writer

_logger = logging.getLogger(__name__)

CUTS = int(os.environ.get("HOPLITE_TABLE_CUTS", "50"))  # of each reader, beside each kill
KILLS = int(os.environ.get("HOPLITE_TABLE_KILLS", "1"))  # of each kind of process

_EXAMPLE = re.compile(r"^Example:\n\n((?:(?: {4}.*)?(?:\n|\Z))+)", re.M)
HEADINGS = ("Args", "Returns", "Raises", "Cost", "Example")
VERBS = (
    *("put", "put_all", "remove", "get", "find", "keys", "snapshot", "watch"),
    *("trigger", "add_handler", "remove_handler"),
)


def ones(value: float, elements: int = SMALL) -> Any:
    return np.full(elements, value, np.float32)


def test_each_process_reads_what_another_has_put(cluster: RayCluster) -> None:
    table = hop.Table("shared")
    reader = Reader.options(**cluster.on(1)).remote(table)
    first = table.put("a", ones(1, LARGE))
    assert ray.get(reader.read.remote("a"))[0] == 1
    second = table.put("a", ones(2))
    assert ray.get(reader.read.remote("a"))[0] == 2
    assert ray.get(reader.read.remote("a", version=first.number))[0] == 1
    assert ray.get(reader.read_async.remote("a", at=first.time_s))[0] == 1
    assert ray.get(reader.read_async.remote("a", at=second.time_s))[0] == 2
    assert ray.get(reader.read.remote("a", at=time.time()))[0] == 2


def test_each_value_has_two_copies_before_it_can_be_read(cluster: RayCluster) -> None:
    table = hop.Table("copies")
    version = table.put("a", ones(1, LARGE))
    here = ray.get_runtime_context().get_node_id()
    assert version.nodes[0] == node_number(here)
    others = {node_number(each["NodeID"]) for each in ray.nodes()} - {version.nodes[0]}
    assert len(version.nodes) == 2 and version.nodes[1] in others
    assert len(hop.Table("copies", copies=1).put("b", ones(1)).nodes) == 1
    assert len(hop.Table("copies", copies=3).put("c", ones(1)).nodes) == 3


def test_missing_and_dropped_versions_are_told_apart(cluster: RayCluster) -> None:
    table = hop.Table("errors", keep=1, keep_s=0)
    with pytest.raises(hop.VersionMissingError, match="the table has no key 'a'"):
        table.get("a")
    first = table.put("a", ones(1))
    table.put("a", ones(2))
    with pytest.raises(hop.VersionDroppedError, match="is kept no longer"):
        table.get("a", version=first.number)
    assert table.remove("a").is_removal
    with pytest.raises(KeyError):
        table.get("a")
    with pytest.raises(hop.InvalidArgumentError, match=r"at is .* in the future"):
        table.get("a", at=time.time() + 60)
    with pytest.raises(hop.InvalidArgumentError, match=r"keeps 1 versions .* take another name"):
        hop.Table("errors", keep=2)


def test_a_table_of_another_process_with_other_options_is_refused(cluster: RayCluster) -> None:
    hop.Table("agreed").put("a", ones(1))

    @ray.remote(num_cpus=0)
    def open_other() -> str:
        try:
            hop.Table("agreed", keep=7).get("a")
        except hop.InvalidArgumentError as error:
            return str(error)
        return ""

    assert "keeps 2 versions" in ray.get(open_other.remote())


def test_the_twins_do_the_same(cluster: RayCluster) -> None:
    table = hop.Table("twins")

    async def use() -> None:
        first = await table.put_async("a", ones(1, LARGE))
        await table.put_all_async({"a": ones(2), "b": ones(2)})
        with await table.snapshot_async() as cut:
            await table.remove_async("b")
            assert (await cut.get_async("b"))[0] == 2
        assert (await table.get_async("a", version=first.number))[0] == 1
        assert await table.keys_async() == ["a"]
        assert (await table.find_async("a")).size_bytes == 4 * SMALL

    asyncio.run(use())


def test_a_superseded_value_leaves_nothing_behind(cluster: RayCluster) -> None:
    table = hop.Table("swept", keep=1, keep_s=0)
    versions = [table.put("a", ones(value, LARGE)) for value in range(3)]
    for version in versions[:2]:
        for object_id in value_ids("swept", version.writer, version.value, 2):
            assert eventually(lambda each=object_id: is_gone(each))
    assert table.get("a")[0] == 2


def test_the_values_of_a_process_that_dies_before_its_put_ends_are_deleted(
    cluster: RayCluster,
) -> None:
    options = Options(writer_us=2_000_000)
    Operations("orphans", options, 2).open().follower.read().result(60)  # and waits from now on

    @ray.remote(num_cpus=0, max_retries=0)
    def store_and_die() -> None:
        ops = Operations("orphans", options, 2)
        here = ops.open()
        given = here.follower.numbers(2).result(60)
        values = [encode_value(ones(1, LARGE))] * 2
        here.values.store(given.writer, given.numbers, values, 2, None)
        Path(written).write_text(json.dumps([given.writer, given.numbers]))
        os.kill(os.getpid(), signal.SIGKILL)

    with tempfile.TemporaryDirectory() as directory:
        written = str(Path(directory, "given.json"))
        with pytest.raises(ray.exceptions.WorkerCrashedError):
            ray.get(store_and_die.remote())
        writer, numbers = json.loads(Path(written).read_text())
    for number in numbers:
        for object_id in value_ids("orphans", writer, number, 2):
            assert eventually(lambda each=object_id: is_gone(each), within_s=60)


@pytest.mark.slow  # test_tables_follower.py has it with threads
def test_the_log_stays_short(cluster: RayCluster) -> None:
    table = hop.Table("short")
    for _ in range(700):
        table.remove("a")
    values = seams_table.KeyValues(ray.get_runtime_context().gcs_address)
    assert eventually(lambda: len(values.keys(log_prefix("short"))) < 600)
    assert len(values.keys(state_prefix("short"))) <= 2


def test_values_that_are_sent_reach_one_handler_and_leave_nothing(cluster: RayCluster) -> None:
    table = hop.Table("sent")
    handlers = [Handler.options(**cluster.on(node)).remote() for node in range(3)]
    for handler in handlers:
        table.add_handler("images/", handler)
    keys = [f"images/{number}" for number in range(8)]
    first = {key: table.trigger(key, ones(1)) for key in keys}
    assert first == {key: table.trigger(key, ones(2)) for key in keys}
    assert len(set(first.values())) > 1
    in_turn = [table.trigger(keys[0], 1, route="balanced") for _ in range(6)]
    assert in_turn[:3] == in_turn[3:] and len(set(in_turn)) == 3
    assert table.keys() == []
    dead = first[keys[0]]
    os.kill(dead, signal.SIGKILL)
    later = {key: table.trigger(key, ones(3)) for key in keys}
    assert dead not in later.values()
    assert {key: pid for key, pid in first.items() if pid != dead}.items() <= later.items()
    for handler in handlers:
        table.remove_handler("images/", handler)
    with pytest.raises(hop.HopliteError, match=r"no handler for key 'images/0' that runs: add"):
        table.trigger(keys[0], 1)


def test_a_handler_has_its_errors_and_a_wrong_one_is_refused(cluster: RayCluster) -> None:
    table, handler = hop.Table("refused"), Handler.remote()

    async def send() -> None:
        await table.add_handler_async("", handler, method="fail")
        with pytest.raises(ValueError, match="key 'a' is wrong"):
            await table.trigger_async("a", 1)
        await table.remove_handler_async("", handler)

    asyncio.run(send())
    with pytest.raises(hop.InvalidArgumentError, match="has no method 'handel'"):
        table.add_handler("", handler, method="handel")
    with pytest.raises(hop.InvalidArgumentError, match="it takes 'key' or 'balanced'"):
        table.trigger("a", 1, route="any")  # type: ignore[arg-type]
    wrong: Any = 7
    with pytest.raises(TypeError, match="a handler is an actor, not a int"):
        table.add_handler("", wrong)
    with pytest.raises(TypeError, match="prefix is a int"):
        table.watch(wrong)


class Crew:
    """Writers of a table, readers that watch it, and verbs that kill each kind of process.

    A spare reader is there before another one is killed, because a process starts slowly.
    """

    def __init__(self, cluster: RayCluster, table: hop.Table, *, has_spare: bool) -> None:
        self.cluster = cluster
        self.table = table
        self.writers = [self.start_writer(0, SMALL), self.start_writer(1, LARGE, pause_s=0.1)]
        self.readers = [self.start_reader(0), self.start_reader(2)]
        self.spare = self.start_reader(2) if has_spare else None
        self.heard: tuple[list[Any], list[Any]] = ([], [])
        self.extra_nodes = itertools.count(10)
        ray.get([reader.watch.remote(0) for reader in self.readers])
        self.reader_pid = ray.get(self.readers[1].pid.remote())  # it answers nothing while it reads

    def start_writer(self, node: int, elements: int, pause_s: float = 0.0) -> Any:
        options = self.cluster.on(node)
        writer = Writer.options(**options).remote(self.table, elements, pause_s)
        ray.get(writer.start.remote())
        return writer

    def start_reader(self, node: int) -> Any:
        return Reader.options(**self.cluster.on(node)).remote(self.table)

    def hear(self) -> None:
        """Take what the readers have heard of since the last call."""
        for heard, reader in zip(self.heard, self.readers, strict=True):
            heard += ray.get(reader.take_heard.remote())

    def has_heard(self, number: int) -> bool:
        self.hear()
        return all(heard and heard[-1][1] >= number for heard in self.heard)

    def kill_writer(self) -> None:
        os.kill(ray.get(self.writers[0].pid.remote()), signal.SIGKILL)
        self.writers[0] = self.start_writer(0, SMALL)

    def kill_reader(self) -> None:
        """Another one watches on after the last version that this one has handed on."""
        os.kill(self.reader_pid, signal.SIGKILL)
        self.readers[1], self.spare = self.spare, self.start_reader(2)
        ray.get(self.readers[1].watch.remote(self.heard[1][-1][1]))
        self.reader_pid = ray.get(self.readers[1].pid.remote())

    def kill_steward(self) -> None:
        steward = attachment().steward
        pid = ray.get(steward.__ray_call__.remote(lambda self: os.getpid()))
        os.kill(pid, signal.SIGKILL)

    def kill_node(self) -> None:
        directory = ray.get(self.writers[1].directory.remote())
        os.kill(json.loads(Path(directory, "node.json").read_text())["pid"], signal.SIGKILL)

    def kill_ray_node(self) -> None:
        """It has a writer, a steward and a node process of its own."""
        number = next(self.extra_nodes)
        node = self.cluster.add_node(f"n{number}")
        writer = self.start_writer(number, SMALL)
        assert eventually(lambda: ray.get(writer.count.remote()) > 0, within_s=60)
        self.cluster.crash_node(node)


@pytest.mark.parametrize(
    "kinds",
    [
        ("steward", "node"),
        pytest.param(("writer", "steward", "node", "reader"), marks=pytest.mark.slow),
        pytest.param(("ray_node",), marks=pytest.mark.slow),  # a Ray node starts in 10 s
    ],
    ids="-".join,
)
@pytest.mark.timeout(120 + KILLS * CUTS)
def test_cuts_stay_whole_while_all_kinds_of_processes_are_killed(
    cluster: RayCluster, kinds: tuple[str, ...]
) -> None:
    table = hop.Table("killed-" + "-".join(kinds), keep_s=3)
    table.put_all({"x": ones(0), "y": ones(0)})
    crew = Crew(cluster, table, has_spare="reader" in kinds)
    reads, compared = 0, 0
    for kind in KILLS * kinds:
        asked = [reader.read_pairs.remote(CUTS) for reader in crew.readers]
        getattr(crew, f"kill_{kind}")()
        for found in asked:
            try:
                ray.get(found)
            except ray.exceptions.ActorDiedError:
                assert kind == "reader"
                continue
            reads += CUTS
        for time_s, value in ray.get(crew.readers[1].read_pairs.remote(5)):
            seen = ray.get(crew.readers[0].read_at.remote(time_s))  # by another process
            assert seen in (value, None)
            compared += seen is not None
        crew.hear()
    counts = ray.get([writer.stop.remote() for writer in crew.writers])
    assert min(counts) > 0 and compared > 0
    assert reads >= CUTS * KILLS * (2 * len(kinds) - kinds.count("reader"))
    end = table.put("end", ones(1)).number
    assert eventually(lambda: crew.has_heard(end), within_s=60)
    numbers = [number for _, number in crew.heard[0]]
    assert numbers == sorted(set(numbers))
    assert crew.heard[0] == crew.heard[1]
    _logger.info("%d cuts, %d puts, %d versions heard of", reads, sum(counts), len(numbers))


def test_a_value_outlives_the_node_process_that_has_its_first_copy(cluster: RayCluster) -> None:
    table = hop.Table("outlived")

    @ray.remote(num_cpus=0)
    def put_there() -> tuple[Any, str]:
        version = table.put("a", ones(7, LARGE))
        return version, str(NodePlace.of_this_process().directory)

    version, directory = ray.get(put_there.options(**cluster.on(1)).remote())
    os.kill(json.loads(Path(directory, "node.json").read_text())["pid"], signal.SIGKILL)
    reader = Reader.options(**cluster.on(2)).remote(table)
    assert ray.get(reader.read.remote("a"))[0] == 7
    lost = value_ids("outlived", version.writer, version.value, 2)[0]
    # The reader has the lost copy put on another node.
    assert eventually(lambda: not is_gone(lost), within_s=60)


@pytest.mark.parametrize("verb", VERBS)
def test_the_docstring_of_a_verb_is_complete_and_runs(cluster: RayCluster, verb: str) -> None:
    function = getattr(hop.Table, verb)
    text = inspect.getdoc(function) or ""
    places = [text.find(f"\n{heading}:") for heading in HEADINGS]
    assert -1 not in places and places == sorted(places)
    for name in list(inspect.signature(function).parameters)[1:]:
        assert re.search(rf"\b{name}\b.*?:", text[places[0] : places[1]]), name
    run_example(function)
    twin = getattr(hop.Table, f"{verb}_async", None)
    if verb != "watch":
        assert (inspect.getdoc(twin) or "").startswith(f"Like `{verb}`, but awaitable")


@pytest.mark.parametrize(
    "described", [hop.Table, Snapshot.get, Watch, Watch.next, Watch.close], ids=str
)
def test_an_example_runs(cluster: RayCluster, described: Any) -> None:
    run_example(described)


def run_example(described: Any) -> None:
    found = _EXAMPLE.search(inspect.getdoc(described) or "")
    assert found is not None
    names = {"__name__": "example", "hop": hop, "np": np, "ray": ray, "time": time}
    exec(compile(dedent(found[1]), "<example>", "exec"), names)
