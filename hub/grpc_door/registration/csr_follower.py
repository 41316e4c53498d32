"""Streams that follow a certificate request until it is decided, each within its bound and for as long as its holder may."""

from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from datetime import UTC, timedelta
from typing import Protocol

from hub.api.certificates.certificate import CertificateRecord
from hub.api.certificatesigningrequests import request as requests_domain
from hub.api.certificatesigningrequests.request import RequestPhase, RequestState
from hub.api.meta import document as doc
from hub.api.meta.change import ChangeType, Document
from hub.grpc_door.changes.subscription import Followed
from hub.grpc_door.session.context import DoorContext
from hub.grpc_door.session.interceptor import RpcCall
from hub.ports import Transaction
from hub.registry.certificatesigningrequests import service as requests
from machinery.errors import ForbiddenError, TooManyRequestsError, UnavailableError
from machinery.identity import CLUSTER_LABEL
from machinery.wire.registration.v1 import registration_pb2 as wire

RECHECK = timedelta(seconds=30)
"""A stream that waits asks at least this often whether its certificate is still good."""
MOST_OF_ONE = 16
"""Streams in which one certificate follows one request: an agent has one, and some that it has lost and we do not know of."""
SOON = timedelta(milliseconds=1)
"""After the end of its certificate a stream looks, so that it is over by then."""

_STATES = {
    RequestPhase.PENDING: wire.FollowRequestResponse.STATE_PENDING,
    RequestPhase.APPROVED: wire.FollowRequestResponse.STATE_APPROVED,
    RequestPhase.DENIED: wire.FollowRequestResponse.STATE_DENIED,
    RequestPhase.FAILED: wire.FollowRequestResponse.STATE_FAILED,
    RequestPhase.ISSUED: wire.FollowRequestResponse.STATE_ISSUED,
}


class Check(Protocol):
    """Raises ForbiddenError unless the holder may follow a request that `requester` made for `cluster`."""

    def __call__(self, record: CertificateRecord, *, requester: str, cluster: str) -> None: ...


class CSRFollower:
    """Told to those who wait for them."""

    def __init__(self, parts: DoorContext) -> None:
        self._parts = parts
        self._following: set[Followed] = set()
        self._places = Counter[tuple[str, bytes]]()
        parts.peers.listen(lambda _serial: self._look_again())

    def following(self) -> Sequence[Callable[[], None]]:
        """What ends each stream, with UNAVAILABLE, once the gate is closed."""
        return [followed.wake for followed in self._following]

    def _look_again(self) -> None:
        """Somebody's certificate is revoked, or nobody can be known: who waits asks whether his is still good."""
        for followed in tuple(self._following):
            followed.wake()

    async def follow(self, name: str, call: RpcCall, check: Check) -> AsyncIterator[wire.FollowRequestResponse]:
        """Where the request stands, at once and at each change, until that is final. `check`: whether the peer may know."""
        told = None
        with self._place(name, call.shown or self._parts.shown(call.context)), self._parts.feed.followed(name) as followed:
            self._following.add(followed)
            try:
                while True:
                    change = followed.take()
                    if self._parts.gate.closed:
                        raise UnavailableError("this hub is shutting down: follow the request again")
                    record = await call.identify()
                    async with nullcontext() if told else call.seat(name):
                        if change is None or change.type is ChangeType.DELETED:
                            revision, state = await self._parts.store.read(_state, name, record, check)
                            followed.read(revision)
                        else:
                            state = _state_of(change.document, record, check)
                    if told is None:
                        call.opened()
                    if state != told:
                        yield self._encoded(name, state)
                    told = state
                    if state.is_final:
                        return
                    await followed.wait(min(RECHECK, max(record.not_after - self._parts.clock.now(), timedelta()) + SOON))
            finally:
                self._following.discard(followed)

    @contextmanager
    def _place(self, name: str, certificate: bytes) -> Iterator[None]:
        """Of one who follows a request. Raises TooManyRequestsError when he does so in too many streams already."""
        if self._places[name, certificate] >= MOST_OF_ONE:
            raise TooManyRequestsError(
                f"this certificate follows the request in {MOST_OF_ONE} streams already", retry_after=RECHECK
            )
        self._places[name, certificate] += 1
        try:
            yield
        finally:
            self._places[name, certificate] -= 1
            if not self._places[name, certificate]:
                del self._places[name, certificate]

    def _encoded(self, name: str, state: RequestState) -> wire.FollowRequestResponse:
        answer = wire.FollowRequestResponse(
            name=name,
            state=_STATES[state.phase],
            reason=state.reason,
            message=state.message,
            certificate=state.certificate,
            recovery_certificate=state.recovery_certificate,
        )
        answer.hub_time.FromDatetime(self._parts.clock.now().astimezone(UTC))
        return answer


def _state(tx: Transaction, name: str, record: CertificateRecord, check: Check) -> tuple[int, RequestState]:
    """The request's revision and where it stands, for one who may know. Raises NotFoundError."""
    stored = requests.find(tx, name)
    return stored.revision, _state_of(stored.document, record, check)


def _state_of(document: Document, record: CertificateRecord, check: Check) -> RequestState:
    requester = str(doc.mapping(document, "spec").get("username") or "")
    try:
        check(record, requester=requester, cluster=doc.labels(document).get(CLUSTER_LABEL, ""))
    except ForbiddenError:
        raise requests.missing(doc.name(document)) from None  # nobody learns which requests of others there are
    return requests_domain.state(document)
