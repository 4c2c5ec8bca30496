"""Processes that are members of worlds, and do what a test says.

A test's plays are functions of its module: coroutines that get `Here`, what the process has.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import importlib
import itertools
import multiprocessing
import os
import signal
import sys
import traceback
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from multiprocessing.connection import Connection
from typing import Any

from hoplite_ray.worlds import World
from hoplite_ray.worlds.multiworld import WorldManager  # has the plain verbs, too

ANSWER_S = 80.0  # less than a test's own limit, so that its members are still asked why
JOIN_S = 40.0  # less than that, so that a join that fails says why

Play = Callable[..., Awaitable[Any]]


class Here:
    """The state of one process: a manager, and the worlds that its plays keep."""

    def __init__(self) -> None:
        self.manager = WorldManager()
        self.worlds: dict[str, World] = {}
        self.kept: dict[str, Any] = {}

    async def join_async(self, name: str, **how: Any) -> World:
        """Join a world, and keep it."""
        self.worlds[name] = await self.manager.join_async(name, **{"timeout_s": JOIN_S, **how})
        return self.worlds[name]


class Member:
    """Another process."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs,), daemon=True)
        self._process.start()
        theirs.close()
        self._is_asked = False

    @property
    def pid(self) -> int:
        """Its number."""
        assert self._process.pid is not None
        return self._process.pid

    def tell(self, play: Play, *arguments: Any) -> None:
        """Let it begin a play."""
        self._pipe.send((play, arguments))
        self._is_asked = True

    def answer(self) -> Any:
        """Return what the play has returned; fails with what it has raised."""
        assert self._pipe.poll(ANSWER_S), f"no answer of process {self.pid} in {ANSWER_S} s"
        self._is_asked = False
        failure, value = self._pipe.recv()
        assert failure is None, f"in process {self.pid}: {failure}"
        return value

    def ask(self, play: Play, *arguments: Any) -> Any:
        """Both."""
        self.tell(play, *arguments)
        return self.answer()

    def signal(self, number: int) -> None:
        """Stop it or let it go on."""
        os.kill(self.pid, number)

    def kill(self) -> None:
        """End it as the kernel would; returns when it has ended."""
        self._process.kill()
        self._process.join()

    def leave(self) -> int | None:
        """Let it end as a program does at its end; returns its exit status."""
        self._pipe.close()
        self._process.join(ANSWER_S)
        return self._process.exitcode

    def is_free(self) -> bool:
        """Whether it can be of use to another test."""
        if self._is_asked or not self._process.is_alive():
            return False
        try:
            self.ask(reset)
        except (AssertionError, EOFError, OSError):
            return False
        return True


class Crew:
    """The members of one test. `started` are there already, and kept for the next test."""

    def __init__(self, started: list[Member]) -> None:
        self._started = started
        self.members: list[Member] = []

    def muster(self, count: int) -> list[Member]:
        """Return so many more members."""
        new = [self._started.pop() if self._started else Member() for _ in range(count)]
        self.members += new
        return new

    def together(self, play: Play, *arguments: Any, members: list[Member] | None = None) -> list:
        """Let all do a play with their rank, their number, and the arguments; what each returns."""
        members = self.members if members is None else members
        for rank, member in enumerate(members):
            member.tell(play, rank, len(members), *arguments)
        return [member.answer() for member in members]

    def import_first(self, module: str) -> None:
        """Have all import what a play needs, in a step of its own: Ray Serve takes 5 s of CPU."""
        for member in self.members:
            member.tell(_import, module)
        for member in self.members:
            member.answer()

    def dismiss(self) -> None:
        """End of the test."""
        for member in self.members:
            if member.is_free():
                self._started.append(member)
            else:
                member.kill()  # it may have been killed, or wait for one that was


async def _import(here: Here, module: str) -> None:
    importlib.import_module(module)


@contextlib.contextmanager
def crews() -> Iterator[list[Member]]:
    """Members that wait for a test."""
    started: list[Member] = []
    try:
        yield started
    finally:
        for member in started:
            member.kill()


def in_a_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Let a test be a coroutine."""

    @functools.wraps(test)
    def run(*arguments: Any, **how: Any) -> None:
        asyncio.run(test(*arguments, **how))

    return run


def free_address() -> str:
    """An address without a listener: a loopback address and a port of this process alone."""
    pid = os.getpid()
    name = ".".join(["127", *(str(1 + (pid >> bits) % 128) for bits in (14, 7, 0))])
    return f"tcp://{name}:{20_000 + next(_numbers) % 10_000}"


_numbers = itertools.count()


def doing(world: World, *, blocking: bool) -> Callable[..., Awaitable[Any]]:
    """An operation by its name, by the verb or its awaitable twin."""

    async def do(name: str, *arguments: Any, **how: Any) -> Any:
        if blocking:
            return getattr(world, name)(*arguments, **how)
        return await getattr(world, f"{name}_async")(*arguments, **how)

    return do


async def join(here: Here, rank: int, size: int, name: str, address: str, **how: Any) -> int:
    """A play: join a world, and keep it; returns its epoch."""
    return (await here.join_async(name, rank=rank, size=size, rendezvous=address, **how)).epoch


async def reset(here: Here) -> None:
    """A play: forget all."""
    here.manager.close()
    here.__init__()  # type: ignore[misc]


def _serve(pipe: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with asyncio.Runner() as runner:
        here = Here()
        while True:
            try:
                play, arguments = pipe.recv()
            except EOFError:
                break
            try:
                said = (None, runner.run(play(here, *arguments)))
            except BaseException:  # a failed assertion of pytest.raises is no Exception
                said = (traceback.format_exc(), None)
            pipe.send(said)
    sys.exit(here.kept.get("status", 0))
