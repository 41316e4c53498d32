"""The reason for which a hub stops, and the time for each step."""

import asyncio

from hub.settings import HubSettings
from machinery.lifecycle.server import StopTimes


class ShutdownReason:
    """A hub stops on request or when one of its tasks fails. `requested` is set in both cases."""

    def __init__(self, requested: asyncio.Event) -> None:
        self.requested = requested
        self._failure: BaseException | None = None

    def failed(self, error: BaseException) -> None:
        """Record the first failure and request the stop."""
        self._failure = self._failure or error
        self.requested.set()

    async def wait(self) -> BaseException | None:
        """Wait for the request; return the failure that caused it, if any."""
        await self.requested.wait()
        return self._failure


def stop_times_of(settings: HubSettings) -> StopTimes:
    return StopTimes(
        delay=settings.shutdown_delay,
        send_retry_after=settings.shutdown_send_retry_after,
        streams=settings.shutdown_grace,
    )
