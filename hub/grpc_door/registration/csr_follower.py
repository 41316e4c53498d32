"""Streams that follow a certificate request until the request is final, or until the caller's certificate is invalid."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import nullcontext
from datetime import UTC, timedelta

from hub.api import certificatesigningrequests as requests_domain
from hub.api.certificates import CertificateRecord
from hub.api.certificatesigningrequests import RequestPhase, RequestState
from hub.api.meta import document as doc
from hub.api.meta.change import REQUESTS
from hub.grpc_door.session.calls import RpcCall
from hub.grpc_door.session.context import DoorContext
from hub.ports import Transaction
from hub.registry.certificatesigningrequests import service as requests
from hub.registry.generic.objects import not_found_error
from machinery.apiserver.http.limits import Openings
from machinery.errors import ForbiddenError, UnavailableError
from machinery.identity import CLUSTER_LABEL, SerialNumber
from machinery.meta.objects import Document
from machinery.runtime.event_loop import wait_at_most
from machinery.wire.registration.v1 import registration_pb2 as wire

RECHECK = timedelta(seconds=30)
"""A waiting stream checks at least this often that its certificate is still valid."""
MAX_STREAMS = 16
"""Largest number of streams of one certificate for one request. An agent has one stream; its lost streams still count for a
while."""
EXPIRY_MARGIN = timedelta(milliseconds=1)
"""A stream checks its certificate this long after the certificate expires."""

_STATES = {
    RequestPhase.PENDING: wire.FollowRequestResponse.STATE_PENDING,
    RequestPhase.APPROVED: wire.FollowRequestResponse.STATE_APPROVED,
    RequestPhase.DENIED: wire.FollowRequestResponse.STATE_DENIED,
    RequestPhase.FAILED: wire.FollowRequestResponse.STATE_FAILED,
    RequestPhase.ISSUED: wire.FollowRequestResponse.STATE_ISSUED,
}


Check = Callable[..., None]
"""Raises ForbiddenError unless the holder of a record may follow a request that `requester` made for `cluster`."""


class CSRFollower:
    """Streams states of certificate requests to callers."""

    def __init__(self, parts: DoorContext) -> None:
        self._parts = parts
        self._following: set[asyncio.Event] = set()
        self._streams = Openings(MAX_STREAMS, 0, f"this certificate follows the request in {MAX_STREAMS} streams already")
        parts.peers.listen(self._recheck)

    def following(self) -> Sequence[asyncio.Event]:
        """Returns the events that wake the open streams. After the gate is closed, a woken stream ends with UNAVAILABLE."""
        return tuple(self._following)

    def _recheck(self, _revoked: frozenset[SerialNumber] | None) -> None:
        """Wakes all streams to check their certificates, after a revocation or while revocations cannot be read."""
        for woken in self.following():
            woken.set()

    async def follow(self, name: str, call: RpcCall, check: Check) -> AsyncIterator[wire.FollowRequestResponse]:
        """Yields the state of the request `name`, immediately and after each change, until it is final.

        Raises NotFoundError, also for a caller that `check` refuses; UnauthorizedError when the certificate is no longer valid;
        UnavailableError when the gate is closed.
        """
        sent: RequestState | None = None
        seen, woken, feed = 0, asyncio.Event(), self._parts.feed
        woken.set()
        with self._streams.one(f"{name} {call.shown.hex()}"), feed.subscribe(REQUESTS, name, woken.set):
            self._following.add(woken)
            try:
                while True:
                    change = feed.newest(name) if woken.is_set() else None
                    woken.clear()
                    if self._parts.gate.closed:
                        raise UnavailableError("this hub is shutting down: follow the request again")
                    record = await self._parts.peers.identify(call.shown)
                    async with nullcontext() if sent else call.seat(name):
                        if change is not None and change.revision >= seen:
                            seen, state = change.revision, _state_of(change.document, record, check)
                        else:
                            seen, state = await self._parts.store.read(_state, name, record, check)
                    if sent is None:
                        call.opened(offered=True)
                    if state != sent:
                        answer = wire.FollowRequestResponse(
                            name=name,
                            state=_STATES[state.phase],
                            reason=state.reason,
                            message=state.message,
                            certificate=state.certificate,
                            recovery_certificate=state.recovery_certificate,
                        )
                        answer.hub_time.FromDatetime(self._parts.clock.now().astimezone(UTC))
                        yield answer
                    sent = state
                    if state.is_final:
                        return
                    left = max(record.not_after - self._parts.clock.now(), timedelta()) + EXPIRY_MARGIN
                    await wait_at_most(woken, min(RECHECK, left).total_seconds())
            finally:
                self._following.discard(woken)


def _state(tx: Transaction, name: str, record: CertificateRecord, check: Check) -> tuple[int, RequestState]:
    """Returns revision and state of a request if the caller may read it. Raises NotFoundError."""
    stored = requests.find(tx, name)
    return stored.revision, _state_of(stored.document, record, check)


def _state_of(document: Document, record: CertificateRecord, check: Check) -> RequestState:
    requester = str(doc.mapping(document, "spec").get("username") or "")
    try:
        check(record, requester=requester, cluster=doc.labels(document).get(CLUSTER_LABEL, ""))
    except ForbiddenError:
        raise not_found_error(REQUESTS, doc.name(document)) from None  # does not reveal which requests of others exist
    return requests_domain.state(document)
