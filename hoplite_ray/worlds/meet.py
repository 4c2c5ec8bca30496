"""The thread in which a manager's worlds are joined, watched and taken down: an event loop.

What needs a peer's answer is done here, so that no caller's loop or thread waits for it but by
choice. Everything but `submit`, `release` and `stop` is of this loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

from hoplite_ray._native import WorldPort
from hoplite_ray.base.threads import begin
from hoplite_ray.errors import WorldError, WorldTimeoutError
from hoplite_ray.worlds.joining import Plan, join
from hoplite_ray.worlds.life import Life
from hoplite_ray.worlds.nccl import Gpu, settle
from hoplite_ray.worlds.nccl_meeting import connect
from hoplite_ray.worlds.place import Place
from hoplite_ray.worlds.rendezvous import (
    Boards,
    ClosedRendezvous,
    DistantBoard,
    Rendezvous,
    own_address,
    parsed_address,
    rays,
)
from hoplite_ray.worlds.secrecy import Secrecy

T = TypeVar("T")

Tell = Callable[[int, int, int, int, str, int], None]  # world, kind, rank, cause, text, at_ns

_PAUSE_S = 0.1  # between looks for a way, as between attempts to join
_WATCH_ENDED = 5  # an event's kind that is not of a world


class Meet:
    """The thread of one manager. `tell` is called in it, for each event of a world."""

    def __init__(self, limits: dict[str, float], listen: str | None, tell: Tell) -> None:
        """Raises WorldError, or what the native core raises, if it can't be."""
        self._tell = tell
        self._lives: dict[int, Life] = {}
        self._boards = Boards(lambda: self.place.tls)
        self._secrecy = Secrecy()
        self._joins: set[asyncio.Task[Any]] = set()
        started: Future[None] = Future()
        self.ended: Future[None] = Future()
        self.ended.set_running_or_notify_cancel()  # so that who waits for it can't cancel it
        self._thread = threading.Thread(
            target=self._run, args=(limits, listen, started), name="hoplite-meet", daemon=True
        )
        self._thread.start()
        try:
            started.result()
        except BaseException:
            self._thread.join()  # a thread that is still here when Python ends would end it badly
            raise

    # ---- from any thread

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Do it in this loop.

        Raises:  WorldError if the loop has ended.
        """
        try:
            return asyncio.run_coroutine_threadsafe(work, self.loop)
        except RuntimeError as error:
            work.close()
            raise WorldError("this manager of worlds was closed; make another one") from error

    def release(self, number: int) -> None:
        """Give back what a world has: its edges, watches and address."""
        with contextlib.suppress(RuntimeError):  # the loop has ended, and given all back
            self.loop.call_soon_threadsafe(self._release, number)

    def stop(self, last: Coroutine[Any, Any, None]) -> None:
        """Do one last thing, then end; `ended` tells when."""
        self.submit(last).add_done_callback(
            lambda done: self.loop.call_soon_threadsafe(self._stopping.set)
        )

    def wait_for_end(self) -> None:
        """Return when the thread has ended."""
        self._thread.join()

    # ---- of this loop

    async def join(
        self, plan: Plan, meet_at: Rendezvous | str | None, timeout_s: float
    ) -> tuple[Life, Gpu]:
        """Return a life that has begun, and what it has for arrays on GPUs.

        Raises:  as `WorldManager.join`.
        """
        task = asyncio.current_task()
        assert task is not None
        self._joins.add(task)
        own: list[ClosedRendezvous] = []
        with contextlib.ExitStack() as exits:
            exits.callback(self._joins.discard, task)
            try:
                async with asyncio.timeout(timeout_s):
                    await self._heed_secrecy(plan)
                    rendezvous = await self._rendezvous(plan, meet_at, own)
                    for each in own:
                        exits.callback(each.close)
                    await self._open_door(plan, meet_at)
                    life = await join(self.place, plan, rendezvous)
                    with contextlib.ExitStack() as unless:
                        unless.callback(life.close)
                        plan.obstacle = "NCCL has not brought all together"
                        is_secret = self.place.tls is not None
                        gpu = await connect(life, plan.device, is_secret=is_secret)
                        unless.pop_all()
            except TimeoutError:
                raise WorldTimeoutError(
                    f"world {plan.name!r} was not joined as rank {plan.rank} of {plan.size} within "
                    f"{timeout_s} s: {plan.obstacle}; start all members with the same name, size "
                    "and rendezvous, or raise timeout_s"
                ) from None
            if own:  # as long as the world: members may be replaced
                exits.pop_all()
                self._joins.discard(task)
                for each in own:
                    life.exits.callback(each.close)
        self._lives[life.edges.number] = life
        return life, gpu

    async def _rendezvous(
        self, plan: Plan, meet_at: Rendezvous | str | None, own: list[ClosedRendezvous]
    ) -> Rendezvous:
        """The rendezvous, put into `own` if this loop is to close it."""
        if meet_at is None:
            plan.obstacle = "Ray does not answer"
            of_ray = await asyncio.wrap_future(begin(rays, "hoplite-look-up"))
            own.append(of_ray)
            return of_ray
        if not isinstance(meet_at, str):
            return meet_at
        address = parsed_address(meet_at)
        if plan.rank > 0:
            return DistantBoard(address, self.place.tls)
        board = self._boards.use(address)
        own.append(board)
        return board

    async def _heed_secrecy(self, plan: Plan) -> None:
        """Read for each join what edges are encrypted with, if they are."""
        plan.obstacle = "Ray does not say whether data_tls is on"
        asked = begin(self._secrecy.context, "hoplite-data-tls")
        self.place.tls = await asyncio.wrap_future(asked)

    async def _open_door(self, plan: Plan, meet_at: Rendezvous | str | None) -> None:
        """Listen at the address by which the members that meet there reach this process."""
        while True:
            try:
                address = await asyncio.wrap_future(
                    begin(lambda: own_address(meet_at), "hoplite-own-address")
                )
                return self.place.open_door(address)
            except OSError as error:  # no way yet, or no name
                plan.obstacle = f"there is no way to {meet_at} ({error})"
                await asyncio.sleep(_PAUSE_S)

    def cancel_joins(self) -> list[asyncio.Task[Any]]:
        """End what is being joined."""
        for task in self._joins:
            task.cancel()
        return list(self._joins)

    def _run(self, limits: dict[str, float], listen: str | None, started: Future[None]) -> None:
        try:
            with asyncio.Runner() as runner:
                runner.run(self._live(limits, listen, started))
        except BaseException as error:
            if started.done():
                raise
            started.set_exception(error)  # as when no descriptor is left
        finally:
            self.ended.set_result(None)

    async def _live(
        self, limits: dict[str, float], listen: str | None, started: Future[None]
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self._stopping = asyncio.Event()
        with contextlib.ExitStack() as exits:
            try:
                port = WorldPort(**limits)
                exits.callback(port.close)
                self.place = Place(port, listen)
                self.loop.add_reader(port.events_fd, self._hear, port)
                exits.callback(self.loop.remove_reader, port.events_fd)
            except Exception as error:
                started.set_exception(error)
                return
            started.set_result(None)
            await self._stopping.wait()
            for number in list(self._lives):
                self._release(number)
            await self.place.close()
            await self._boards.close()
            settle()  # nothing else is to be done in this loop

    def _release(self, number: int) -> None:
        life = self._lives.pop(number, None)
        if life is not None:
            life.close()
            self.place.forget(life)

    def _hear(self, port: WorldPort) -> None:
        for kind, world, watch, rank, cause, text, at_ns in port.take_events():
            if kind == _WATCH_ENDED:
                self.place.watches.handle_end(watch)
            else:
                self._tell(world, kind, rank, cause, text, at_ns)
