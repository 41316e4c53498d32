"""Ends the sessions of lost replicas, and later deletes their rows."""

from collections.abc import Callable
from datetime import datetime

import structlog

from hub.api.hubreplicas import could_tell
from hub.ports import Store, Transaction
from hub.registry.hubreplicas import service as replicas
from machinery.runtime.controller import Reconciler

NAME = "replicas"
Since = Callable[[Transaction], datetime | None]

log = structlog.get_logger(__name__)


class LostReplicas(Reconciler[str]):
    """Checks often, and writes only if there are sessions to end.

    `since`: returns since when the hub could write without a gap; None: it cannot write now. A replica that could not write its
    row is not lost: after an outage, all replicas get the usual time again.
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
