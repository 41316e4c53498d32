"""Owns the length of the change log: what is older than the watch window is forgotten."""

from datetime import timedelta

import structlog

from hub.ports import Store, Transaction
from machinery.controller import Reconciler

NAME = "compaction"

log = structlog.get_logger(__name__)


class Compaction(Reconciler[str]):
    """`window`: a watch can resume from a change that is at most this old."""

    def __init__(self, store: Store, window: timedelta) -> None:
        self._store = store
        self._window = window

    async def reconcile(self, key: str) -> timedelta | None:  # noqa: ARG002 - there is only one
        gone = await self._store.run(_compact, self._window)
        if gone:
            log.info("change log compacted", rows=gone)
        return None


def _compact(tx: Transaction, window: timedelta) -> int:
    return tx.changes.compact(tx.now - window)
