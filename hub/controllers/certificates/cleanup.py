"""Deletes finished certificate requests and ended bootstrap credentials after their retention time."""

from datetime import timedelta

import structlog

from hub.api.certificatesigningrequests.request import RequestRetention
from hub.controllers import ACTOR
from hub.controllers.clock_guard import Steadiness
from hub.ports import Store
from hub.registry.bootstrapcredentials import service as credentials
from hub.registry.certificatesigningrequests import service as request_ends
from hub.registry.certificatesigningrequests.service import REMOVED_AT_ONCE
from machinery.runtime.controller import Reconciler

NAME = "request-cleanup"

log = structlog.get_logger(__name__)


class RequestCleanup(Reconciler[str]):
    """`ends`: retention of requests. `keep_credentials`: retention of expired or revoked credentials.

    `steady`: postpones all deletions while the database's clock is not trusted.
    """

    def __init__(self, store: Store, ends: RequestRetention, keep_credentials: timedelta, steady: Steadiness) -> None:
        self._store = store
        self._ends = ends
        self._keep_credentials = keep_credentials
        self._steady = steady

    async def reconcile(self, key: str) -> timedelta | None:  # noqa: ARG002 - there is only one
        due = await self._steady.read(self._store, request_ends.due_for_removal, self._ends) or ()
        portions = [due[place : place + REMOVED_AT_ONCE] for place in range(0, len(due), REMOVED_AT_ONCE)]
        gone = 0
        for names in portions:
            gone += await self._steady.run(self._store, request_ends.expire, names, self._ends, f"{ACTOR}:{NAME}") or 0
        if gone:
            log.info("finished requests removed", count=gone)
        forgotten = await self._steady.run(self._store, credentials.forget_ended, self._keep_credentials)
        if forgotten:
            log.info("ended bootstrap credentials forgotten", count=forgotten)
        return self._steady.wait or None
