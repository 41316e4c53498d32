"""Sends Events for operators to the hub: without repetition, with a bounded rate, and ignoring failures."""

import asyncio
from collections import deque

import structlog

from machinery.errors import MusterError
from spoke.domain.report import AgentEvent
from spoke.ports import HubLostError, HubSession

WAITING = 20
"""Largest number of waiting events; the oldest is dropped."""
AT_ONCE = 5
EVERY = 10.0
"""Seconds between two events after the first ones: less than a hub allows."""

log = structlog.get_logger(__name__)


class HubEvents:
    """Events of one session. They are sent only while `run` runs."""

    def __init__(self, session: HubSession) -> None:
        self._session = session
        self._waiting: deque[AgentEvent] = deque(maxlen=WAITING)
        self._told: dict[tuple[str, str], str] = {}
        self._wake = asyncio.Event()

    def tell(self, news: AgentEvent) -> None:
        """Queue an event, unless it repeats the last one with its reason and add-on."""
        about = (news.reason, news.addon)
        if self._told.get(about) != news.message:
            self._told[about] = news.message
            self._waiting.append(news)
            self._wake.set()

    async def run(self) -> None:
        """Send events until cancelled. Raises HubLostError."""
        left = AT_ONCE
        while True:
            await self._wake.wait()
            if not left:
                await asyncio.sleep(EVERY)
                left = 1
            news = self._waiting.popleft()
            left -= 1
            if not self._waiting:
                self._wake.clear()
            try:
                await self._session.tell(news)
            except HubLostError:
                raise
            except MusterError as error:
                log.info("news.not_told", reason=news.reason, error=error.message)
