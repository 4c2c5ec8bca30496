"""The thread of meetings: an event loop in which a manager's worlds are joined, watched and ended.

All work that needs a peer's answer is done here, so that a caller's loop or thread waits for it
only by choice. Other threads may call `submit`, `release`, `stop` and `wait_for_end` only.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

from hoplite_ray._native import WorldPort
from hoplite_ray.base.threads import run_in_thread
from hoplite_ray.errors import WorldError, WorldTimeoutError
from hoplite_ray.worlds.gpu.communicators import NewWorld, connect
from hoplite_ray.worlds.gpu.nccl import Gpu, settle
from hoplite_ray.worlds.meeting.incarnation import Incarnation
from hoplite_ray.worlds.meeting.joining import Plan, join
from hoplite_ray.worlds.meeting.place import Place
from hoplite_ray.worlds.meeting.rendezvous import (
    Boards,
    ClosedRendezvous,
    DistantBoard,
    Rendezvous,
    find_ray_rendezvous,
    own_address,
    parse_address,
)
from hoplite_ray.worlds.meeting.secrecy import Secrecy

T = TypeVar("T")

Tell = Callable[[int, int, int, int, str, int], None]  # world, kind, rank, cause, text, at_ns

_PAUSE_S = 0.1  # between two attempts to find an address
_WATCH_ENDED = 5  # the kind of an event that is about a watch, not about a world


class Meet:
    """The thread of meetings of one manager.

    tell:  called in it, for each event of a world.
    """

    def __init__(self, limits: dict[str, float], listen: str | None, tell: Tell) -> None:
        """Start the thread. Raises the native core's error if that fails."""
        self._tell = tell
        self._incarnations: dict[int, Incarnation] = {}
        self._boards = Boards(lambda: self.place.tls)
        self._secrecy = Secrecy()
        self._joins: set[asyncio.Task[Any]] = set()
        started: Future[None] = Future()
        self.ended: Future[None] = Future()
        self.ended.set_running_or_notify_cancel()  # no waiting caller can cancel it
        self._thread = threading.Thread(
            target=self._run, args=(limits, listen, started), name="hoplite-meet", daemon=True
        )
        self._thread.start()
        try:
            started.result()
        except BaseException:
            self._thread.join()  # a thread that outlives Python's end would crash it
            raise

    # ---- from any thread

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Run a coroutine in this loop.

        Raises:  WorldError if the loop has ended.
        """
        try:
            return asyncio.run_coroutine_threadsafe(work, self.loop)
        except RuntimeError as error:
            work.close()
            raise WorldError("this manager of worlds was closed; make another one") from error

    def release(self, number: int) -> None:
        """Release what a world has: its edges, watches and address."""
        with contextlib.suppress(RuntimeError):  # the loop has ended, and given all back
            self.loop.call_soon_threadsafe(self._release, number)

    def stop(self, last: Coroutine[Any, Any, None]) -> None:
        """Run one last coroutine, then end the thread; `ended` is done when it has ended."""
        self.submit(last).add_done_callback(
            lambda done: self.loop.call_soon_threadsafe(self._stopping.set)
        )

    def wait_for_end(self) -> None:
        """Return when the thread has ended."""
        self._thread.join()

    # ---- of this loop

    async def join(
        self, plan: Plan, meet_at: Rendezvous | str | None, timeout_s: float
    ) -> tuple[Incarnation, Gpu]:
        """Return an incarnation that has begun, and what it has for arrays on GPUs.

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
                    incarnation = await join(self.place, plan, rendezvous)
                    with contextlib.ExitStack() as unless:
                        unless.callback(incarnation.close)
                        plan.obstacle = "NCCL has not brought all together"
                        is_secret = self.place.tls is not None
                        gpu = await connect(
                            NewWorld(
                                incarnation.name,
                                incarnation.rank,
                                incarnation.edges,
                                incarnation.abilities,
                                len(incarnation.machines),
                            ),
                            plan.device,
                            is_secret=is_secret,
                        )
                        unless.pop_all()
            except TimeoutError:
                raise WorldTimeoutError(
                    f"world {plan.name!r} was not joined as rank {plan.rank} of {plan.size} within "
                    f"{timeout_s} s: {plan.obstacle}; start all members with the same name, size "
                    "and rendezvous, or raise timeout_s"
                ) from None
            if own:  # kept as long as the world, because members may be replaced
                exits.pop_all()
                self._joins.discard(task)
                for each in own:
                    incarnation.exits.callback(each.close)
        self._incarnations[incarnation.edges.number] = incarnation
        return incarnation, gpu

    async def _rendezvous(
        self, plan: Plan, meet_at: Rendezvous | str | None, own: list[ClosedRendezvous]
    ) -> Rendezvous:
        """Return the rendezvous, and put it into `own` if this loop must close it."""
        if meet_at is None:
            plan.obstacle = "Ray does not answer"
            of_ray = await asyncio.wrap_future(
                run_in_thread(find_ray_rendezvous, "hoplite-look-up")
            )
            own.append(of_ray)
            return of_ray
        if not isinstance(meet_at, str):
            return meet_at
        address = parse_address(meet_at)
        if plan.rank > 0:
            return DistantBoard(address, self.place.tls)
        board = self._boards.use(address)
        own.append(board)
        return board

    async def _heed_secrecy(self, plan: Plan) -> None:
        """Read the TLS files anew for each join, where data_tls is on."""
        plan.obstacle = "Ray does not say whether data_tls is on"
        asked = run_in_thread(self._secrecy.context, "hoplite-data-tls")
        self.place.tls = await asyncio.wrap_future(asked)

    async def _open_door(self, plan: Plan, meet_at: Rendezvous | str | None) -> None:
        """Listen at the address by which the members that meet there reach this process."""
        while True:
            try:
                address = await asyncio.wrap_future(
                    run_in_thread(lambda: own_address(meet_at), "hoplite-own-address")
                )
                return self.place.open_door(address)
            except OSError as error:  # there is no route yet, or no name
                plan.obstacle = f"there is no way to {meet_at} ({error})"
                await asyncio.sleep(_PAUSE_S)

    def cancel_joins(self) -> list[asyncio.Task[Any]]:
        """Cancel all joins in progress; returns their tasks."""
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
            started.set_exception(error)  # for example no descriptor is left
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
            for number in list(self._incarnations):
                self._release(number)
            await self.place.close()
            await self._boards.close()
            settle()  # it blocks, and this loop has nothing else to do

    def _release(self, number: int) -> None:
        incarnation = self._incarnations.pop(number, None)
        if incarnation is not None:
            incarnation.close()
            self.place.forget(incarnation)

    def _hear(self, port: WorldPort) -> None:
        for kind, world, watch, rank, cause, text, at_ns in port.take_events():
            if kind == _WATCH_ENDED:
                self.place.watches.handle_end(watch)
            else:
                self._tell(world, kind, rank, cause, text, at_ns)
