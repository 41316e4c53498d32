"""Owns what dead replicas leave behind: sessions that nobody has, and after a while their rows."""

from collections.abc import Callable
from datetime import datetime

import structlog

from hub.api.hubreplicas.replica import could_tell
from hub.ports import Store, Transaction
from hub.registry.hubreplicas import service as replicas
from machinery.runtime.controller import Reconciler

NAME = "replicas"
Since = Callable[[Transaction], datetime | None]

log = structlog.get_logger(__name__)


class LostReplicas(Reconciler[str]):
    """Looks often, writes where there is something to end.

    `since`: from when on the hub could write without a gap; None: it cannot now. A replica that could not say that it lives is
    not dead: nobody is taken for that before all had the time for it that they always have.
    """

    def __init__(self, store: Store, *, since: Since) -> None:
        self._store = store
        self._since = since

    async def reconcile(self, key: str) -> None:  # noqa: ARG002 - there is only one
        if await self._store.look(self._has_work):
            ended = await self._store.run(replicas.sweep)
            log.info("sessions of lost replicas are over", count=ended)

    def _has_work(self, tx: Transaction) -> bool:
        return could_tell(self._since(tx), tx.now) and not replicas.is_swept(tx)
