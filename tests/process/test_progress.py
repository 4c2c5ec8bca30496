"""The line of a long get: visible in a terminal or a notebook, and gone at its end.

The sender is stopped, so that a get takes as long as the test wants.
"""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import ExitStack
from types import SimpleNamespace

import nbformat
import pytest
from jupyter_client.manager import KernelManager
from nbclient import NotebookClient

from hoplite_ray.progress import Progress
from hoplite_ray.store import new_id
from tests.process.command import stopped
from tests.process.nodes import MIB, WAIT_S, MakeNodes, Nodes, numbers
from tests.process.terminal import terminal

GET = """
import threading, sys
from hoplite_ray.store import Store
store = Store.attach({socket!r})
try:
    print("got", store.get(bytes.fromhex({object_id!r})).nbytes)
except KeyboardInterrupt:
    print("interrupted")
print("threads", [t.name for t in threading.enumerate() if "progress" in t.name], flush=True)
"""


@pytest.fixture
def nodes(cluster: MakeNodes) -> Nodes:
    """Two nodes that declare no peer dead while a test has stopped one."""
    options = {"liveness_dead_ms": 60_000, "liveness_cut_ms": 60_000}
    made = cluster(2, arena_bytes=64 * MIB, options=options)
    made.view(0, size=2)
    return made


def program(nodes: Nodes, object_id: bytes) -> str:
    return GET.format(socket=nodes.processes[1].socket, object_id=object_id.hex())


def test_a_terminal_shows_a_long_get_and_is_clean_afterwards(nodes: Nodes) -> None:
    object_id = nodes.put(0, numbers(8 * MIB))
    with ExitStack() as windows:
        with stopped(nodes.processes[0]):  # before the program can have got anything
            window = windows.enter_context(terminal(program(nodes, object_id)))
            window.until(r"get of object \S+: (nothing has come after \d+ s|\[-+\] 0% of 8)")
        window.until(rf"got {8 * MIB}\r\n")
        window.until(r"threads \[\]")
        assert window.seen.partition("got ")[0].endswith(" \r")


def test_ctrl_c_leaves_nothing_behind(nodes: Nodes) -> None:
    with terminal(program(nodes, new_id())) as window:
        window.until(r"nothing has come after \d+ s")
        window.press("\x03")
        window.until(r"interrupted\r\n")
        window.until(r"threads \[\]")
        assert window.seen.partition("interrupted")[0].endswith(" \r")


def test_the_line_outlives_a_node_that_does_not_answer_for_a_while(nodes: Nodes) -> None:
    source = program(nodes, new_id()).replace("try:", "try:\n    print('attached', flush=True)")
    with terminal(source) as window:
        window.until("attached")
        with stopped(nodes.processes[1]):
            window.until("this machine's node does not answer")
        window.until(r"nothing has come after \d+ s")
        window.press("\x03")
        window.until(r"threads \[\]")


AGAIN = """
print(sys.stdin.readline().strip(), store.get(bytes.fromhex({object_id!r})).nbytes)
"""


def test_after_ctrl_c_the_same_get_works(nodes: Nodes) -> None:
    object_id = new_id()
    source = program(nodes, object_id) + AGAIN.format(object_id=object_id.hex())
    with terminal(source) as window:
        window.until(r"nothing has come after \d+ s")
        window.press("\x03")
        window.until(r"threads \[\]")
        nodes[0].put(object_id, numbers(8 * MIB))
        window.press("again\n")
        window.until(rf"again {8 * MIB}\r\n")


@pytest.mark.parametrize(
    "gather",
    ["store.gather({ids})", "asyncio.run(store.gather_async({ids}))"],
    ids=["sync", "async"],
)
def test_a_gather_says_how_many_have_come(nodes: Nodes, gather: str) -> None:
    ids = [nodes.put(rank, numbers(8 * MIB, seed)) for seed, rank in enumerate((0, 1, 0))]
    gather = gather.format(ids=[each.hex() for each in ids]).replace("[", "map(bytes.fromhex, [")
    gather = "len(" + gather.replace("]", "])") + ")"
    source = "import asyncio\n" + program(nodes, ids[0])
    source = source.replace(f"store.get(bytes.fromhex({ids[0].hex()!r})).nbytes", gather)
    with ExitStack() as windows:
        with stopped(nodes.processes[0]):
            window = windows.enter_context(terminal(source))
            window.until(r"get of 3 objects: 1 of 3 have come( after \d+ s|; \[-+\] 0% of)")
        window.until(r"got 3\r\n")
        window.until(r"threads \[\]")
        assert window.seen.partition("got ")[0].endswith(" \r")


WATCHED = """
import asyncio, sys, threading
from hoplite_ray.store import Store
shown, write = threading.Event(), sys.stderr.write
def watched(text):
    written = write(text)
    if "nothing has come" in text:
        shown.set()
    return written
sys.stderr.write = watched
store = Store.attach({socket!r})
{act}
print("threads", [t.name for t in threading.enumerate() if "progress" in t.name], flush=True)
"""
AWAITED = """
async def cancelled():
    get = asyncio.create_task(store.get_async(bytes.fromhex({object_id!r})))
    await asyncio.to_thread(shown.wait)
    get.cancel()
    try:
        await get
    except asyncio.CancelledError:
        print("cancelled")
{run}
"""
WAITED = """
get = store.begin_get(bytes.fromhex({object_id!r}))
threading.Thread(target=lambda: shown.wait() and get.cancel()).start()
get.wait()
"""


