"""Creates that compute a response instead of storing an object (reviews, tokens), and readable computed subresources."""

from dataclasses import replace

import msgspec
from aiohttp import web

from machinery.apiserver.http.filters import INCOMING
from machinery.apiserver.http.options import write_options
from machinery.apiserver.http.responses import value_answer
from machinery.apiserver.http.status_errors import invalid
from machinery.apiserver.read.reads import ResourceCall
from machinery.apiserver.resource import Question, Resource, Shows
from machinery.apiserver.storage import Actor, Document, Key, Stored
from machinery.apiserver.write.mutations import Mutations, write_answer
from machinery.apiserver.write.schema import defaulted, violations
from machinery.apiserver.write.writes import Write, check_envelope, check_types
from machinery.errors import MethodNotAllowedError


async def answer(call: ResourceCall, actor: Actor, kind: Resource, mutations: Mutations) -> web.Response:
    """Respond to the question in the request's body. Raises BadRequestError, InvalidError, and what `answers` raises."""
    if kind.answers is None:
        raise MethodNotAllowedError(f"{kind.name} cannot be asked")
    call = replace(call, resource=kind)
    options = write_options("CreateOptions", call.request.query, call.request.query.getall("dryRun", []))
    write = Write(kind, actor, call.clock.now(), options.validation)
    body = check_envelope(write, await mutations.body(call, actor), call.namespace)
    document = _checked(kind, defaulted(kind.schema, write.known(body)))
    question = Question(
        document,
        actor,
        write.now,
        call.namespace,
        call.attributes.name,
        options.dry_run,
        peer=call.request.remote or "",
        annotations=call.request[INCOMING].annotations,
    )
    answered = {**await kind.answers(question), "apiVersion": kind.api_version(), "kind": kind.kind}
    stored = Stored(Key(call.namespace, str(document["metadata"].get("name", ""))), 0, msgspec.json.encode(answered))
    return await write_answer(call, write, stored, 201)


async def shown(call: ResourceCall, kind: Resource, shows: Shows) -> web.Response:
    """Respond with a computed subresource. Raises what `shows` raises."""
    told = await shows(call.key, call.request.query)
    return await value_answer(call.request, {"apiVersion": kind.api_version(), "kind": kind.kind, **told}, call.form)


def _checked(kind: Resource, document: Document) -> Document:
    causes = violations(kind.schema, document)
    check_types(kind, causes)
    causes.extend(kind.validate(document, None) if kind.validate is not None else ())
    if causes:
        raise invalid(kind, str(document["metadata"].get("name", "")), causes)
    return document
