"""Log context and trace span of a request: its id on every log line, and a span.

The span of a watch ends at its first byte, since later events belong to other causes. Probes and pages have no spans.
"""

from collections.abc import Set as AbstractSet
from functools import partial

from aiohttp import web

from machinery.apiserver.access import Attributes
from machinery.apiserver.http.filters import Incoming, Inner
from machinery.observability import logs, tracing

AUDIT_ID = "muster.request_id"
STATUS = "http.response.status_code"


async def traced(incoming: Incoming, answer: Inner, known: AbstractSet[str]) -> web.StreamResponse:
    """Answer the request. `known`: resource names that may be part of a span's name, which must be bounded."""
    with logs.of_request(incoming.audit_id), _begun(incoming, known) as span:
        if incoming.long_running:
            incoming.on_headers.append(partial(_ended, span))
        response = await answer(incoming)
        _ended(span, response)
        return response


def _begun(incoming: Incoming, known: AbstractSet[str]) -> tracing.Traced:
    request, asked = incoming.request, incoming.attributes
    if not asked.resource:
        return tracing.NOTHING
    told = {"http.request.method": request.method, "url.path": request.path, AUDIT_ID: incoming.audit_id}
    return tracing.serving(_name(asked, known), request.headers.get, told)


def _name(asked: Attributes, known: AbstractSet[str]) -> str:
    if asked.resource not in known:
        return f"{asked.verb} unknown"
    return f"{asked.verb} {asked.resource}/{asked.subresource}" if asked.subresource else f"{asked.verb} {asked.resource}"


def _ended(span: tracing.Traced, response: web.StreamResponse) -> None:
    span.note(STATUS, response.status)
    span.end(str(response.status) if response.status >= web.HTTPInternalServerError.status_code else "")
