"""What the agent tells people at the hub: Events, told once, never many at a time, and never a reason to fail."""

import asyncio
from collections import deque

import structlog

from machinery.errors import MusterError
from spoke.domain.event import AgentEvent
from spoke.ports import HubLostError, HubSession

WAITING = 20
"""News that wait; the oldest gives way."""
AT_ONCE = 5
EVERY = 10.0
"""Seconds until one more may be told: less than a hub allows."""

log = structlog.get_logger(__name__)


class HubEvents:
    """On one session. `run` must be running for anything to be told."""

    def __init__(self, session: HubSession) -> None:
        self._session = session
        self._waiting: deque[AgentEvent] = deque(maxlen=WAITING)
        self._told: dict[tuple[str, str], str] = {}
        self._wake = asyncio.Event()

    def tell(self, news: AgentEvent) -> None:
        """To be told soon; the same as last time is no news."""
        about = (news.reason, news.addon)
        if self._told.get(about) != news.message:
            self._told[about] = news.message
            self._waiting.append(news)
            self._wake.set()

    async def run(self) -> None:
        """Tells until cancelled. Raises HubLostError."""
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
