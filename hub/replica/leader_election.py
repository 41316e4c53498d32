"""This replica's part in leader election: the lock, the leader flag, and the controllers of each term."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict
from datetime import timedelta
from typing import Any
from uuid import uuid4

import structlog

from hub.api.events import EventRecord
from hub.controllers.manager import ControllerManager
from hub.controllers.observers.transition_recorder import TransitionRecorder
from hub.election.fence import FencedStore
from hub.election.locks import RowLock, SingleReplicaLock
from hub.ports import Store
from hub.ports.liveness import LeaderLockConnection
from hub.settings import HubSettings
from hub.store.writer.leader_lock_connection import SqlLeaderLockConnection
from machinery.election import Candidate, ElectionCounts, Elector, Leadership, Lock, Term
from machinery.runtime.clock import Clock
from machinery.runtime.controller import Controller
from machinery.runtime.event_loop import wait_at_most
from machinery.runtime.scheduler import Scheduler
from machinery.runtime.tasks import GuardedTasks, TaskEndedError

NAME, REASON = "hub", "LeaderElection"
KNOWN_WITHIN = timedelta(seconds=60)
"""Maximum time for which `begin` waits for the first read of the lock. After this time the replica serves and retries."""

log = structlog.get_logger(__name__)


class Leading:
    """Takes part in the leader election. `controllers` makes the controllers of a term over a fenced store.

    `replica`: this replica's name.
    """

    def __init__(
        self,
        store: Store,
        lock: Lock,
        controllers: Callable[[FencedStore], ControllerManager],
        settings: HubSettings,
        replica: str,
        *,
        clock: Clock,
        scheduler: Scheduler,
        on_end: Callable[[TaskEndedError], object],
    ) -> None:
        self._store = store
        self._make = controllers
        self._scheduler = scheduler
        self._api_version = f"hub.{settings.api_group_suffix}/v1alpha1"
        self._on_end = on_end
        self.leadership = Leadership(clock)
        self._elector = Elector(
            lock,
            Candidate(replica, str(uuid4())),
            self._lead,
            timings=settings.election_timings,
            clock=clock,
            leadership=self.leadership,
            alone=settings.is_alone,
        )
        self._may_run = asyncio.Event()
        self._current: ControllerManager | None = None
        self._first_pass: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def run(self) -> None:
        """After `begin`, take part in the election until `stop`, then wait for cancellation."""
        await self._may_run.wait()
        await self._elector.run()
        await asyncio.Event().wait()

    async def begin(self) -> None:
        """Start the election. Returns after the first read of the lock; on the leader after the controllers' first pass.

        If the lock is unreachable, the replica serves without leading and retries.
        """
        self._may_run.set()
        if not await wait_at_most(self._elector.tried, KNOWN_WITHIN.total_seconds()):
            log.warning("the leader is not known yet")
        if self.leadership.term is not None:
            await asyncio.shield(self._first_pass)

    async def stop(self) -> None:
        """Stop the controllers, clear the leader flag and release the lock, in this order. Idempotent."""
        await self._elector.stop()

    async def _lead(self, term: Term) -> None:
        controllers = self._make(FencedStore(self._store, self.leadership, term.number))
        async with GuardedTasks("controllers", on_end=self._on_end) as tasks:
            self._current = controllers
            try:
                await self._begin(controllers, tasks, term)
                await asyncio.Event().wait()
            finally:
                self._current = None
                controllers.stop_periodic(self._scheduler)

    async def _begin(self, controllers: ControllerManager, tasks: GuardedTasks, term: Term) -> None:
        try:
            controllers.start_periodic(self._scheduler)
            controllers.begin(term.number, self._event_of(term))
            await controllers.start(tasks)
        except Exception as error:
            if not self._first_pass.done():
                self._first_pass.set_exception(error)
            raise
        finally:
            if not self._first_pass.done():
                self._first_pass.set_result(None)

    def _event_of(self, term: Term) -> EventRecord:
        about = {"apiVersion": self._api_version, "kind": "HubLeader", "metadata": {"name": NAME}}
        return EventRecord("", about, REASON, f"{term.holder} became leader in term {term.number}: {term.because}")

    @property
    def controllers(self) -> Sequence[Controller[Any]]:
        """The controllers of the current term; none while another replica leads."""
        return () if self._current is None else self._current.controllers

    @property
    def transitions(self) -> TransitionRecorder | None:
        return None if self._current is None else self._current.transitions

    @property
    def tally(self) -> ElectionCounts:
        return self._elector.tally

    def waiting(self) -> Mapping[str, int]:
        """Return the length of each controller's work queue, by controller; empty while another replica leads."""
        return {} if self._current is None else self._current.waiting()

    def snapshot(self) -> Mapping[str, object]:
        flag = self.leadership
        leads = {"leads": flag.term is not None, "term": flag.term or 0, "leader": self._elector.leader}
        return {**leads, "writes refused": flag.refused, "writes fenced": flag.fenced, **asdict(self._elector.tally)}


@asynccontextmanager
async def leadership(
    settings: HubSettings,
    replica: str,
    store: Store,
    controllers: Callable[[FencedStore], ControllerManager],
    *,
    clock: Clock,
    scheduler: Scheduler,
    on_end: Callable[[TaskEndedError], object],
) -> AsyncGenerator[Leading]:
    """Take part in the election during the block. `replica`: this replica's name."""
    lifeline = SqlLeaderLockConnection(settings.store_url, lease=settings.election_timings.lease)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(lifeline.close)
        lock = await _lock(settings, replica, lifeline, clock, stack)
        leading = Leading(store, lock, controllers, settings, replica, clock=clock, scheduler=scheduler, on_end=on_end)
        async with GuardedTasks("election", on_end=on_end) as tasks:
            tasks.start("elector", leading.run())
            try:
                yield leading
            finally:
                await leading.stop()


async def _lock(
    settings: HubSettings, replica: str, lifeline: LeaderLockConnection, clock: Clock, stack: AsyncExitStack
) -> Lock:
    if settings.is_alone:
        return SingleReplicaLock(lifeline)
    row = RowLock(lifeline)
    if settings.leader_elect_resource_lock == "database":
        return row
    from hub.election.in_cluster import lease_lock  # noqa: PLC0415 - 60 MB that only such a hub needs

    return await stack.enter_async_context(lease_lock(settings, replica, row, clock))
