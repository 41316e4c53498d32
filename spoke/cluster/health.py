"""Monitors the managed cluster's API server, independent of any hub."""

import asyncio
from collections.abc import Callable

import structlog

from machinery.runtime.clock import Clock
from spoke.domain.status import PROBE_PERIOD, PROBE_PERIOD_WHILE_FAILING, Availability
from spoke.ports import Cluster

log = structlog.get_logger(__name__)


class AvailabilityWatch:
    """Probes the API server, records since when it fails, and calls listeners when the verdict changes.

    A probe waits only for its own answer, which `Cluster.health` bounds in time.
    """

    def __init__(self, cluster: Cluster, clock: Clock) -> None:
        self.current = Availability()
        self._cluster = cluster
        self._clock = clock
        self._listeners: list[Callable[[], None]] = []
        self._newest = float("-inf")
        """Start of the newest completed probe: of two overlapping probes the later one counts."""
        self.unavailable = asyncio.Event()
        """Set while the verdict is False."""

    @property
    def verdict(self) -> bool | None:
        """True: it answers. False: it has failed for longer than the threshold. None: unknown."""
        return self.current.verdict

    def listen(self, tell: Callable[[], None]) -> Callable[[], None]:
        """Call `tell` on every change of the verdict, until the returned function is called."""
        self._listeners.append(tell)
        return lambda: self._listeners.remove(tell)

    async def run(self) -> None:
        """Probe until cancelled, more often while the API server fails."""
        while True:
            began = self._clock.monotonic()
            _, answers = await self.look()
            period = PROBE_PERIOD if answers else PROBE_PERIOD_WHILE_FAILING
            await asyncio.sleep(max(0.0, period.total_seconds() - (self._clock.monotonic() - began)))

    async def look(self) -> tuple[Availability, bool]:
        """Run one probe; return the state, and whether the API server has just answered."""
        began = self._clock.monotonic()
        health = await self._cluster.health()
        if began < self._newest:
            return self.current, health.ok
        self._newest = began
        before = self.current
        self.current = before.observed(
            ok=health.ok, status_code=health.status_code, detail=health.detail, began=began, ended=self._clock.monotonic()
        )
        if self.current.verdict is not before.verdict:
            if self.current.verdict is False:
                self.unavailable.set()
            else:
                self.unavailable.clear()
            log.info("cluster.available" if self.current.verdict else "cluster.unavailable", detail=health.detail)
            for tell in tuple(self._listeners):
                tell()
        return self.current, health.ok
