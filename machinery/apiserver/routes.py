"""Routes of requests: for objects and collections by verb and subresource, and for paths that do not name objects."""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

from aiohttp import web

from machinery.apiserver.access import Attributes
from machinery.apiserver.http.health import HealthEndpoints
from machinery.apiserver.http.responses import body_answer, etag_matches, is_pretty, negotiate, no_such_page, value_answer
from machinery.apiserver.openapi import discovery
from machinery.apiserver.openapi.documents import OpenApi
from machinery.apiserver.read import past, reads
from machinery.apiserver.read.reads import ResourceCall
from machinery.apiserver.read.watches import Watches
from machinery.apiserver.resource import ApiGroup, Resource
from machinery.apiserver.storage import Actor, Storage
from machinery.apiserver.write.mutations import Mutations
from machinery.errors import BadRequestError, ErrorSubject, MethodNotAllowedError, NotFoundError
from machinery.observability.metrics import CONTENT_TYPE
from machinery.product import TITLE
from machinery.runtime.clock import Clock
from machinery.runtime.health import Endpoint, HealthCheck

Scrape = Callable[[], Awaitable[str]]
"""Returns all metrics in Prometheus' text format."""
NO_SUCH_RESOURCE = "the server could not find the requested resource"
NO_SUCH_METHOD = "the server does not allow this method on the requested resource"


class Site:
    """Answers every path that does not name an object."""

    def __init__(
        self,
        groups: Sequence[ApiGroup],
        *,
        version: Mapping[str, Any],
        checks: Iterable[HealthCheck],
        clock: Clock,
        metrics: Scrape | None = None,
    ) -> None:
        self._discovery = discovery.Discovery(groups)
        self._openapi = OpenApi(groups, TITLE, str(version.get("gitVersion", "")))
        self._health = HealthEndpoints(checks)
        self._version = dict(version)
        self._clock = clock
        self._metrics = metrics

    async def answer(self, request: web.Request) -> web.Response:
        """Return the response for the request's path. Raises MethodNotAllowedError, NotAcceptableError."""
        parts = [part for part in request.path.split("/") if part]
        if parts and parts[0] in list(Endpoint):
            return await self._health.answer(request, parts[0], "/".join(parts[1:]))
        if request.method not in ("GET", "HEAD"):
            raise MethodNotAllowedError(NO_SUCH_METHOD)
        if parts == ["metrics"] and self._metrics is not None:
            return web.Response(body=(await self._metrics()).encode(), headers={"Content-Type": CONTENT_TYPE})
        if parts[:1] == ["openapi"]:
            return await self._openapi.answer(request, parts[1:], self._clock.now()) or no_such_page()
        aggregated = discovery.aggregated_version(request.headers.get("Accept", ""))
        if aggregated is not None and parts in (["api"], ["apis"]):
            return await self._aggregated(request, aggregated, core=parts == ["api"])
        found: Mapping[str, Any] | None = self._discovery.page(parts)
        if parts in ([], ["index.html"]):
            found = {"paths": sorted(self._paths())}
        elif parts == ["version"]:
            found = self._version
        if found is None:
            return no_such_page()
        pretty = is_pretty(request.query.get("pretty"), request.headers.get("User-Agent", ""))
        form = negotiate(request.headers.get("Accept", ""), pretty=pretty, shapes=False)
        return await value_answer(request, found, form)

    def _paths(self) -> Iterable[str]:
        yield from self._discovery.paths()
        yield from self._health.paths()
        yield from (*self._openapi.paths(), "/version", *(("/metrics",) if self._metrics is not None else ()))

    async def _aggregated(self, request: web.Request, version: str, *, core: bool) -> web.Response:
        body, tag = self._discovery.aggregated(version, core=core)
        headers = {"ETag": tag, "Vary": "Accept", "Cache-Control": "public"}
        if etag_matches(request.headers.get("If-None-Match", ""), tag):
            return web.Response(status=304, headers=headers)
        response = await body_answer(request, body, discovery.aggregated_media(version))
        response.headers.update(headers)
        return response


