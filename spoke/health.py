"""What is known of the managed cluster's API server, whether or not a hub is there to be told."""

from collections.abc import Callable

import structlog

from machinery.clock import Clock
from spoke.domain.status import Availability
from spoke.ports import Cluster

log = structlog.get_logger(__name__)


class AvailabilityWatch:
    """Looks at the API server when asked to and remembers since when it has failed; tells when the verdict changes."""

    def __init__(self, cluster: Cluster, clock: Clock) -> None:
        self.current = Availability()
        self._cluster = cluster
        self._clock = clock
        self._listeners: list[Callable[[], None]] = []

    @property
    def verdict(self) -> bool | None:
        """True: it answers. False: it has failed for longer than the threshold. None: not known yet."""
        return self.current.verdict

    def listen(self, tell: Callable[[], None]) -> Callable[[], None]:
        """Calls `tell` at every change of the verdict, until the returned function is called."""
        self._listeners.append(tell)
        return lambda: self._listeners.remove(tell)

    async def look(self) -> tuple[Availability, bool]:
        """One look: what is known now, and whether the API server answered just now."""
        health = await self._cluster.health()
        before = self.current
        self.current = before.observed(
            ok=health.ok, status_code=health.status_code, detail=health.detail, at=self._clock.monotonic()
        )
        if self.current.verdict is not before.verdict:
            log.info("cluster.available" if self.current.verdict else "cluster.unavailable", detail=health.detail)
            for tell in tuple(self._listeners):
                tell()
        return self.current, health.ok
