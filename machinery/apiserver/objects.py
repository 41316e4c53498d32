"""Dispatches requests for objects and collections by verb and subresource."""

from collections.abc import Sequence
from datetime import timedelta

from aiohttp import web

from machinery.apiserver.access import Attributes
from machinery.apiserver.http.negotiation import is_pretty, negotiate
from machinery.apiserver.read import past, reads
from machinery.apiserver.read.reads import ResourceCall
from machinery.apiserver.resource import ApiGroup, Resource, ServedVersion, Subresource
from machinery.apiserver.site import no_such_page
from machinery.apiserver.storage import Actor, Storage
from machinery.apiserver.watch.watches import Watches
from machinery.apiserver.write import virtual_create as questions
from machinery.apiserver.write.mutations import NO_NAME, Mutations
from machinery.errors import BadRequestError, ErrorSubject, MethodNotAllowedError, NotFoundError
from machinery.runtime.clock import Clock

NO_SUCH_RESOURCE = "the server could not find the requested resource"
NO_SUCH_METHOD = "the server does not allow this method on the requested resource"


class ObjectRoutes:
    """Routes for all verbs of all resources."""

    def __init__(
        self,
        groups: Sequence[ApiGroup],
        storage: Storage,
        clock: Clock,
        *,
        mutations: Mutations,
        watches: Watches,
        patience: timedelta,
    ) -> None:
        self._groups = {group.name: group for group in groups}
        self._resources = {(group.name, resource.name): resource for group in groups for resource in group.resources}
        self._storage = storage
        self._clock = clock
        self._mutations = mutations
        self._watches = watches
        self._patience = patience

    async def answer(self, request: web.Request, asked: Attributes, actor: Actor) -> web.StreamResponse:
        """Answer one request for an object or a collection. Raises MusterError."""
        resource = self._resources.get((asked.group, asked.resource))
        if resource is None or asked.version not in _versions(resource):
            return self._unknown(asked)
        if not resource.namespaced and asked.namespace and asked.resource != "namespaces":
            return no_such_page()
        form = negotiate(request.headers.get("Accept", ""), pretty=_pretty(request))
        storage = resource.storage or self._storage
        call = ResourceCall(
            request, asked, resource, storage, self._clock, form, _versions(resource)[asked.version], self._patience
        )
        if past.asked_of(request.query):
            call = await past.looking_back(call)
        if asked.subresource:
            return await self._part(call, actor)
        return await self._whole(call, actor)

    async def _whole(self, call: ResourceCall, actor: Actor) -> web.StreamResponse:
        _check_verb(call.resource, call.attributes, call.resource.verbs)
        verb = call.attributes.verb
        if verb == "watch":
            return await self._watches.answer(call, {})
        if verb in ("get", "list"):
            return await (reads.get(call) if verb == "get" else reads.list_(call))
        if verb in ("update", "patch"):
            return await self._changed(call, actor, None)
        if verb == "create" and call.resource.answers is not None:
            return await questions.answer(call, actor, call.resource, self._mutations)
        write = {"create": self._mutations.create, "delete": self._mutations.delete}.get(
            verb, self._mutations.delete_collection
        )
        return await write(call, actor)

    async def _changed(self, call: ResourceCall, actor: Actor, part: Subresource | None) -> web.StreamResponse:
        change = self._mutations.update if call.attributes.verb == "update" else self._mutations.patch
        return await change(call, actor, part)

    async def _part(self, call: ResourceCall, actor: Actor) -> web.StreamResponse:
        part = call.resource.subresource(call.attributes.subresource)
        if part is None:
            await reads.get(call)
            raise NotFoundError(NO_SUCH_RESOURCE)
        _check_verb(call.resource, call.attributes, part.verbs)
        if call.attributes.verb in ("update", "patch"):
            return await self._changed(call, actor, part)
        if call.attributes.verb == "create" and part.question is not None:
            return await questions.answer(call, actor, part.question, self._mutations)
        if part.shows is not None and part.question is not None:
            return await questions.shown(call, part.question, part.shows)
        return await reads.get(call)

    def _unknown(self, asked: Attributes) -> web.StreamResponse:
        group = self._groups.get(asked.group)
        builtin = group is not None and asked.version in group.versions and not any(each.custom for each in group.resources)
        if builtin:
            raise NotFoundError(NO_SUCH_RESOURCE)
        return no_such_page()


def _pretty(request: web.Request) -> bool:
    return is_pretty(request.query.get("pretty"), request.headers.get("User-Agent", ""))


def _versions(resource: Resource) -> dict[str, ServedVersion | None]:
    """Served versions by name; None is the stored version, which needs no conversion."""
    return {resource.version: None, **{version.name: version for version in resource.versions}}


def _check_verb(resource: Resource, asked: Attributes, verbs: tuple[str, ...]) -> None:
    if not asked.verb:
        subject = ErrorSubject(group=resource.group, kind=resource.name)
        raise MethodNotAllowedError(f' is not supported on resources of kind "{resource.key}"', subject=subject)
    if asked.verb in ("update", "patch") and not asked.name:
        raise BadRequestError(NO_NAME)
    if asked.verb not in verbs:
        raise MethodNotAllowedError(NO_SUCH_METHOD)
    creates = asked.verb in ("create", "deletecollection") or asked.name
    if resource.namespaced and not asked.namespace and creates:
        raise MethodNotAllowedError(NO_SUCH_METHOD)
