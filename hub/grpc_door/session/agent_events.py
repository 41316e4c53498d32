"""Creates Events in a cluster's namespace from messages of its agent, at a limited rate and without an answer.

Messages above the limit are dropped, with one log line; the session continues.
"""

import asyncio
import re

import structlog

from hub.api import events as rules
from hub.ports import Store
from hub.registry import events
from machinery.errors import MusterError
from machinery.identity import ClusterName
from machinery.wire.session.v1 import session_pb2 as wire

AT_ONCE = 10
EVERY = 6.0
"""Seconds until one more is permitted."""
MAX_MESSAGE = 1024
_REASON = re.compile(r"[A-Za-z][A-Za-z0-9]{0,127}")
_TYPES = (rules.NORMAL, rules.WARNING)

log = structlog.get_logger(__name__)


class AgentEvents:
    """Events of one session."""

    def __init__(self, store: Store, cluster: ClusterName, actor: str) -> None:
        self._store = store
        self._cluster = cluster
        self._actor = actor
        self._left = float(AT_ONCE)
        self._looked = asyncio.get_running_loop().time()
        self._dropped = 0

    async def take(self, message: wire.Event) -> None:
        """Stores a valid event within the rate. If the store cannot be written, the event is lost: it is not a report."""
        if message.type not in _TYPES or _REASON.fullmatch(message.reason) is None or not self._room():
            self._dropped += 1
            if self._dropped == 1:
                log.warning("an agent's event is dropped", cluster=self._cluster, reason=message.reason[:80])
            return
        self._dropped = 0
        said = message.message[:MAX_MESSAGE]
        try:
            await self._store.run(
                events.tell_of_agent, self._cluster, message.addon_name, (message.type, message.reason, said), self._actor
            )
        except MusterError as error:
            log.info("an agent's event is lost", cluster=self._cluster, reason=message.reason, error=error.message)

    def _room(self) -> bool:
        now = asyncio.get_running_loop().time()
        self._left = min(self._left + (now - self._looked) / EVERY, AT_ONCE)
        self._looked = now
        if self._left < 1:
            return False
        self._left -= 1
        return True
