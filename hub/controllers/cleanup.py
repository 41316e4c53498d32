"""Owns the end of finished requests and of ended bootstrap credentials: they go after a while; records of certificates stay."""

from datetime import timedelta

import structlog

from hub.controllers import ACTOR
from hub.ports import Store
from hub.services import credentials, requests
from machinery.controller import Reconciler

NAME = "request-cleanup"

log = structlog.get_logger(__name__)


class RequestCleanup(Reconciler[str]):
    """`keep`: how long a finished request can still be looked at; `keep_credentials`: one that expired or was revoked."""

    def __init__(self, store: Store, keep: timedelta, keep_credentials: timedelta) -> None:
        self._store = store
        self._keep = keep
        self._keep_credentials = keep_credentials

    async def reconcile(self, key: str) -> timedelta | None:  # noqa: ARG002 - there is only one
        gone = await self._store.run(requests.expire_finished, self._keep, f"{ACTOR}:{NAME}")
        if gone:
            log.info("finished requests removed", count=gone)
        forgotten = await self._store.run(credentials.forget_ended, self._keep_credentials)
        if forgotten:
            log.info("ended bootstrap credentials forgotten", count=forgotten)
        return None
