"""What a request leaves in the log and in traces: its id on every line, and a span.

A watch is told until its first byte: what it says later belongs to what caused that. Probes and pages are no spans.
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
    """The answer. `known`: names of resources, without which a span's name would be whatever somebody asks for."""
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
