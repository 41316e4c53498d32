"""Sends beats at the hub's interval while the hub accepts this cluster.

All agents of a hub send beats at the same instants (`spoke.domain.schedule`), so that a hub acknowledges many beats together.
Each beat waits for its own acknowledgement. If a beat is not acknowledged in time, the hub counts as silent, and the session as
lost. This also applies if the TCP connection works and keepalive pings are answered.
"""

import asyncio
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field
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


@dataclass(eq=False)
class HeartbeatSender:
    """Sends the beats of one session. Calls `verdict` for every beat, and `acknowledged` for every acknowledged beat."""

    session: HubSession
    _: KW_ONLY
    verdict: Callable[[], bool | None]
    acknowledged: Callable[[], None]
    ack_timeout: timedelta = SILENCE
    random: Random = field(default_factory=Random)
    latency: Distribution = field(default_factory=Distribution)
    hub_clock: Clock | None = None
    """The hub's clock, so that all agents beat at the same instants (`spoke.domain.schedule`); None: at random instants."""
    _accepted: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    _soon: asyncio.Event = field(default_factory=asyncio.Event, init=False)

    def accept(self, *, accepted: bool) -> None:
        """Set whether the cluster is accepted. Beats are sent only while this is True."""
        if accepted and not self._accepted.is_set():
            log.info("lease.started")
            self._accepted.set()
            self.send_now()
        elif not accepted and self._accepted.is_set():
            log.info("lease.stopped", why="the hub does not accept this cluster")
            self._accepted.clear()

    def send_now(self) -> None:
        """Send the next beat immediately, because the verdict has changed."""
        self._soon.set()

    async def run(self) -> None:
        """Send beats until cancelled. Raises HubLostError when the hub is silent or the session has ended."""
        try:
            async with asyncio.TaskGroup() as under_way:
                while True:
                    await self._accepted.wait()
                    self._soon.clear()
                    under_way.create_task(self._beat(), name="beat")
                    hub_time = self.hub_clock.now() if self.hub_clock is not None else None
                    until_next = pause(self.session.beat_interval, self.random.random(), hub_time)
                    await wait_at_most(self._soon, until_next.total_seconds())
        except BaseExceptionGroup as group:
            raise first_error(group) from None  # of the oldest beat; after the session's end, all errors are the same

    async def _beat(self) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            async with asyncio.timeout(self.ack_timeout.total_seconds()):
                await self.session.beat(available=self.verdict())
        except TimeoutError:
            if not self._accepted.is_set():
                return  # the hub does not acknowledge beats of a cluster that it no longer accepts
            seconds = self.ack_timeout.total_seconds()
            raise HubLostError(f"the hub has not acknowledged a beat for {seconds:g} s", SessionLoss.SILENT) from None
        self.latency.observe(loop.time() - began)
        self.acknowledged()
