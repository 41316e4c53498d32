"""Owns the end of finished requests: decided ones go after a while, with their certificates' records kept."""

from datetime import timedelta

import structlog

from hub.controllers import ACTOR
from hub.ports import Store
from hub.services import requests
from machinery.controller import Reconciler

NAME = "request-cleanup"

log = structlog.get_logger(__name__)


class RequestCleanup(Reconciler[str]):
    """`keep`: how long a finished request can still be looked at."""

    def __init__(self, store: Store, keep: timedelta) -> None:
        self._store = store
        self._keep = keep

    async def reconcile(self, key: str) -> timedelta | None:  # noqa: ARG002 - there is only one
        gone = await self._store.run(requests.expire_finished, self._keep, f"{ACTOR}:{NAME}")
        if gone:
            log.info("finished requests removed", count=gone)
        return None
