"""Sends beats at the hub's interval while the hub accepts this cluster.

All agents of a hub send beats at the same instants (`spoke.domain.schedule`), so that a hub acknowledges many beats together.
Beats do not wait for each other. If a beat is not acknowledged in time, the hub is silent, regardless of TCP and keepalive, and
the session is lost.
"""

import asyncio
from collections.abc import Callable
from datetime import timedelta
from random import Random

import structlog

from machinery.observability.metrics import Distribution
from machinery.runtime.clock import Clock
from machinery.runtime.event_loop import wait_at_most
from machinery.runtime.tasks import first_error
from spoke.domain.next_step import SessionLoss
from spoke.domain.schedule import SILENCE, pause
from spoke.ports.hub import HubLostError, HubSession

log = structlog.get_logger(__name__)


class HeartbeatSender:
    """Sends the beats of one session. Reads `verdict` for every beat, and calls `acknowledged` for every acknowledged beat."""

    def __init__(
        self,
        session: HubSession,
        *,
        verdict: Callable[[], bool | None],
        acknowledged: Callable[[], None],
        ack_timeout: timedelta = SILENCE,
        random: Random | None = None,
        latency: Distribution | None = None,
        hub_clock: Clock | None = None,
    ) -> None:
        """`latency` observes the seconds until each acknowledgement. `hub_clock` is for beats in step; None: not in step."""
        self._session = session
        self._latency = latency or Distribution()
        self._verdict = verdict
        self._acknowledged = acknowledged
        self._ack_timeout = ack_timeout
        self._hub_clock = hub_clock
        self._random = random or Random()  # noqa: S311 - spreads beats
        self._accepted = asyncio.Event()
        self._soon = asyncio.Event()

    def accept(self, *, accepted: bool) -> None:
        """Set whether the cluster is accepted; only then it sends beats."""
        if accepted and not self._accepted.is_set():
            log.info("lease.started")
            self._accepted.set()
            self.send_now()
        elif not accepted and self._accepted.is_set():
            log.info("lease.stopped", why="the hub does not accept this cluster")
            self._accepted.clear()

    def send_now(self) -> None:
        """Send the next beat at once, because of a new verdict."""
        self._soon.set()

    async def run(self) -> None:
        """Send beats until cancelled. Raises HubLostError when the hub is silent or the session has ended."""
        try:
            async with asyncio.TaskGroup() as under_way:
                while True:
                    await self._accepted.wait()
                    self._soon.clear()
                    under_way.create_task(self._beat(), name="beat")
                    hub_time = self._hub_clock.now() if self._hub_clock is not None else None
                    until_next = pause(self._session.beat_interval, self._random.random(), hub_time)
                    await wait_at_most(self._soon, until_next.total_seconds())
        except BaseExceptionGroup as group:
            raise first_error(group) from None  # the oldest beat's; at the end of a session all open beats fail alike

    async def _beat(self) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            async with asyncio.timeout(self._ack_timeout.total_seconds()):
                await self._session.beat(available=self._verdict())
        except TimeoutError:
            if not self._accepted.is_set():
                return  # the hub does not acknowledge beats of a cluster that it no longer accepts
            seconds = self._ack_timeout.total_seconds()
            raise HubLostError(f"the hub has not acknowledged a beat for {seconds:g} s", SessionLoss.SILENT) from None
        self._latency.observe(loop.time() - began)
        self._acknowledged()
