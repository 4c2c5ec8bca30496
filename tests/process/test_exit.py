"""Programs that end amid what they do: the interpreter frees all that is native, in every way."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.process.fake_gpu import LIBRARY
from tests.process.nodes import WAIT_S, Nodes
from tests.process.world_crew import free_address

ENDS = {"by exit": ("sys.exit(3)", 3), "by an error": ("raise ValueError", 1)}

PRELUDE = """
import asyncio, os, sys, threading, time
import numpy as np
from hoplite_ray import Store, new_id, worlds

def beside(work, functions=("wait", "select")):
    '''Run it in a daemon thread, and return once that waits in one of these functions.'''
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    while sys._current_frames()[thread.ident].f_code.co_name not in functions:
        time.sleep(0.001)

def held(make):
    '''Have a daemon thread hold what `make` returns, for ever.'''
    def hold():
        kept = make()
        made.set()
        threading.Event().wait()
    made = threading.Event()
    threading.Thread(target=hold, daemon=True).start()
    made.wait()
"""

STORE = {
    "a get that nothing waits for": "pending = store.begin_get(new_id())",
    "a get with a callback": "store.begin_get(new_id()).add_end_callback(print)",
    "a get in a thread": "beside(lambda: store.get(new_id()))",
    "a gather in a thread": "beside(lambda: store.gather([new_id()] * 2), ('wait_all',))",
    "a get in a thread's loop": "beside(lambda: asyncio.run(store.get_async(new_id())))",
    "a get in a loop that goes on": """
async def go_on():
    task = asyncio.create_task(store.get_async(new_id()))
    await asyncio.Event().wait()
beside(lambda: asyncio.run(go_on()))
""",
    "a get in a loop that was left": """
loop = asyncio.new_event_loop()
task = loop.create_task(store.get_async(new_id()))
loop.run_until_complete(asyncio.sleep(0))
""",
    "gets without end": """
store.put(object_id := new_id(), np.zeros(100_000))
first = threading.Event()
def spin():
    while True:
        value = store.get(object_id)
        first.set()
threading.Thread(target=spin, daemon=True).start()
first.wait()
""",
    "a put that waits for room": """
kept = store.empty(new_id(), 150 << 20, "uint8")
beside(lambda: store.put(new_id(), np.zeros(150 << 20, "uint8")))
""",
    "an array that waits for room": """
kept = store.empty(new_id(), 150 << 20, "uint8")
beside(lambda: store.empty(new_id(), 150 << 20, "uint8"))
""",
    "a value": """
store.put(object_id := new_id(), np.zeros(100_000))
value = store.get(object_id)
""",
    "a value that a thread holds": """
store.put(object_id := new_id(), {"w": np.zeros(100_000), "b": np.zeros(3)})
held(lambda: store.get(object_id))
""",
    "an unsealed array that a thread holds": "held(lambda: store.empty(new_id(), 100_000))",
    "a sealed array that a thread holds": """
def sealed():
    with store.empty(new_id(), 100_000) as array:
        return array
held(sealed)
""",
    "a get that a thread holds": "held(lambda: store.begin_get(new_id()))",
    "a reduce that a thread holds": (
        "held(lambda: store._client.begin_reduce(new_id(), source_count=2))"
    ),
    "a store of a thread's own": "held(lambda: Store.attach(sys.argv[1]))",
    "a store that an extension keeps": """
import ctypes
value = store.begin_get(new_id())
for each in (store, value):
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(each))
""",
    "a forked child": """
store.begin_get(new_id()).add_end_callback(print)
beside(lambda: store.get(new_id()))
pid = os.fork()
if pid:
    os.waitpid(pid, 0)
""",
}

WORLDS = {
    "a receive in a thread": "beside(lambda: a.recv(src=1), ('run_blocking',))",
    "a receive in a loop that goes on": """
async def go_on():
    task = asyncio.create_task(a.recv_async(src=1))
    await asyncio.Event().wait()
beside(lambda: asyncio.run(go_on()))
""",
    "a receive in a loop that was left": """
loop = asyncio.new_event_loop()
task = loop.create_task(a.recv_async(src=1))
loop.run_until_complete(asyncio.sleep(0))
""",
    "a collective in a thread": """
beside(lambda: a.all_reduce(np.ones(1_000_000)), ("run_blocking",))
""",
    "events in a thread's loop": """
async def hear():
    async for event in managers[0].events():
        pass
beside(lambda: asyncio.run(hear()))
""",
    "events in a thread": "beside(lambda: managers[0].events().next())",
    "events in a loop that was left": """
loop, events = asyncio.new_event_loop(), managers[0].events()
task = loop.create_task(events.next_async())
loop.run_until_complete(asyncio.sleep(0))
""",
    "an array that a thread holds": """
sending = threading.Thread(target=lambda: b.send(np.ones(1_000_000), dst=0))
sending.start()
received = a.recv(src=1)
sending.join()
held(lambda: received)
""",
    "a world that a thread holds": "held(lambda: a)",
    "a forked child": """
async def fork():
    task = asyncio.create_task(a.recv_async(src=1))
    await asyncio.sleep(0)
    pid = os.fork()
    if pid:
        os.waitpid(pid, 0)
beside(lambda: b.recv(src=0), ("run_blocking",))
asyncio.run(fork())
""",
}
"""Of two members that are in one process."""

PAIR = """
managers = [worlds.WorldManager(), worlds.WorldManager()]
def join(rank):
    return managers[rank].join("w", rank=rank, size=2, rendezvous=sys.argv[1])
b = None
def join_other():
    global b
    b = join(1)
joining = threading.Thread(target=join_other)
joining.start()
a = join(0)
joining.join()
"""


def run(*parts: str, argument: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a program, which must end by itself."""
    return subprocess.run(
        [sys.executable, "-c", "\n".join([PRELUDE, *parts]), argument],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=WAIT_S,
    )


@pytest.mark.parametrize("program", STORE.values(), ids=STORE.keys())
def test_a_store_leaves_nothing_native(three: Nodes, program: str) -> None:
    attach = "store = Store.attach(sys.argv[1])"
    done = run(attach, program, argument=three.processes[0].socket)
    assert done.returncode == 0, done.stderr
    assert "nanobind" not in done.stderr


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS.keys())
def test_nothing_native_is_left_however_it_ends(three: Nodes, end: tuple[str, int]) -> None:
    last, status = end
    attach = "store = Store.attach(sys.argv[1])"
    program = STORE["a get in a loop that goes on"] + STORE["a value that a thread holds"]
    done = run(attach, program, last, argument=three.processes[0].socket)
    assert done.returncode == status, done.stderr
    assert "nanobind" not in done.stderr


@pytest.mark.parametrize("program", WORLDS.values(), ids=WORLDS.keys())
def test_worlds_leave_nothing_native(program: str) -> None:
    done = run(PAIR, program, argument=free_address())
    assert done.returncode == 0, done.stderr
    assert "nanobind" not in done.stderr


def test_worlds_of_gpus_leave_nothing_native() -> None:
    libraries = dict.fromkeys(
        ("HOPLITE_RAY_NCCL_LIBRARY", "HOPLITE_RAY_CUDA_LIBRARY"), str(LIBRARY)
    )
    pair = PAIR.replace("size=2,", "size=2, transport='nccl',")
    done = run(pair, WORLDS["a world that a thread holds"], argument=free_address(), **libraries)
    assert done.returncode == 0, done.stderr
    assert "nanobind" not in done.stderr
