"""Owns what dead replicas leave behind: sessions that nobody has, and after a while their rows."""

import structlog

from hub.ports import Store
from hub.services import replicas
from machinery.controller import Reconciler

NAME = "replicas"

log = structlog.get_logger(__name__)


class LostReplicas(Reconciler[str]):
    """Looks often, writes where there is something to end."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def reconcile(self, key: str) -> None:  # noqa: ARG002 - there is only one
        if not await self._store.read(replicas.is_swept):
            ended = await self._store.run(replicas.sweep)
            log.info("sessions of lost replicas are over", count=ended)
