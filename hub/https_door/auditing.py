"""Audit of the HTTPS door: a filter that records each request that the policy selects.

The record of a request that changes something is written in the transaction of the change. Other records are built when the
outcome is known, and queued without waiting. The filter is outside of deadline, authentication and limits, so that their
refusals are recorded too. A failure to build a record is logged and does not affect the request; a shorter record is written
instead.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial

import msgspec
import structlog
from aiohttp import hdrs, web

from hub.api.auditrecords import DRY_RUN, NO_BODY, AuditRecord, ResponseStatus, Stage
from hub.api.bootstrapcredentials import AttestationError
from hub.api.meta.change import Change
from hub.audit import Auditor, AuditVerdict
from hub.audit.auditor import body_of, reference_of, short, token_hash, user_of
from hub.audit.recording import RequestRecording, change_of, recording, status_of
from machinery.apiserver.http.filters import Incoming, Inner
from machinery.apiserver.http.status_errors import status_document
from machinery.errors import MusterError
from machinery.product import NAME

DECISION, REASON = "authorization.k8s.io/decision", "authorization.k8s.io/reason"
ATTESTATION = f"{NAME}/attestation-failure"
INCOMPLETE = f"{NAME}/incomplete"
TOKEN = "authentication.kubernetes.io/token-hash"  # noqa: S105 - the name of an annotation
CUT_OFF = ResponseStatus(503, "ServiceUnavailable")
FAILED = ResponseStatus(500, "InternalError")
SHOWN = frozenset(
    (
        *("allowWatchBookmarks", "dryRun", "fieldManager", "fieldSelector", "fieldValidation", "force", "gracePeriodSeconds"),
        *("includeObject", "labelSelector", "limit", "orphanDependents", "pretty", "propagationPolicy", "resourceVersion"),
        *("resourceVersionMatch", "sendInitialEvents", "timeout", "timeoutSeconds", "watch"),
    )
)
"""Query parameters whose values are recorded; other parameters may contain anything."""

log = structlog.get_logger(__name__)


class _Metadata(msgspec.Struct):
    name: str = ""
    uid: str = ""


class _Named(msgspec.Struct):
    metadata: _Metadata


_named = msgspec.json.Decoder(_Named).decode


@dataclass(frozen=True, slots=True)
class _Outcome:
    """The outcome of a request; `answer`: the body that was sent, if it is known."""

    stage: Stage
    status: ResponseStatus
    answer: bytes | None = None


class Auditing:
    """The filter for the slot `audit`."""

    def __init__(self, auditor: Auditor) -> None:
        self._auditor = auditor

    async def __call__(self, incoming: Incoming, inner: Inner) -> web.StreamResponse:
        received = self._auditor.clock.now()
        if incoming.long_running:
            incoming.on_headers.append(partial(self._started, incoming, received))
        with recording(self._auditor, partial(self._changed, incoming, received)) as written:
            return await self._answered(incoming, received, written, inner)

    async def _answered(
        self, incoming: Incoming, received: datetime, written: RequestRecording, inner: Inner
    ) -> web.StreamResponse:
        try:
            response = await inner(incoming)
        except MusterError as error:
            document = status_document(error)
            status = ResponseStatus(document["code"], error.reason)
            if isinstance(error, AttestationError):
                incoming.annotations[ATTESTATION] = short(error.why)
            await self._ended(incoming, received, _Outcome(Stage.RESPONSE_COMPLETE, status, msgspec.json.encode(document)))
            raise
        except web.HTTPException as error:
            await self._ended(incoming, received, _Outcome(Stage.RESPONSE_COMPLETE, ResponseStatus(error.status)))
            raise
        except asyncio.CancelledError:
            await self._ended(incoming, received, _Outcome(Stage.RESPONSE_COMPLETE, CUT_OFF))
            raise
        except Exception:
            await self._ended(incoming, received, _Outcome(Stage.PANIC, FAILED))
            raise
        status = ResponseStatus(response.status)
        outcome = _Outcome(Stage.RESPONSE_COMPLETE, status, _sent(response))
        await self._ended(incoming, received, outcome, stored=written.stored)
        return response

    def _changed(self, incoming: Incoming, received: datetime, changes: Sequence[Change]) -> AuditRecord | None:
        """Returns the record of a request that changes something, before its answer: the response object is what is stored."""
        verdict = self._auditor.verdict(incoming.authenticated, incoming.attributes)
        if not verdict.remembers(Stage.RESPONSE_COMPLETE):
            return None
        change, asked = change_of(changes, incoming.attributes.resource), incoming.attributes
        if not changes and not asked.name:
            return None  # only the answer contains the name of the created object
        status = status_of(change, asked.verb)
        outcome = _Outcome(Stage.RESPONSE_COMPLETE, status, None if change is None else change.encoded)
        body = incoming.request._read_bytes or b""  # noqa: SLF001 - what the handler has read; a test fails when it is elsewhere
        return self._built(incoming, received, verdict, outcome, body)

    def _started(self, incoming: Incoming, received: datetime, response: web.StreamResponse) -> None:
        verdict = self._auditor.verdict(incoming.authenticated, incoming.attributes)
        if response.status < web.HTTPBadRequest.status_code and verdict.remembers(Stage.RESPONSE_STARTED):
            outcome = _Outcome(Stage.RESPONSE_STARTED, ResponseStatus(response.status))
            self._auditor.offer(self._built(incoming, received, verdict, outcome, b""))

    async def _ended(self, incoming: Incoming, received: datetime, outcome: _Outcome, *, stored: bool = False) -> None:
        verdict = self._auditor.verdict(incoming.authenticated, incoming.attributes)
        if verdict.remembers(outcome.stage):
            read = verdict.request_body and incoming.request.content.at_eof()
            body = await _body(incoming.request) if read else b""
            self._auditor.offer(self._built(incoming, received, verdict, outcome, body), stored=stored)

    def _built(
        self, incoming: Incoming, received: datetime, verdict: AuditVerdict, outcome: _Outcome, body: bytes
    ) -> AuditRecord:
        """Builds a record, and an incomplete one if that fails."""
        try:
            return self._record(incoming, received, verdict, outcome, body)
        except Exception:
            log.exception("a request is audited in part alone", audit_id=incoming.audit_id)
            return self._incomplete(incoming, received, verdict, outcome)

    def _incomplete(self, incoming: Incoming, received: datetime, verdict: AuditVerdict, outcome: _Outcome) -> AuditRecord:
        """Builds a record of user, verb, object and outcome, without other input of the client."""
        return AuditRecord(
            level=verdict.level,
            audit_id=incoming.audit_id,
            stage=outcome.stage,
            verb=incoming.attributes.verb,
            user=user_of(incoming.authenticated),
            impersonated_user=user_of(incoming.actor) if incoming.actor != incoming.authenticated else None,
            source_ips=(incoming.request.remote,) if incoming.request.remote else (),
            object_ref=reference_of(incoming.attributes),
            response_status=outcome.status,
            received=received,
            at=self._auditor.clock.now(),
            annotations={INCOMPLETE: "the rest of the request could not be written down"},
        )

    def _record(
        self, incoming: Incoming, received: datetime, verdict: AuditVerdict, outcome: _Outcome, body: bytes
    ) -> AuditRecord:
        request, asked = incoming.request, incoming.attributes
        notes = _annotations(incoming)
        made = _made(outcome) if asked.verb == "create" else _Metadata()
        return AuditRecord(
            level=verdict.level,
            audit_id=short(incoming.audit_id),
            stage=outcome.stage,
            request_uri=short(_uri(request)),
            verb=asked.verb,
            user=user_of(incoming.authenticated),
            impersonated_user=user_of(incoming.actor) if incoming.actor != incoming.authenticated else None,
            source_ips=(request.remote,) if request.remote else (),
            user_agent=short(request.headers.get(hdrs.USER_AGENT, "")),
            object_ref=reference_of(asked, name=made.name, uid=made.uid),
            response_status=outcome.status,
            request_object=body_of(body, notes) if verdict.request_body else NO_BODY,
            response_object=body_of(outcome.answer, notes) if verdict.response_body else NO_BODY,
            received=received,
            at=self._auditor.clock.now(),
            annotations=notes,
        )


async def _body(request: web.Request) -> bytes:
    """Returns the body that the handler has read; b"" if it could not be read."""
    try:
        return await request.read()
    except Exception as error:  # noqa: BLE001 - too large, or not what its headers say: the answer is about that
        log.info("the body of a request cannot be audited", error=type(error).__name__)
        return b""


def _annotations(incoming: Incoming) -> dict[str, str]:
    notes = dict(incoming.annotations)
    if incoming.decision is not None:
        notes[DECISION] = "allow" if incoming.decision.allowed else "forbid"
        notes[REASON] = short(incoming.decision.reason)
    if incoming.request.query.get("dryRun"):
        notes[DRY_RUN] = "true"
    scheme, _, token = incoming.request.headers.get(hdrs.AUTHORIZATION, "").partition(" ")
    if scheme.lower() == "bearer" and token.strip():
        notes[TOKEN] = token_hash(token.strip())
    return notes


def _uri(request: web.Request) -> str:
    """Returns the path and query, with the values of parameters in `SHOWN` only."""
    if not request.query_string:
        return request.rel_url.raw_path
    shown = "&".join(f"{name}={value if name in SHOWN else '...'}" for name, value in request.query.items())
    return f"{request.rel_url.raw_path}?{shown}"


def _sent(response: web.StreamResponse) -> bytes | None:
    """Returns the body if it was sent in one piece and not encoded."""
    if not isinstance(response, web.Response) or hdrs.CONTENT_ENCODING in response.headers:
        return None
    return response.body if isinstance(response.body, bytes) else None


def _made(outcome: _Outcome) -> _Metadata:
    """Returns name and uid of the created object, from the answer."""
    if outcome.status.code != web.HTTPCreated.status_code or outcome.answer is None:
        return _Metadata()
    try:
        return _named(outcome.answer).metadata
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return _Metadata()
