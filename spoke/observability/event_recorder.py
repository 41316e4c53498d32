"""Records the agent's decisions as Events of the management cluster, without delaying or failing the agent."""

import asyncio
from collections import deque
from uuid import uuid4

import structlog

from machinery import product
from machinery.client.rest import KubeClient, RestResource
from machinery.errors import MusterError
from machinery.meta.timestamps import format_time
from machinery.runtime.clock import Clock
from spoke.ports.cluster import Announcer

log = structlog.get_logger(__name__)


EVENTS = RestResource("", "v1", "events")
ABOUT = "hub-kubeconfig-secret"
MAX_MESSAGE = 1024


class KubeEvents(Announcer):
    """Records each decision as a separate Event without counting repetitions, because decisions are rare and differ."""

    def __init__(self, client: KubeClient, namespace: str, clock: Clock) -> None:
        self._client = client
        self._namespace = namespace
        self._clock = clock

    async def announce(self, reason: str, message: str, *, warning: bool) -> None:
        now = format_time(self._clock.now())
        event = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": f"{ABOUT}.{uuid4().hex[:16]}", "namespace": self._namespace},
            "involvedObject": {"apiVersion": "v1", "kind": "Secret", "namespace": self._namespace, "name": ABOUT},
            "reason": reason,
            "message": message[:MAX_MESSAGE],
            "type": "Warning" if warning else "Normal",
            "source": {"component": f"{product.NAME}-agent"},
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        }
        await self._client.create(EVENTS.path(namespace=self._namespace), event)


QUEUE_LENGTH = 50


class Announcements:
    """Queues Events and records them in order while `run` runs. `announcer` None: it records nothing."""

    def __init__(self, announcer: Announcer | None) -> None:
        self._announcer = announcer
        self._waiting: deque[tuple[str, str, bool]] = deque(maxlen=QUEUE_LENGTH)
        self._some = asyncio.Event()

    def record(self, reason: str, message: str, *, warning: bool = False) -> None:
        """Queue an Event without waiting. If QUEUE_LENGTH Events already wait, drop the oldest of them."""
        if self._announcer is not None:
            self._waiting.append((reason, message, warning))
            self._some.set()

    async def run(self) -> None:
        while True:
            await self._some.wait()
            self._some.clear()
            while self._waiting:
                reason, message, warning = self._waiting.popleft()
                try:
                    if self._announcer is not None:
                        await self._announcer.announce(reason, message, warning=warning)
                except MusterError as error:
                    log.warning("event.lost", reason=reason, error=error.message)
