"""The audit of the HTTPS door: a record of each request that the policy wants remembered, when its outcome is known.

It stands around deadline, authentication and limits, so what they refuse is remembered too. A record is built and handed over
without waiting. What goes wrong with it is logged and never reaches the request, which then leaves a shorter record.
"""

import asyncio
from dataclasses import dataclass
from datetime import datetime
from functools import partial

import msgspec
import structlog
from aiohttp import hdrs, web

from hub.audit import Auditor, Verdict
from hub.audit.auditor import body_of, reference_of, short, token_hash, user_of
from hub.domain.attestation import AttestationError
from hub.domain.audit import NO_BODY, Record, ResponseStatus, Stage
from machinery.apiserver.filters import Incoming, Inner
from machinery.apiserver.refusals import status_document
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
"""Parameters whose values are remembered: what else clients write into a URL may be anything."""

log = structlog.get_logger(__name__)


class _Metadata(msgspec.Struct):
    name: str = ""
    uid: str = ""


class _Named(msgspec.Struct):
    metadata: _Metadata


_named = msgspec.json.Decoder(_Named).decode


@dataclass(frozen=True, slots=True)
class _Outcome:
    """How a request ended; `answer` is the body that was sent, as far as it is known."""

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
        await self._ended(incoming, received, _Outcome(Stage.RESPONSE_COMPLETE, status, _sent(response)))
        return response

    def _started(self, incoming: Incoming, received: datetime, response: web.StreamResponse) -> None:
        verdict = self._auditor.verdict(incoming.authenticated, incoming.attributes)
        if response.status < web.HTTPBadRequest.status_code and verdict.remembers(Stage.RESPONSE_STARTED):
            outcome = _Outcome(Stage.RESPONSE_STARTED, ResponseStatus(response.status))
            self._offer(incoming, received, verdict, outcome, b"")

    async def _ended(self, incoming: Incoming, received: datetime, outcome: _Outcome) -> None:
        verdict = self._auditor.verdict(incoming.authenticated, incoming.attributes)
        if verdict.remembers(outcome.stage):
            read = verdict.request_body and incoming.request.content.at_eof()
            body = await _body(incoming.request) if read else b""
            self._offer(incoming, received, verdict, outcome, body)

    def _offer(self, incoming: Incoming, received: datetime, verdict: Verdict, outcome: _Outcome, body: bytes) -> None:
        """One record, whatever the request holds."""
        try:
            record = self._record(incoming, received, verdict, outcome, body)
        except Exception:
            log.exception("a request is audited in part alone", audit_id=incoming.audit_id)
            record = self._incomplete(incoming, received, verdict, outcome)
        self._auditor.offer(record)

    def _incomplete(self, incoming: Incoming, received: datetime, verdict: Verdict, outcome: _Outcome) -> Record:
        """Who, what, and how it ended: nothing of what the client wrote beside that."""
        return Record(
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

    def _record(self, incoming: Incoming, received: datetime, verdict: Verdict, outcome: _Outcome, body: bytes) -> Record:
        request, asked = incoming.request, incoming.attributes
        notes = _annotations(incoming)
        made = _made(outcome) if asked.verb == "create" else _Metadata()
        return Record(
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
    """What the request was answered from; nothing of what could not be read then either."""
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
    scheme, _, token = incoming.request.headers.get(hdrs.AUTHORIZATION, "").partition(" ")
    if scheme.lower() == "bearer" and token.strip():
        notes[TOKEN] = token_hash(token.strip())
    return notes


def _uri(request: web.Request) -> str:
    """The path, and of the parameters the values that are known to be harmless."""
    if not request.query_string:
        return request.rel_url.raw_path
    shown = "&".join(f"{name}={value if name in SHOWN else '...'}" for name, value in request.query.items())
    return f"{request.rel_url.raw_path}?{shown}"


def _sent(response: web.StreamResponse) -> bytes | None:
    """The body, where it was sent whole and as it is."""
    if not isinstance(response, web.Response) or hdrs.CONTENT_ENCODING in response.headers:
        return None
    return response.body if isinstance(response.body, bytes) else None


def _made(outcome: _Outcome) -> _Metadata:
    """What the answer to a create says about the object's name."""
    if outcome.status.code != web.HTTPCreated.status_code or outcome.answer is None:
        return _Metadata()
    try:
        return _named(outcome.answer).metadata
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return _Metadata()
