"""Audit of the HTTPS door: a filter that records each request that the policy selects.

The transaction of a change also writes the record of its request. Other records are built when the outcome is known, and queued
without a wait. The filter runs outside of the filters for deadline, authentication and limits, so that it also records their
refusals. If a record cannot be built, the hub logs the error and writes a shorter record; the request continues.
"""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import msgspec
import structlog
from aiohttp import hdrs, web

from hub.api.auditrecords import DRY_RUN, NO_BODY, AuditRecord, ResponseStatus, Stage
from hub.api.bootstrapcredentials import AttestationError
from hub.api.meta import document as doc
from hub.api.meta.change import REVOCATIONS, Change
from hub.audit import Auditor, RequestAuditConfig
from hub.audit.auditor import body_of, reference_of, short, token_hash, user_of
from hub.audit.recording import change_of, recording, status_of
from machinery.apiserver.http.filters import Incoming, Inner
from machinery.apiserver.http.status_errors import status_document
from machinery.errors import MusterError
from machinery.product import NAME

DECISION, REASON = "authorization.k8s.io/decision", "authorization.k8s.io/reason"
ATTESTATION = f"{NAME}/attestation-failure"
INCOMPLETE = f"{NAME}/incomplete"
CLUSTERS, REVOKED = "managedclusters", f"{NAME}/revoked-bootstrap-credentials"
"""REVOKED: annotation with the bootstrap credentials that a request for a cluster has revoked."""
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
"""Query parameters whose values are recorded. Other parameters may contain anything."""

log = structlog.get_logger(__name__)


class _Metadata(msgspec.Struct):
    name: str = ""
    uid: str = ""


class _Named(msgspec.Struct):
    metadata: _Metadata


_named = msgspec.json.Decoder(_Named).decode


class Auditing:
    """The filter for the slot `audit` of the API server: records requests."""

    def __init__(self, auditor: Auditor) -> None:
        self._auditor = auditor

    async def __call__(self, incoming: Incoming, inner: Inner) -> web.StreamResponse:
        audit = _RequestAudit(self._auditor, incoming)
        if incoming.long_running:
            incoming.on_headers.append(audit.started)
        with recording(self._auditor, audit.changed) as written:
            try:
                response = await inner(incoming)
            except MusterError as error:
                document = status_document(error)
                if isinstance(error, AttestationError):
                    incoming.annotations[ATTESTATION] = short(error.why)
                await audit.ended(ResponseStatus(document["code"], error.reason), msgspec.json.encode(document))
                raise
            except web.HTTPException as error:
                await audit.ended(ResponseStatus(error.status))
                raise
            except asyncio.CancelledError:
                await audit.ended(CUT_OFF)
                raise
            except Exception:
                await audit.ended(FAILED, stage=Stage.PANIC)
                raise
            await audit.ended(ResponseStatus(response.status), _sent(response), stored=written.stored)
            return response


class _RequestAudit:
    def __init__(self, auditor: Auditor, incoming: Incoming) -> None:
        self._auditor = auditor
        self._incoming = incoming
        self._received = auditor.clock.now()

    def changed(self, changes: Sequence[Change]) -> AuditRecord | None:
        """Returns the request's audit record for the transaction of `changes`. The response object is the stored object.

        None: no record is required, or it can be built only after the answer.
        """
        config, asked = self._config(), self._incoming.attributes
        if not config.records(Stage.RESPONSE_COMPLETE) or (not changes and not asked.name):
            return None  # without changes, only the answer contains the name of the created object
        change = change_of(changes, asked.resource)
        revoked = [
            doc.mapping(each.document, "spec").get("bootstrapCredential") for each in changes if each.kind == REVOCATIONS
        ]
        if any(revoked) and asked.resource == CLUSTERS:
            self._incoming.annotations[REVOKED] = short(", ".join(str(each) for each in revoked if each))
        body = self._incoming.request._read_bytes or b""  # noqa: SLF001 - the body that the handler has read; a test fails if aiohttp moves it
        answer = None if change is None else change.encoded
        return self._record(config, Stage.RESPONSE_COMPLETE, status_of(change, asked.verb), answer, body)

    def started(self, response: web.StreamResponse) -> None:
        config = self._config()
        if response.status < web.HTTPBadRequest.status_code and config.records(Stage.RESPONSE_STARTED):
            self._auditor.offer(self._record(config, Stage.RESPONSE_STARTED, ResponseStatus(response.status), None, b""))

    async def ended(
        self,
        status: ResponseStatus,
        answer: bytes | None = None,
        *,
        stage: Stage = Stage.RESPONSE_COMPLETE,
        stored: bool = False,
    ) -> None:
        """Record the outcome of the request. `answer`: the sent body, if it is known."""
        config, request, body = self._config(), self._incoming.request, b""
        if not config.records(stage):
            return
        if config.request_body and request.content.at_eof():
            try:
                body = await request.read()
            except Exception as error:  # noqa: BLE001 - too large, or contradicts its headers: the answer reports this
                log.info("the body of a request cannot be audited", error=type(error).__name__)
        self._auditor.offer(self._record(config, stage, status, answer, body), stored=stored)

    def _config(self) -> RequestAuditConfig:
        return self._auditor.evaluate(self._incoming.authenticated, self._incoming.attributes)

    def _record(
        self, config: RequestAuditConfig, stage: Stage, status: ResponseStatus, answer: bytes | None, body: bytes
    ) -> AuditRecord:
        """Builds a record. If that fails: a record of user, verb, object and outcome, without other input of the client."""
        incoming, request, asked = self._incoming, self._incoming.request, self._incoming.attributes
        least: dict[str, Any] = {
            "level": config.level,
            "audit_id": incoming.audit_id,
            "stage": stage,
            "verb": asked.verb,
            "user": user_of(incoming.authenticated),
            "impersonated_user": user_of(incoming.actor) if incoming.actor != incoming.authenticated else None,
            "source_ips": (request.remote,) if request.remote else (),
            "response_status": status,
            "received": self._received,
            "at": self._auditor.clock.now(),
        }
        try:
            notes, made = _annotations(incoming), _Metadata()
            if asked.verb == "create" and status.code == web.HTTPCreated.status_code and answer is not None:
                with suppress(msgspec.MsgspecError, UnicodeDecodeError):
                    made = _named(answer).metadata
            more = {
                "audit_id": short(incoming.audit_id),
                "request_uri": short(_uri(request)),
                "user_agent": short(request.headers.get(hdrs.USER_AGENT, "")),
                "object_ref": reference_of(asked, name=made.name, uid=made.uid),
                "request_object": body_of(body, notes) if config.request_body else NO_BODY,
                "response_object": body_of(answer, notes) if config.response_body else NO_BODY,
            }
            return AuditRecord(**{**least, **more, "annotations": notes})
        except Exception:
            log.exception("the audit record of a request is incomplete", audit_id=incoming.audit_id)
            notes = {INCOMPLETE: "the other fields of this record could not be built"}
            return AuditRecord(**least, object_ref=reference_of(asked), annotations=notes)


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
    """Returns path and query. Only parameters in `SHOWN` keep their values."""
    if not request.query_string:
        return request.rel_url.raw_path
    shown = "&".join(f"{name}={value if name in SHOWN else '...'}" for name, value in request.query.items())
    return f"{request.rel_url.raw_path}?{shown}"


def _sent(response: web.StreamResponse) -> bytes | None:
    """Returns the body if it was sent in one piece and not encoded."""
    if not isinstance(response, web.Response) or hdrs.CONTENT_ENCODING in response.headers:
        return None
    return response.body if isinstance(response.body, bytes) else None
