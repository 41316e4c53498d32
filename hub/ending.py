"""How a hub ends: on whose word, and how long each step of it may take."""

import asyncio

from hub.settings import Settings
from machinery.lifecycle.server import StopTimes


class Ending:
    """Why a hub ends: it was asked to, or a part of it fell."""

    def __init__(self, requested: asyncio.Event) -> None:
        self._requested = requested
        self._failure: BaseException | None = None

    def failed(self, error: BaseException) -> None:
        self._failure = self._failure or error
        self._requested.set()

    async def wait(self) -> BaseException | None:
        await self._requested.wait()
        return self._failure


def stop_times_of(settings: Settings) -> StopTimes:
    return StopTimes(
        delay=settings.shutdown_delay,
        send_retry_after=settings.shutdown_send_retry_after,
        streams=settings.shutdown_grace,
    )
