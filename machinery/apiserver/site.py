"""Paths that do not name objects: `/`, `/version`, health, metrics, discovery, OpenAPI."""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any

from aiohttp import web

from machinery.apiserver.http.health import ENDPOINTS, NOT_FOUND, HealthCheck, HealthEndpoints
from machinery.apiserver.http.negotiation import etag_matches, is_pretty, negotiate
from machinery.apiserver.http.responses import body_answer, value_answer
from machinery.apiserver.openapi import OpenApi, discovery
from machinery.apiserver.resource import ApiGroup
from machinery.errors import MethodNotAllowedError
from machinery.observability.metrics import CONTENT_TYPE
from machinery.product import TITLE
from machinery.runtime.clock import Clock

Scrape = Callable[[], Awaitable[str]]
"""All metrics in Prometheus' text format."""
NO_SUCH_PATH = web.ResponseKey("no_such_path", bool)
"""Set on the response when the path itself is unknown, as opposed to a missing object."""


def no_such_page() -> web.Response:
    """Response for an unknown path."""
    headers = {"X-Content-Type-Options": "nosniff"}
    response = web.Response(text=NOT_FOUND, status=404, content_type="text/plain", charset="utf-8", headers=headers)
    response[NO_SUCH_PATH] = True
    return response


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
        """Response for the request's path. Raises MethodNotAllowedError, NotAcceptableError."""
        parts = [part for part in request.path.split("/") if part]
        if parts and parts[0] in ENDPOINTS:
            return await self._health.answer(request, parts[0], "/".join(parts[1:]))
        if request.method not in ("GET", "HEAD"):
            raise MethodNotAllowedError("the server does not allow this method on the requested resource")
        if parts == ["metrics"] and self._metrics is not None:
            return web.Response(body=(await self._metrics()).encode(), headers={"Content-Type": CONTENT_TYPE})
        if parts[:1] == ["openapi"]:
            return await self._openapi.answer(request, parts[1:], self._clock.now()) or no_such_page()
        aggregated = discovery.aggregated_version(request.headers.get("Accept", ""))
        if aggregated is not None and parts in (["api"], ["apis"]):
            return await self._aggregated(request, aggregated, core=parts == ["api"])
        found = self._page(parts)
        if found is None:
            return no_such_page()
        pretty = is_pretty(request.query.get("pretty"), request.headers.get("User-Agent", ""))
        form = negotiate(request.headers.get("Accept", ""), pretty=pretty, shapes=False)
        return await value_answer(request, found, form)

    def _page(self, parts: list[str]) -> dict[str, Any] | None:
        pages: dict[tuple[str, ...], Callable[[], dict[str, Any]]] = {
            (): lambda: {"paths": sorted(self._paths())},
            ("index.html",): lambda: {"paths": sorted(self._paths())},
            ("version",): lambda: self._version,
            ("api",): self._discovery.core_versions,
            ("apis",): self._discovery.group_list,
        }
        page = pages.get(tuple(parts))
        return page() if page is not None else self._group_page(parts)

    def _group_page(self, parts: list[str]) -> dict[str, Any] | None:
        match parts:
            case ["api", version]:
                return self._resources("", version)
            case ["apis", name]:
                group = self._discovery.group(name)
                return self._discovery.api_group(group) if group is not None else None
            case ["apis", name, version]:
                return self._resources(name, version)
        return None

    def _resources(self, name: str, version: str) -> dict[str, Any] | None:
        group = self._discovery.group(name)
        if group is None or version not in group.versions:
            return None
        return self._discovery.resource_list(group, version)

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