class ObjectRoutes:
    def __init__(
        self,
        groups: Sequence[ApiGroup],
        storage: Storage,
        clock: Clock,
        *,
        mutations: Mutations,
        watches: Watches,
        fresh_timeout: timedelta,
    ) -> None:
        self._groups = {group.name: group for group in groups}
        self._resources = {(group.name, resource.name): resource for group in groups for resource in group.resources}
        self._storage = storage
        self._clock = clock
        self._fresh_timeout = fresh_timeout
        self._mutations = mutations
        self._handlers: Mapping[str, Callable[[ResourceCall], Awaitable[web.StreamResponse]]] = {
            "get": reads.get,
            "list": reads.list_,
            "watch": watches.answer,
            "create": mutations.create,
            "update": mutations.update,
            "patch": mutations.patch,
            "delete": mutations.delete,
            "deletecollection": mutations.delete_collection,
        }

    async def answer(self, request: web.Request, asked: Attributes, actor: Actor) -> web.StreamResponse:
        """Answer one request for an object or a collection. Raises MusterError."""
        resource = self._resources.get((asked.group, asked.resource))
        if resource is None or asked.version not in resource.served_versions:
            return self._unknown(asked)
        if not resource.namespaced and asked.namespace and asked.resource != "namespaces":
            return no_such_page()
        pretty = is_pretty(request.query.get("pretty"), request.headers.get("User-Agent", ""))
        form = negotiate(request.headers.get("Accept", ""), pretty=pretty)
        storage, version = resource.storage or self._storage, resource.served_versions[asked.version]
        call = ResourceCall(request, asked, actor, resource, storage, self._clock, form, version, self._fresh_timeout)
        if request.query.get(past.PARAMETER):
            call = await past.resolve_call(call)
        if asked.subresource:
            return await self._answer_part(call)
        _check_verb(resource, asked, resource.verbs)
        if asked.verb == "create" and resource.answers is not None:
            return await self._mutations.answer_question(call, resource)
        return await self._handlers[asked.verb](call)

    async def _answer_part(self, call: ResourceCall) -> web.StreamResponse:
        part, verb = call.resource.subresource(call.attributes.subresource), call.attributes.verb
        if part is None:
            await reads.get(call)
            raise NotFoundError(NO_SUCH_RESOURCE)
        _check_verb(call.resource, call.attributes, part.verbs)
        if verb in ("update", "patch"):
            return await self._handlers[verb](replace(call, part=part))
        if (kind := part.question) is None:
            return await reads.get(call)
        if part.shows is None:
            return await self._mutations.answer_question(call, kind)
        shown = {"apiVersion": kind.api_version(), "kind": kind.kind, **await part.shows(call.key, call.request.query)}
        return await value_answer(call.request, shown, call.form)

    def _unknown(self, asked: Attributes) -> web.StreamResponse:
        group = self._groups.get(asked.group)
        if group is not None and asked.version in group.versions and not any(each.custom for each in group.resources):
            raise NotFoundError(NO_SUCH_RESOURCE)
        return no_such_page()


def _check_verb(resource: Resource, asked: Attributes, verbs: tuple[str, ...]) -> None:
    if not asked.verb:
        subject = ErrorSubject(group=resource.group, kind=resource.name)
        raise MethodNotAllowedError(f' is not supported on resources of kind "{resource.key}"', subject=subject)
    if asked.verb in ("update", "patch") and not asked.name:
        raise BadRequestError("name must be provided")
    if asked.verb not in verbs:
        raise MethodNotAllowedError(NO_SUCH_METHOD)
    creates = asked.verb in ("create", "deletecollection") or asked.name
    if resource.namespaced and not asked.namespace and creates:
        raise MethodNotAllowedError(NO_SUCH_METHOD)
