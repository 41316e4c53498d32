"""The eight named moments in the life of a server. Each happens once."""

import asyncio
from datetime import datetime

import structlog

from machinery.runtime.clock import Clock

log = structlog.get_logger(__name__)


class LifecycleSignal:
    """A named one-shot latch. `signaled_at` is set before waiters wake."""

    def __init__(self, name: str, clock: Clock) -> None:
        self.name = name
        self._clock = clock
        self._latch = asyncio.Event()
        self._at: datetime | None = None

    def signal(self) -> None:
        """Set the latch. Idempotent: the first call counts."""
        if self._at is not None:
            return
        self._at = self._clock.now()
        log.info("lifecycle signal", signal=self.name, monotonic=round(self._clock.monotonic(), 6))
        self._latch.set()

    @property
    def signaled(self) -> bool:
        return self._at is not None

    @property
    def signaled_at(self) -> datetime | None:
        return self._at

    async def wait(self) -> None:
        """Wait until the latch is set."""
        await self._latch.wait()


class LifecycleSignals:
    """The eight signals with Kubernetes' names, in their usual order."""

    def __init__(self, clock: Clock) -> None:
        self.mux_and_discovery_complete = LifecycleSignal("MuxAndDiscoveryComplete", clock)
        self.has_been_ready = LifecycleSignal("HasBeenReady", clock)
        self.shutdown_initiated = LifecycleSignal("ShutdownInitiated", clock)
        self.after_shutdown_delay = LifecycleSignal("AfterShutdownDelayDuration", clock)
        self.pre_shutdown_hooks_stopped = LifecycleSignal("PreShutdownHooksStopped", clock)
        self.not_accepting_new_request = LifecycleSignal("NotAcceptingNewRequest", clock)
        self.in_flight_requests_drained = LifecycleSignal("InFlightRequestsDrained", clock)
        self.http_server_stopped_listening = LifecycleSignal("HTTPServerStoppedListening", clock)
