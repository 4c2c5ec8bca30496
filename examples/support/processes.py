"""Processes of this machine, and where they can meet."""

from __future__ import annotations

import asyncio
import inspect
import multiprocessing
import socket
from collections.abc import Callable
from multiprocessing.context import SpawnProcess
from typing import Any


def start(play: Callable[..., Any], *arguments: Any) -> SpawnProcess:
    """Call a function of a module, or await it, in a process of its own, which ends with this."""
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=_run, args=(play, *arguments), daemon=True)
    process.start()
    return process


def free_address() -> str:
    """Return an address on which no process listens yet."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return f"tcp://127.0.0.1:{probe.getsockname()[1]}"


def _run(play: Callable[..., Any], *arguments: Any) -> None:
    played = play(*arguments)
    if inspect.isawaitable(played):
        asyncio.run(_awaited(played))


async def _awaited(played: Any) -> None:
    await played
