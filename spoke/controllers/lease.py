"""The lease: a beat every interval, for as long as the hub accepts this cluster.

All agents of a hub beat at the same instants (`spoke.domain.beat_schedule`), so that a hub acknowledges several beats at once.
Beats do not wait for one another. A beat that is not acknowledged in time means that the hub is silent, whatever TCP and
keepalive report: the session is lost.
"""

import asyncio
from collections.abc import Callable
from datetime import timedelta
from random import Random

import structlog

from machinery.observability.metrics import Distribution
from machinery.runtime.clock import Clock
from spoke.domain.ack_timeout import SILENCE
from spoke.domain.beat_schedule import pause
from spoke.ports import HubLostError, HubSession, SessionEnd

log = structlog.get_logger(__name__)


class LeaseController:
    """Beats on one session. `verdict` is asked at every beat, `acknowledged` is told of every durable one."""

    def __init__(
        self,
        session: HubSession,
        *,
        verdict: Callable[[], bool | None],
        acknowledged: Callable[[], None],
        silence: timedelta = SILENCE,
        random: Random | None = None,
        latency: Distribution | None = None,
        hub_clock: Clock | None = None,
    ) -> None:
        """`latency`: observes how long each acknowledgement took, in seconds. `hub_clock`: for beats in step; None: in none."""
        self._session = session
        self._latency = latency or Distribution()
        self._verdict = verdict
        self._acknowledged = acknowledged
        self._silence = silence
        self._hub_clock = hub_clock
        self._random = random or Random()  # noqa: S311 - spreads beats
        self._accepted = asyncio.Event()
        self._soon = asyncio.Event()

    def accept(self, *, accepted: bool) -> None:
        """Beats are for accepted clusters only."""
        if accepted and not self._accepted.is_set():
            log.info("lease.started")
            self._accepted.set()
            self.hurry()
        elif not accepted and self._accepted.is_set():
            log.info("lease.stopped", why="the hub does not accept this cluster")
            self._accepted.clear()

    def hurry(self) -> None:
        """Brings the next beat forward: there is a new verdict to tell."""
        self._soon.set()

    async def run(self) -> None:
        """Beats until cancelled. Raises HubLostError when the hub is silent or gone."""
        try:
            async with asyncio.TaskGroup() as under_way:
                while True:
                    await self._accepted.wait()
                    self._soon.clear()
                    under_way.create_task(self._beat(), name="beat")
                    await self._pause()
        except* HubLostError as lost:
            raise _first(lost) from None

    async def _beat(self) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            async with asyncio.timeout(self._silence.total_seconds()):
                await self._session.beat(available=self._verdict())
        except TimeoutError:
            if not self._accepted.is_set():
                return  # the hub acknowledges nothing of a cluster that it has ceased to accept
            seconds = self._silence.total_seconds()
            raise HubLostError(f"the hub has not acknowledged a beat for {seconds:g} s", SessionEnd.SILENT) from None
        self._latency.observe(loop.time() - began)
        self._acknowledged()

    async def _pause(self) -> None:
        hub_time = self._hub_clock.now() if self._hub_clock is not None else None
        until_next = pause(self._session.beat_interval, self._random.random(), hub_time)
        try:
            async with asyncio.timeout(until_next.total_seconds()):
                await self._soon.wait()
        except TimeoutError:
            return


def _first(group: BaseExceptionGroup[HubLostError]) -> HubLostError:
    """The oldest beat's loss; when a session ends, all that are under way fail alike."""
    error = group.exceptions[0]
    return error if isinstance(error, HubLostError) else _first(error)
