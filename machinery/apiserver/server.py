"""A Kubernetes-style API server: groups of resources over a storage, as an aiohttp application."""

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import structlog
from aiohttp import web

from machinery.apiserver.access import Attributes, Authenticator, Authorizer, attributes
from machinery.apiserver.http.filters import INCOMING, Filters, Incoming, Inner, RequestCounts, chained, traced
from machinery.apiserver.http.limits import BODY_LIMIT, REQUEST_LIMIT
from machinery.apiserver.http.options import request_timeout
from machinery.apiserver.http.responses import ResponseForm, error_answer, negotiate
from machinery.apiserver.http.status_errors import InternalError, forbidden_request
from machinery.apiserver.read.watches import Watches
from machinery.apiserver.resource import ApiGroup
from machinery.apiserver.routes import ObjectRoutes, Scrape, Site
from machinery.apiserver.storage import Actor, Storage
from machinery.apiserver.write.mutations import Mutations
from machinery.errors import (
    BadRequestError,
    DeadlineError,
    ErrorSubject,
    ForbiddenError,
    MusterError,
    NotAcceptableError,
    NotFoundError,
)
from machinery.meta.objects import Key
from machinery.runtime.clock import Clock
from machinery.runtime.health import HealthCheck
from machinery.sanitize import can_store, is_plain

NamespaceLookup = Callable[[str], Awaitable[bool]]
"""Returns whether objects may be created in the namespace with this name."""
Page = Callable[[Incoming], Awaitable[web.Response]]
"""Handler of an additional path, after authorization of the path. Raises a MusterError to refuse."""

LISTENER = web.RequestKey("listener", str)
"""Name of the listener at which a request arrived, if the server has several."""
LONGEST_AUDIT_ID, MOST_URL_PARTS = 64, 100
"""Characters of an audit id, and parts of a URL: segments of its path and parameters. To parse more blocks the event loop."""

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class RequestBounds:
    request: timedelta = REQUEST_LIMIT
    watch: timedelta = timedelta(seconds=1800)
    bookmark: timedelta = timedelta(seconds=30)
    fresh: timedelta = timedelta(seconds=3)
    """A read waits at most this long for a revision that is not visible yet."""
    body: int = BODY_LIMIT


