"""Creates core/v1 Events in the component namespace, about the owner's secret."""

from uuid import uuid4

from machinery import product
from machinery.client.rest import KubeClient, RestResource
from machinery.meta.timestamps import format_time
from machinery.runtime.clock import Clock
from spoke.ports import Announcer

EVENTS = RestResource("", "v1", "events")
ABOUT = "hub-kubeconfig-secret"
LONGEST = 1024
"""Longest message of an Event in Kubernetes, in characters."""


class KubeEvents(Announcer):
    """Each is a separate Event: decisions are rare, and no two are alike."""

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
            "message": message[:LONGEST],
            "type": "Warning" if warning else "Normal",
            "source": {"component": f"{product.NAME}-agent"},
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        }
        await self._client.create(EVENTS.path(namespace=self._namespace), event)