def watched(nodes: Nodes, act: str, **words: str) -> str:
    """A get of an object that is never put, until the line is shown."""
    act = act.format(object_id=new_id().hex(), **words)
    return WATCHED.format(socket=nodes.processes[1].socket, act=act)


def test_what_is_awaited_is_shown_as_well_and_goes_with_its_task(nodes: Nodes) -> None:
    with terminal(watched(nodes, AWAITED, run="asyncio.run(cancelled())")) as window:
        window.until(r"nothing has come after \d+ s")
        window.until(r"cancelled\r\n")
        window.until(r"threads \[\]")
        assert window.seen.partition("cancelled")[0].endswith(" \r")


def test_a_notebook_shows_what_it_awaits(nodes: Nodes) -> None:
    cells = [nbformat.v4.new_code_cell(watched(nodes, AWAITED, run="await cancelled()"))]
    notebook = nbformat.v4.new_notebook(cells=cells)
    NotebookClient(notebook, timeout=round(WAIT_S)).execute()
    told = "".join(each.get("text", "") for each in notebook.cells[0].outputs)
    assert "nothing has come" in told
    assert "cancelled\nthreads []" in told


def test_it_is_shown_to_nobody_else_unless_asked_for(nodes: Nodes) -> None:
    never = new_id()
    source = (
        program(nodes, never).replace(".get(", ".begin_get(").replace(").nbytes", ").wait(1.6)")
    )
    for wanted, is_shown in (({}, False), ({"HOPLITE_RAY_PROGRESS": "1"}, True)):
        ran = subprocess.run(
            [sys.executable, "-c", watched(nodes, WAITED) if is_shown else source],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, **wanted},
        )
        assert ("nothing has come" in ran.stderr) is is_shown, ran.stderr
    with terminal(source, HOPLITE_RAY_PROGRESS="0") as window:
        window.until("threads")
        assert "nothing has come" not in window.seen


def test_a_notebook_shows_it(nodes: Nodes) -> None:
    cells = [nbformat.v4.new_code_cell(watched(nodes, WAITED))]
    notebook = nbformat.v4.new_notebook(cells=cells)
    NotebookClient(notebook, timeout=round(WAIT_S)).execute()
    told = "".join(each.get("text", "") for each in notebook.cells[0].outputs)
    assert "nothing has come" in told
    assert "threads []" in told


def test_a_word_that_is_none_is_refused_at_once(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOPLITE_RAY_PROGRESS", "yes")
    with pytest.raises(ValueError, match="HOPLITE_RAY_PROGRESS='yes' is neither 0 nor 1"):
        nodes.add()


def test_a_cell_that_waits_is_interrupted_and_the_next_one_gets(nodes: Nodes) -> None:
    object_id = new_id()
    kernel = KernelManager(kernel_name="python3")
    kernel.start_kernel()
    try:
        client = kernel.blocking_client()
        client.start_channels()
        client.wait_for_ready(timeout=WAIT_S)
        waiting = client.execute(program(nodes, object_id))
        told = ""
        while "nothing has come" not in told:
            told += client.get_iopub_msg(timeout=WAIT_S)["content"].get("text", "")
        kernel.interrupt_kernel()
        ended = client.get_shell_msg(timeout=WAIT_S)
        while ended["parent_header"]["msg_id"] != waiting:  # such as another answer to "ready?"
            ended = client.get_shell_msg(timeout=WAIT_S)
        assert ended["content"]["status"] == "ok"  # it is caught
        nodes[0].put(object_id, numbers(8 * MIB))
        client.execute(program(nodes, object_id))
        while f"got {8 * MIB}\n" not in told:
            told += client.get_iopub_msg(timeout=WAIT_S)["content"].get("text", "")
        assert "interrupted\nthreads []\n" in told
        client.stop_channels()
    finally:
        kernel.shutdown_kernel(now=True)


def stripe(number: int, landed_mib: int, target_id: bytes = b"a") -> SimpleNamespace:
    return SimpleNamespace(
        target_id=target_id,
        stripe=number,
        stripe_count=2,
        landed_bytes=landed_mib * MIB,
        size_bytes=4 * MIB,
    )


def test_stripes_add_up() -> None:
    progress = Progress()
    assert str(progress) == "nothing has come after 0 s"
    progress.update([stripe(0, 1), stripe(1, 1)], 1.0)
    assert "25% of 8.0 MiB, 0.0 MiB/s" in str(progress)
    progress.update([stripe(1, 3)], 2.0)  # the other one has come
    assert "88% of 8.0 MiB, 1.5 MiB/s, 1 s left" in str(progress)
    assert progress.text(4).startswith("[###-] 88% of")
    assert progress.text(3).startswith("88% of")


def test_objects_add_up() -> None:
    progress = Progress(3)
    progress.update([], 1.0, ended=1)
    assert str(progress) == "1 of 3 have come after 1 s"
    progress.update([stripe(0, 2), stripe(1, 2), stripe(0, 4, b"b")], 2.0, ended=1)
    assert "1 of 3 have come; [##########----------] 50% of 16.0 MiB, 2.4 MiB/s" in str(progress)
