"""Wraps the calls of the services Registration and Session: gate, authentication, limits, audit and trace.

Calls that the gate refuses, or that wait too long for the event loop, are not audited. If the audit policy requires it, a unary
call gets one audit record, when its outcome is known. A stream gets two, when it opens and when it ends.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from urllib.parse import unquote
from uuid import uuid4

import structlog

from hub.access.rules import check_agents_door
from hub.api.auditrecords import AuditEntry, AuditLevel, AuditRecord, ResponseStatus, Stage
from hub.api.bootstrapcredentials import AttestationError
from hub.api.certificates import CertificateRecord
from hub.api.meta.change import Change
from hub.audit.auditor import reference_of, short, user_of
from hub.audit.recording import change_of, recording
from hub.grpc_door.errors import Context
from hub.grpc_door.session.context import DoorContext
from machinery.apiserver.access import ANONYMOUS, Attributes
from machinery.apiserver.storage import Actor
from machinery.errors import CODES, DenialCause, ForbiddenError, MusterError, UnauthorizedError
from machinery.identity import AUTHENTICATED_GROUP, ClusterName
from machinery.meta.objects import ChangeType
from machinery.observability import logs
from machinery.observability.tracing import Traced, serving
from machinery.product import NAME
from machinery.runtime.event_loop import skip_pauses

DECISION, REASON = "authorization.k8s.io/decision", "authorization.k8s.io/reason"
SERIAL = f"{NAME}/certificate-serial"
OK, CREATED = 200, 201
CUT_OFF = ResponseStatus(503, "ServiceUnavailable")
FAILED = ResponseStatus(500, "InternalError")
INTERNAL = 500
RECOVERABLE_CAUSES = (DenialCause.AUTHORITY_RETIRED, DenialCause.CERTIFICATE_LOST)
NO_DEADLINE = 24 * 3600
"""Seconds. Calls without a deadline report a longer remaining time than this."""

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class RpcCall:
    """One gRPC call: its attributes in the form of a request at the HTTPS door, and its outcome."""

    parts: DoorContext
    context: Context
    asked: Attributes
    received: datetime
    actor: Actor = ANONYMOUS
    """The caller; authentication sets it."""
    created: bool = False
    made: str = ""
    """The name of the created object, if only the answer contains it."""
    stored: bool = False
    """Whether the audit record was written in the transaction of the change."""
    audit_id: str = field(default_factory=lambda: str(uuid4()))
    address: str = field(init=False)
    """The peer's address."""
    user_agent: str = field(init=False)
    shown: bytes = b""
    """The peer's certificate, set before authentication."""
    trace: Traced = field(init=False)
    """The span of the call; the span of a stream ends with the first answer."""

    def __post_init__(self) -> None:
        """Reads the peer and metadata now, because gRPC's call may no longer exist when a stream ends.

        Reading the peer of such a call causes a segmentation fault.
        """
        self.address = _address(self.context.peer())
        metadata = {str(name): str(value) for name, value in self.context.invocation_metadata() or ()}
        self.user_agent = short(metadata.get("user-agent", ""))
        self.trace = serving(
            self.asked.path.strip("/"), metadata.get, {"rpc.system": "grpc", "muster.request_id": self.audit_id}
        )

    def seat(self, flow: str = "", *, has: timedelta | None = None) -> AbstractAsyncContextManager[None]:
        """Holds a seat of the priority level. `has`: time limit if the call has no deadline. Raises TooManyRequestsError."""
        left = self.context.time_remaining()
        has = timedelta(seconds=max(left, 0)) if left is not None and left < NO_DEADLINE else has
        return self.parts.limits.seat(self.actor, self.asked, flow=flow, time_left=has)

    @property
    def method(self) -> str:
        """The name of the called method."""
        return self.asked.path.rpartition("/")[2]

    def opened(self, *, offered: bool = False) -> AuditEntry | None:
        """Records that the stream has given its first answer, and ends the call's span.

        Returns the audit record to be written with the session; None if no record is required. If `offered`, queues the record
        and returns None.
        """
        self.trace.end()
        return self._audited(Stage.RESPONSE_STARTED, ResponseStatus(OK), offered=offered)

    def stored_with(self) -> AuditEntry | None:
        """Counts a success. Returns the audit record to be written with the call's data; None if no record is required."""
        self.parts.calls.ended(self.method, None)
        return self._audited(Stage.RESPONSE_COMPLETE, ResponseStatus(OK))

    def ended(self, error: BaseException | None) -> None:
        """Records the outcome of the call in the counters and in the audit log."""
        self.parts.calls.ended(self.method, error)
        stage, status = Stage.RESPONSE_COMPLETE, CUT_OFF
        if error is None:
            status = ResponseStatus(CREATED if self.created else OK)
        elif isinstance(error, MusterError):
            status = ResponseStatus(CODES.get(error.reason, INTERNAL), error.reason)
        elif isinstance(error, Exception):
            stage, status = Stage.PANIC, FAILED
        self._audited(stage, status, error, offered=True)

    def _audited(
        self, stage: Stage, status: ResponseStatus, error: BaseException | None = None, *, offered: bool = False
    ) -> AuditEntry | None:
        """Makes the audit record, if the policy requires it: queues it if `offered`, else returns it."""
        try:
            auditor = self.parts.auditor
            config = auditor.evaluate(self.actor, self.asked)
            if config.records(stage):
                record = self._record(stage, status, config.level, error)
                if not offered:
                    return auditor.entry(record)
                auditor.offer(record, stored=self.stored)
        except Exception:
            log.exception("a call could not be audited", audit_id=self.audit_id)
        return None

    def changed(self, changes: Sequence[Change]) -> AuditRecord | None:
        """Returns the audit record of the call, to be written in the transaction of `changes`; None: not required."""
        config = self.parts.auditor.evaluate(self.actor, self.asked)
        if not config.records(Stage.RESPONSE_COMPLETE):
            return None
        change = change_of(changes, self.asked.resource)
        status = ResponseStatus(CREATED if change is not None and change.type is ChangeType.ADDED else OK)
        self.made = self.made or (change.key.name if change is not None else "")
        return self._record(Stage.RESPONSE_COMPLETE, status, config.level, None)

    def _record(self, stage: Stage, status: ResponseStatus, level: AuditLevel, error: BaseException | None) -> AuditRecord:
        notes = {}
        if not isinstance(error, UnauthorizedError):
            notes = {DECISION: "allow", REASON: ""}
            if isinstance(error, ForbiddenError):  # a failed attestation has more detail than the peer receives
                why = f"attestation failed: {error.why}" if isinstance(error, AttestationError) else error.message
                notes = {DECISION: "forbid", REASON: short(why)}
        return AuditRecord(
            level=level,
            audit_id=self.audit_id,
            stage=stage,
            request_uri=self.asked.path,
            verb=self.asked.verb,
            user=user_of(self.actor),
            source_ips=(self.address,),
            user_agent=self.user_agent,
            object_ref=reference_of(self.asked, name=self.made),
            response_status=status,
            received=self.received,
            at=self.parts.auditor.clock.now(),
            annotations=notes,
        )


