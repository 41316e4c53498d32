"""Around every call of this door: the gate, who asks, the limits, and the record of it.

What the gate turns away leaves no record. A unary call leaves one, when its outcome is known; a stream leaves one when it has
opened and one when it has ended, if the policy wants them.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TypeVar
from urllib.parse import unquote
from uuid import uuid4

import structlog

from hub.access import check_agents_door
from hub.api.auditrecords.query import AuditEntry
from hub.api.auditrecords.record import AuditLevel, AuditRecord, ResponseStatus, Stage
from hub.api.bootstrapcredentials.attestation import AttestationError
from hub.api.certificates.certificate import CertificateRecord
from hub.api.meta.change import Change, ChangeType
from hub.audit.auditor import reference_of, short, user_of
from hub.audit.recording import change_of, recording
from hub.grpc_door.errors import Context
from hub.grpc_door.session.context import DoorContext
from machinery.apiserver.access import ANONYMOUS, Attributes
from machinery.apiserver.http.status_errors import CODES
from machinery.apiserver.storage import Actor
from machinery.errors import DenialCause, ForbiddenError, MusterError, UnauthorizedError
from machinery.observability import logs
from machinery.observability.tracing import Traced, serving
from machinery.product import NAME
from machinery.runtime.event_loop import hurry

T = TypeVar("T")
DECISION, REASON = "authorization.k8s.io/decision", "authorization.k8s.io/reason"
SERIAL = f"{NAME}/certificate-serial"
OK, CREATED = 200, 201
CUT_OFF = ResponseStatus(503, "ServiceUnavailable")
FAILED = ResponseStatus(500, "InternalError")
INTERNAL = 500
COME_BACK = (DenialCause.AUTHORITY_RETIRED, DenialCause.CERTIFICATE_LOST)
ENDLESS = 24 * 3600
"""Calls without a deadline say that they have longer than this, in seconds."""

log = structlog.get_logger(__name__)


def actor_of(record: CertificateRecord) -> Actor:
    """The holder of a certificate, as both doors know it."""
    return Actor(record.user, (*record.groups, "system:authenticated"), extra={SERIAL: (f"{record.serial:x}",)})


@dataclass(slots=True)
class RpcCall:
    """One call on its way: what it asks, in the words of the HTTPS door, and what became of it."""

    parts: DoorContext
    context: Context
    asked: Attributes
    received: datetime
    record: CertificateRecord | None = None
    """Set once it is known who asks."""
    created: bool = False
    made: str = ""
    """The name of what was made, where only the answer tells it."""
    audit_id: str = field(default_factory=lambda: str(uuid4()))
    address: str = field(init=False)
    """Where it comes from."""
    user_agent: str = field(init=False)
    shown: bytes = b""
    """The certificate of who asks, once that is known."""
    trace: Traced = field(init=False)
    """The span of the call; of a stream, until it has answered for the first time."""

    def __post_init__(self) -> None:
        """Asks now what is remembered later: a stream that its reader has left ends when gRPC's call is no more.

        To ask a call that is gone for its peer is a segmentation fault.
        """
        self.address = _address(self.context.peer())
        metadata = {str(name): str(value) for name, value in self.context.invocation_metadata() or ()}
        self.user_agent = short(metadata.get("user-agent", ""))
        self.trace = serving(
            self.asked.path.strip("/"), metadata.get, {"rpc.system": "grpc", "muster.request_id": self.audit_id}
        )

    async def identify(self) -> CertificateRecord:
        """Raises UnauthorizedError, UnavailableError; ForbiddenError for whom this door is not at all.

        TooManyRequestsError above the rate of refusals of the address. Whole fleets whose CA was replaced, or that a restore
        has forgotten, are not counted: they come back with their recovery certificates.
        """
        self.shown = self.parts.shown(self.context)
        try:
            self.record = await self.parts.peers.identify(self.shown)
        except UnauthorizedError as error:
            if error.verdict not in COME_BACK:
                self.parts.limits.refuse(self.address)
            raise
        check_agents_door(self.record)
        if self.record.cluster:
            logs.also(cluster=self.record.cluster)
            self.trace.note("muster.cluster", self.record.cluster)
        return self.record

    async def confirm(self) -> None:
        """Who asks is still known, after what was waited for since. Raises as `identify`."""
        await self.parts.peers.identify(self.shown)

    def seat(self, flow: str = "") -> AbstractAsyncContextManager[None]:
        """A block that counts against the limits; who asks is known. Raises TooManyRequestsError."""
        left = self.context.time_remaining()
        has = timedelta(seconds=max(left, 0)) if left is not None and left < ENDLESS else None
        return self.parts.limits.seat(self.actor, self.asked, flow=flow, has=has)

    @property
    def method(self) -> str:
        """The method of the service that was called."""
        return self.asked.path.rpartition("/")[2]

    @property
    def actor(self) -> Actor:
        return ANONYMOUS if self.record is None else actor_of(self.record)

    def opened(self) -> AuditEntry | None:
        """The stream has answered for the first time: what it says from now on belongs to what causes that.

        Its record, to be written with what the opening writes; None: none is wanted, or it is on its way.
        """
        self.trace.end()
        return self._entry(Stage.RESPONSE_STARTED)

    def stored_with(self) -> AuditEntry | None:
        """The record of a success, to be written with what it stores; None: none is wanted, or it is on its way."""
        self.parts.calls.ended(self.method, None)
        return self._entry(Stage.RESPONSE_COMPLETE)

    def _entry(self, stage: Stage) -> AuditEntry | None:
        try:
            auditor = self.parts.auditor
            verdict = auditor.verdict(self.actor, self.asked)
            if not verdict.remembers(stage):
                return None
            return auditor.entry(self._written(stage, ResponseStatus(OK), self.actor, verdict.level, None))
        except Exception:
            log.exception("a call could not be audited", audit_id=self.audit_id)
            return None

    def ended(self, error: BaseException | None, *, stored: bool = False) -> None:
        """The call has its outcome. `stored`: its record is in the database with what it changed."""
        self.parts.calls.ended(self.method, error)
        if error is None:
            self._remember(Stage.RESPONSE_COMPLETE, ResponseStatus(CREATED if self.created else OK), stored=stored)
        elif isinstance(error, MusterError):
            status = ResponseStatus(CODES.get(error.reason, INTERNAL), error.reason)
            self._remember(Stage.RESPONSE_COMPLETE, status, error)
        elif isinstance(error, Exception):
            self._remember(Stage.PANIC, FAILED)
        else:
            self._remember(Stage.RESPONSE_COMPLETE, CUT_OFF)

    def _remember(
        self, stage: Stage, status: ResponseStatus, error: MusterError | None = None, *, stored: bool = False
    ) -> None:
        try:
            auditor = self.parts.auditor
            actor = self.actor
            verdict = auditor.verdict(actor, self.asked)
            if verdict.remembers(stage):
                auditor.offer(self._written(stage, status, actor, verdict.level, error), stored=stored)
        except Exception:
            log.exception("a call could not be audited", audit_id=self.audit_id)

    def changed(self, changes: Sequence[Change]) -> AuditRecord | None:
        """The record of a call that changes something, in the transaction of the change."""
        verdict = self.parts.auditor.verdict(self.actor, self.asked)
        if not verdict.remembers(Stage.RESPONSE_COMPLETE):
            return None
        change = change_of(changes, self.asked.resource)
        status = ResponseStatus(CREATED if change is not None and change.type is ChangeType.ADDED else OK)
        self.made = self.made or (change.key.name if change is not None else "")
        return self._written(Stage.RESPONSE_COMPLETE, status, self.actor, verdict.level, None)

    def _written(
        self, stage: Stage, status: ResponseStatus, actor: Actor, level: AuditLevel, error: MusterError | None
    ) -> AuditRecord:
        notes = {}
        if not isinstance(error, UnauthorizedError):
            refused = isinstance(error, ForbiddenError)
            notes = {DECISION: "forbid" if refused else "allow", REASON: short(told_of(error)) if refused and error else ""}
        return AuditRecord(
            level=level,
            audit_id=self.audit_id,
            stage=stage,
            request_uri=self.asked.path,
            verb=self.asked.verb,
            user=user_of(actor),
            source_ips=(self.address,),
            user_agent=self.user_agent,
            object_ref=reference_of(self.asked, name=self.made),
            response_status=status,
            received=self.received,
            at=self.parts.auditor.clock.now(),
            annotations=notes,
        )


async def unary(
    parts: DoorContext,
    context: Context,
    asked: Attributes,
    work: Callable[[RpcCall, CertificateRecord], Awaitable[T]],
    *,
    flow: str,
) -> T:
    """The answer of `work`, within the limits, remembered. Raises what it raises, and UnavailableError at a closed gate."""
    hurry()
    with parts.gate.entered():
        call = RpcCall(parts, context, asked, parts.auditor.clock.now())
        try:
            logs.also(request_id=call.audit_id)  # of this task, which is the call's own: what tells of its failure has it too
            with call.trace:
                record = await call.identify()
                with recording(parts.auditor, call.changed) as written:
                    async with call.seat(flow):
                        answer = await work(call, record)
        except BaseException as error:
            call.ended(error)
            raise
        call.ended(None, stored=written.stored)
        parts.calls.took(call.method, parts.auditor.clock.now() - call.received)
        return answer


@asynccontextmanager
async def stream(parts: DoorContext, context: Context, asked: Attributes) -> AsyncIterator[RpcCall]:
    """A block around a stream, which says when it has `opened`. Raises as `unary` does."""
    hurry()
    with parts.gate.entered():
        call = RpcCall(parts, context, asked, parts.auditor.clock.now())
        logs.also(request_id=call.audit_id)  # of this task: a generator may be left in another, where nothing can be taken back
        try:
            with call.trace:
                yield call
        except BaseException as error:
            call.ended(None if isinstance(error, GeneratorExit) else error)
            raise
        call.ended(None)


def told_of(error: MusterError) -> str:
    """What the audit log says of an error: more than the peer hears of a failed attestation."""
    return f"attestation failed: {error.why}" if isinstance(error, AttestationError) else error.message


def _address(peer: str) -> str:
    """`ipv4:127.0.0.1:12345` as the address alone."""
    _, _, rest = unquote(peer).partition(":")
    return rest.rpartition(":")[0].strip("[]")