class ApiServer:
    """The composed parts of an API server. `serve` listens with the result of `application()`.

    `pages`: handlers of additional paths.
    `namespaces`: returns whether objects may be created in a namespace. None: if the server has the resource `namespaces`, the
        Namespace must exist and must not be terminating.
    `metrics`: returns the content of `/metrics`; None: the path does not exist.
    """

    def __init__(
        self,
        groups: Sequence[ApiGroup],
        storage: Storage,
        *,
        authenticator: Authenticator,
        authorizer: Authorizer,
        clock: Clock,
        version: Mapping[str, Any],
        checks: Iterable[HealthCheck] = (),
        namespaces: NamespaceLookup | None = None,
        limits: RequestBounds | None = None,
        filters: Filters | None = None,
        metrics: Scrape | None = None,
        pages: Mapping[str, Page] | None = None,
    ) -> None:
        self._limits = limits or RequestBounds()
        self._pages = pages or {}
        self._resources = frozenset(each.name for group in groups for each in group.resources)
        self._clock = clock
        self._authenticator = authenticator
        self._authorizer = authorizer
        self.watches = Watches(longest=self._limits.watch, bookmark=self._limits.bookmark)
        known = namespaces or _namespace_objects(groups, storage)
        mutations = Mutations(clock, body_limit=self._limits.body, namespaces=known, allowed=self._check_allowed)
        self._objects = ObjectRoutes(
            groups, storage, clock, mutations=mutations, watches=self.watches, fresh_timeout=self._limits.fresh
        )
        self._site = Site(groups, version=version, checks=checks, clock=clock, metrics=metrics)
        self.counts = RequestCounts(clock, (resource.name for group in groups for resource in group.resources))
        added = filters or Filters()
        self._answer = chained(
            (
                self.counts.counted,
                self._errors_as_status,
                *added.log_context,
                *added.gate,
                *added.in_flight,
                *added.audit,
                _readable,
                self._within_deadline,
                self._authenticate,
                *(added.impersonation or (_refuse_impersonation,)),
                *added.limits,
                self._authorize,
            ),
            self._answer_authorized,
        )

    def application(self, listener: str = "") -> web.Application:
        """Return a new application for one listener. Its shutdown ends the watches."""
        app = web.Application(client_max_size=self._limits.body)

        async def answer(request: web.Request) -> web.StreamResponse:
            request[LISTENER] = listener
            return await self.handle(request)

        app.router.add_route("*", r"/{path:[\s\S]*}", answer)  # "." does not match a line break
        app.on_shutdown.append(self._stop)
        app.on_response_prepare.append(_common_headers)
        return app

    async def _stop(self, _app: web.Application) -> None:
        self.watches.stop()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Answer a request. It may come from this process instead of a socket."""
        if request.path.count("/") + request.rel_url.raw_query_string.count("&") > MOST_URL_PARTS:
            return error_answer(BadRequestError(f"a URL has at most {MOST_URL_PARTS} parts"), ResponseForm())
        given = request.headers.get("Audit-Id", "")[:LONGEST_AUDIT_ID]
        audit_id = given if given.isascii() and given.isprintable() and given else str(uuid.uuid4())
        asked = attributes(request.method, request.path, request.query)
        incoming = request[INCOMING] = Incoming(request, audit_id, asked, self._clock.monotonic())
        return await traced(incoming, self._answer, self._resources)

    async def _errors_as_status(self, incoming: Incoming, inner: Inner) -> web.StreamResponse:
        request = incoming.request
        try:
            return await inner(incoming)
        except MusterError as error:
            return error_answer(error, _error_form(request))
        except web.HTTPException as error:
            log.info("refused by the HTTP server", path=request.path, status=error.status)
            return web.Response(status=error.status, text=f"{error.reason}\n")
        except Exception:
            log.exception("unexpected error in an API request", method=request.method, path=request.path)
            return error_answer(InternalError(), _error_form(request))

    async def _within_deadline(self, incoming: Incoming, inner: Inner) -> web.StreamResponse:
        if incoming.long_running:
            return await inner(incoming)
        limit = request_timeout(incoming.request.query, self._limits.request)
        try:
            async with asyncio.timeout(limit.total_seconds()) as deadline:
                return await inner(incoming)
        except TimeoutError:
            if not deadline.expired():
                raise
            raise DeadlineError("Timeout: request did not complete within the allotted timeout") from None

    async def _authenticate(self, incoming: Incoming, inner: Inner) -> web.StreamResponse:
        incoming.actor = incoming.authenticated = await self._authenticator.authenticate(incoming.request)
        return await inner(incoming)

    async def _check_allowed(self, actor: Actor, asked: Attributes) -> None:
        """Authorize a second action of a request: the create that an apply implies. Raises ForbiddenError."""
        decision = await self._authorizer.authorize(actor, asked)
        if not decision.allowed:
            raise forbidden_request(actor, asked, decision.reason)

    async def _authorize(self, incoming: Incoming, inner: Inner) -> web.StreamResponse:
        decision = incoming.decision = await self._authorizer.authorize(incoming.actor, incoming.attributes)
        if not decision.allowed:
            raise forbidden_request(incoming.actor, incoming.attributes, decision.reason, decision.denial_cause)
        return await inner(incoming)

    async def _answer_authorized(self, incoming: Incoming) -> web.StreamResponse:
        if incoming.attributes.resource:
            return await self._objects.answer(incoming.request, incoming.attributes, incoming.actor)
        if page := self._pages.get(incoming.request.path):
            return await page(incoming)
        return await self._site.answer(incoming.request)


async def _readable(incoming: Incoming, inner: Inner) -> web.StreamResponse:
    """Reject control characters in the path, and characters in the query that a database cannot store."""
    url = incoming.request.rel_url
    if not is_plain(url.path) or not can_store(url.query_string):
        raise BadRequestError("the URL contains control characters")
    return await inner(incoming)


async def _refuse_impersonation(incoming: Incoming, inner: Inner) -> web.StreamResponse:
    """Reject impersonation headers, because a request that names another user must not run as its real user."""
    if any(name.lower().startswith("impersonate-") for name in incoming.request.headers):
        raise ForbiddenError("impersonation is not supported by this server", subject=ErrorSubject())
    return await inner(incoming)


def _namespace_objects(groups: Sequence[ApiGroup], storage: Storage) -> NamespaceLookup:
    found = [resource for group in groups for resource in group.resources if (group.name, resource.name) == ("", "namespaces")]

    async def exists(name: str) -> bool:
        if not found:
            return True
        try:
            stored = await (found[0].storage or storage).get(found[0].key, Key("", name))
        except NotFoundError:
            return False
        if "deletionTimestamp" in stored.document["metadata"]:
            why = f"unable to create new content in namespace {name} because it is being terminated"
            raise ForbiddenError(why, subject=ErrorSubject(name=name, kind="namespaces"))
        return True

    return exists


def _error_form(request: web.Request) -> ResponseForm:
    try:
        return ResponseForm(negotiate(request.headers.get("Accept", "")).media)
    except NotAcceptableError:
        return ResponseForm()


async def _common_headers(request: web.Request, response: web.StreamResponse) -> None:
    response.headers.setdefault("Cache-Control", "no-cache, private")
    incoming = request.get(INCOMING)
    if incoming is None:  # the HTTP server itself has answered, for example a malformed request
        response.headers["Audit-Id"] = str(uuid.uuid4())
        return
    response.headers["Audit-Id"] = incoming.audit_id
    for listener in incoming.on_headers:
        listener(response)