class SessionAudit:
    """Audits beats and reports of one session, if the policy requires it. `beats` and `statuses` are decided once per session.

    The record of a report that changes something is written with the report. The record of a beat is written with the batch
    that stores the beat. `beats`: whether `beat` must be called, so that a beat costs nothing otherwise. `statuses`: whether
    status reports are recorded. `asked`: attributes of a status report.
    """

    def __init__(self, call: RpcCall, cluster: ClusterName) -> None:
        self._call = call
        self._cluster = cluster
        self._beat, self.asked = call.parts.attributes.beat(cluster), call.parts.attributes.status(cluster)
        self.beats = self._is_required(self._beat)
        self.statuses = self._is_required(self.asked)

    def _is_required(self, asked: Attributes) -> bool:
        config = self._call.parts.auditor.evaluate(self._call.actor, asked)
        return config.level is not AuditLevel.NONE and config.records(Stage.RESPONSE_COMPLETE)

    def beat(self) -> AuditEntry | None:
        """Returns the record of a beat, for the batch that stores the beat."""
        return self._call_about(self._beat).stored_with()

    def unstored_beat(self) -> None:
        """Audits a beat that is not stored because its cluster is not accepted."""
        self._call_about(self._beat).ended(None)

    def status(self) -> AbstractContextManager[None]:
        """Audits the cluster's status report, which the caller stores inside the `with` block."""
        return self._recorded(self.asked) if self.statuses else nullcontext()

    def addon(self, name: str) -> AbstractContextManager[None]:
        """Audits a report about the add-on `name`, which the caller stores inside the `with` block."""
        return self._recorded(self._call.parts.attributes.addon(self._cluster, name))

    @contextmanager
    def _recorded(self, asked: Attributes) -> Iterator[None]:
        call = self._call_about(asked)
        with recording(call.parts.auditor, call.changed) as written:
            try:
                yield
            except MusterError as error:
                call.ended(error)
                raise
        call.stored = written.stored
        call.ended(None)

    def _call_about(self, asked: Attributes) -> RpcCall:
        """Returns a call with its own attributes, under the session's audit id."""
        return replace(self._call, asked=asked, received=self._call.parts.auditor.clock.now())


