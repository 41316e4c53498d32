"""What a replica does while it leads, and what it needs in order to lead: its lock, its flag, its controllers, term by term."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any
from uuid import uuid4

import structlog

from hub.api.core.event import EventRecord
from hub.controllers.hub.transition_recorder import TransitionRecorder
from hub.controllers.manager.manager import ControllerManager
from hub.election import FencedStore, RowLock, SoleLock
from hub.ports import Store
from hub.replica.heartbeat import is_alone
from hub.settings import HubSettings
from hub.store.writer.leader_lock_connection import SqlLifeline
from machinery.election import Candidate, ElectionCounts, Elector, Leadership, Lock, Term, Timings
from machinery.runtime.clock import Clock
from machinery.runtime.controller import Controller
from machinery.runtime.scheduler import Timetable
from machinery.runtime.tasks import GuardedTasks, TaskEndedError

NAME, REASON = "hub", "LeaderElection"
KNOWN_WITHIN = timedelta(seconds=60)
"""So long a start waits for a first look at the lock, so that a leader's first steps are part of it."""

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class LeaderElectionConfig:
    """How this replica runs for the leadership. `alone`: no other replica can use its database at all."""

    replica: str
    timings: Timings
    alone: bool = False


class Leading:
    """One replica's part in the election. `controllers` makes those of one term, over the store that they may use."""

    def __init__(
        self,
        store: Store,
        lock: Lock,
        candidacy: LeaderElectionConfig,
        controllers: Callable[[Store], ControllerManager],
        *,
        clock: Clock,
        timetable: Timetable,
        group_suffix: str,
        on_end: Callable[[TaskEndedError], object],
    ) -> None:
        self._store = store
        self._make = controllers
        self._timetable = timetable
        self._api_version = f"hub.{group_suffix}/v1alpha1"
        self._on_end = on_end
        self.leadership = Leadership(clock)
        self._elector = Elector(
            lock,
            Candidate(candidacy.replica, str(uuid4())),
            self._lead,
            timings=candidacy.timings,
            clock=clock,
            leadership=self.leadership,
            alone=candidacy.alone,
        )
        self._may_run = asyncio.Event()
        self._working: ControllerManager | None = None
        self._first_look: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def run(self) -> None:
        """Once `begin` was called runs for the leadership until `stop`, then rests until it is cancelled."""
        await self._may_run.wait()
        await self._elector.run()
        await asyncio.Event().wait()

    async def begin(self) -> None:
        """Returns when the lock was looked at, and if we lead when our controllers have looked at every object.

        A lock that cannot be reached keeps no replica from serving: it does not lead, and looks again.
        """
        self._may_run.set()
        try:
            async with asyncio.timeout(KNOWN_WITHIN.total_seconds()):
                await self._elector.tried.wait()
        except TimeoutError:
            log.warning("it is not known yet which replica leads")
        if self.leadership.term is not None:
            await asyncio.shield(self._first_look)

    async def stop(self) -> None:
        """Stops the controllers, drops the flag, releases the lock, in this order. Safe to call twice."""
        await self._elector.stop()

    async def _lead(self, term: Term) -> None:
        """One term's work, until it is cancelled."""
        controllers = self._make(FencedStore(self._store, self.leadership, term.number))
        async with GuardedTasks("controllers", on_end=self._on_end) as tasks:
            self._working = controllers
            try:
                await self._begin(controllers, tasks, term)
                await asyncio.Event().wait()
            finally:
                self._working = None
                controllers.rest(self._timetable)

    async def _begin(self, controllers: ControllerManager, tasks: GuardedTasks, term: Term) -> None:
        try:
            controllers.wake(self._timetable)
            controllers.begin(term.number, self._news(term))
            await controllers.start(tasks)
        except Exception as error:
            if not self._first_look.done():
                self._first_look.set_exception(error)
            raise
        finally:
            if not self._first_look.done():
                self._first_look.set_result(None)

    def _news(self, term: Term) -> EventRecord:
        about = {"apiVersion": self._api_version, "kind": "HubLeader", "metadata": {"name": NAME}}
        return EventRecord("", about, REASON, f"{term.holder} became leader in term {term.number}: {term.because}")

    @property
    def controllers(self) -> Sequence[Controller[Any]]:
        """Those of the term that stands; none while another replica leads."""
        return () if self._working is None else self._working.everyone

    @property
    def chronicle(self) -> TransitionRecorder | None:
        """That of the term that stands."""
        return None if self._working is None else self._working.chronicle

    @property
    def tally(self) -> ElectionCounts:
        """What was counted of the election since the start."""
        return self._elector.tally

    def waiting(self) -> Mapping[str, int]:
        """How many keys wait in each controller's queue; nothing while another replica leads."""
        return {} if self._working is None else self._working.waiting()

    def snapshot(self) -> Mapping[str, object]:
        """What a metric would show: who leads, and what was counted since the start."""
        flag = self.leadership
        leads = {"leads": flag.term is not None, "term": flag.term or 0, "leader": self._elector.leader}
        return {**leads, "writes refused": flag.refused, "writes fenced": flag.fenced, **asdict(self._elector.tally)}


@asynccontextmanager
async def leadership(
    settings: HubSettings,
    url: str,
    replica: str,
    store: Store,
    controllers: Callable[[Store], ControllerManager],
    *,
    clock: Clock,
    timetable: Timetable,
    on_end: Callable[[TaskEndedError], object],
) -> AsyncGenerator[Leading]:
    """This replica's part in the election for the length of the block. `url`: the database's; `replica`: our name."""
    timings = settings.election_timings
    candidacy = LeaderElectionConfig(replica, timings, alone=is_alone(settings))
    lifeline = SqlLifeline(url, lease=timings.lease)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(lifeline.close)
        lock = await _lock(settings, candidacy, RowLock(lifeline), clock, stack)
        leading = Leading(
            store,
            lock,
            candidacy,
            controllers,
            clock=clock,
            timetable=timetable,
            group_suffix=settings.api_group_suffix,
            on_end=on_end,
        )
        async with GuardedTasks("election", on_end=on_end) as tasks:
            tasks.start("elector", leading.run())
            try:
                yield leading
            finally:
                await leading.stop()


async def _lock(
    settings: HubSettings, candidacy: LeaderElectionConfig, row: RowLock, clock: Clock, stack: AsyncExitStack
) -> Lock:
    if candidacy.alone:
        return SoleLock(row)
    if settings.leader_elect_resource_lock == "database":
        return row
    from hub.election.in_cluster import lease_lock  # noqa: PLC0415 - 60 MB that only such a hub needs

    return await stack.enter_async_context(lease_lock(settings, candidacy.replica, row, clock))
