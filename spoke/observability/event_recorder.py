"""Records the agent's decisions as Events of the management cluster, without delaying or failing the agent."""

import asyncio
from collections import deque

import structlog

from machinery.errors import MusterError
from spoke.ports import Announcer

MOST = 50

log = structlog.get_logger(__name__)


class Announcements:
    """Queues Events and records them in order while `run` runs."""

    def __init__(self, announcer: Announcer | None) -> None:
        self._announcer = announcer
        self._waiting: deque[tuple[str, str, bool]] = deque(maxlen=MOST)
        self._some = asyncio.Event()

    def tell(self, reason: str, message: str, *, warning: bool = False) -> None:
        """Queue an Event and return at once; the oldest is dropped when too many wait."""
        if self._announcer is not None:
            self._waiting.append((reason, message, warning))
            self._some.set()

    async def run(self) -> None:
        """Record Events until cancelled."""
        while True:
            await self._some.wait()
            self._some.clear()
            while self._waiting:
                reason, message, warning = self._waiting.popleft()
                await self._hand_over(reason, message, warning=warning)

    async def _hand_over(self, reason: str, message: str, *, warning: bool) -> None:
        if self._announcer is None:
            return
        try:
            await self._announcer.announce(reason, message, warning=warning)
        except MusterError as error:
            log.warning("event.lost", reason=reason, error=error.message)