@asynccontextmanager
async def open_call(
    parts: DoorContext,
    context: Context,
    asked: Attributes,
    *,
    flow: str | None = None,
    readopt: Callable[[bytes], Awaitable[object]] | None = None,
) -> AsyncIterator[tuple[RpcCall, CertificateRecord]]:
    """Enters the gate, authenticates the peer, and audits and traces the block. Yields the call and the peer's record.

    `flow`: the flow of a unary call. The call holds a seat during the block. A stream (None) takes seats itself, and reports
    its opening with `RpcCall.opened`. `readopt` accepts a certificate although a restore has lost its record.

    Raises UnavailableError at a closed gate; UnauthorizedError; ForbiddenError for a peer that may not use this door;
    TooManyRequestsError while the hub is overloaded, after a wait, or if the address exceeds the rate of refusals. Refusals of
    agents whose CA was retired, or whose certificate was lost by a restore, do not count: whole fleets of them return with
    their recovery certificates.
    """
    skip_pauses()
    with parts.gate:  # includes the wait, so that a stop ends no call that has arrived
        await parts.limits.begin()
        call = RpcCall(parts, context, asked, parts.auditor.clock.now())
        logs.also(request_id=call.audit_id)  # never undone: a generator may end in another task, which could not undo it
        try:
            with call.trace:
                call.shown = parts.shown(context)
                try:
                    record = await parts.peers.identify(call.shown)
                except UnauthorizedError as error:
                    if error.denial_cause not in RECOVERABLE_CAUSES:
                        parts.limits.refuse(call.address)
                    if readopt is None or error.denial_cause is not DenialCause.CERTIFICATE_LOST:
                        raise
                    await readopt(call.shown)
                    record = await parts.peers.identify(call.shown)
                extra = {SERIAL: (f"{record.serial:x}",)}
                call.actor = Actor(record.user, (*record.groups, AUTHENTICATED_GROUP), extra=extra)  # as at the HTTPS door
                check_agents_door(record)
                if record.cluster:
                    logs.also(cluster=record.cluster)
                    call.trace.note("muster.cluster", record.cluster)
                if flow is None:
                    yield call, record
                else:
                    with recording(parts.auditor, call.changed) as written:
                        async with call.seat(flow):
                            yield call, record
                    call.stored = written.stored
        except BaseException as error:
            call.ended(None if isinstance(error, GeneratorExit) else error)
            raise
        call.ended(None)
    if flow is not None:
        parts.calls.observe(call.method, parts.auditor.clock.now() - call.received)


def _address(peer: str) -> str:
    """Returns the IP address of a peer to which gRPC gives a name such as `ipv4:127.0.0.1:12345`."""
    _, _, rest = unquote(peer).partition(":")
    return rest.rpartition(":")[0].strip("[]")
