"""One question of this process to each member of its node's view, by the control plane."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from hoplite_ray.control.client import ControlClient
from hoplite_ray.control.view import Member
from hoplite_ray.errors import ControlError, NodeLostError

T = TypeVar("T")

Ask = Callable[[ControlClient, Member, float], Awaitable[T]]


def ask_members(directory: Path, ask: Ask[T], timeout_s: float) -> dict[Member, T]:
    """Ask all members at once; return the answer of each that has given one in time.

    directory:  of this process's own node, which has the cluster's secret.
    ask:        makes the call, with the seconds that are left.

    Raises:  NodeLostError if no node has started in the directory, or it has ended; ControlError if
             it does not answer.
    """
    control, secret = _read_place(directory)
    with ThreadPoolExecutor(1) as thread:  # the caller's thread may run an event loop
        return thread.submit(asyncio.run, _ask_each(control, secret, ask, timeout_s)).result()


async def _ask_each(control: str, secret: bytes, ask: Ask[T], timeout_s: float) -> dict[Member, T]:
    ends_s = time.monotonic() + timeout_s
    calls = ControlClient(secret)

    async def ask_one(member: Member) -> tuple[Member, T] | None:
        try:
            return member, await ask(calls, member, max(ends_s - time.monotonic(), 0.0))
        except ControlError:  # it has left, or is slow: what it has is of no use now
            return None

    try:
        members = (await calls.view(control, timeout_s=timeout_s)).members
        return dict(filter(None, await asyncio.gather(*map(ask_one, members))))
    finally:
        await calls.close()


def _read_place(directory: Path) -> tuple[str, bytes]:
    """Return the control address of a node, and its cluster's secret."""
    try:
        record = json.loads((directory / "node.json").read_text())
        return str(record["control"]), (directory / "secret").read_bytes().strip()
    except (OSError, ValueError, LookupError) as error:
        raise NodeLostError(
            f"{directory} tells of no node ({error}): the node has ended, or belongs to another "
            "user; attach to one that runs"
        ) from None
