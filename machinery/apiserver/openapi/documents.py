"""The pages `/openapi/v2` and `/openapi/v3`. The header Accept selects the format.

Version 3 has one document for each version of an API group, and one for each discovery page. The first request for a page
builds it; its ETag is a hash. The cache contains compressed documents, because most clients accept gzip. For other clients the
server decompresses them.
"""

import asyncio
import gzip
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import msgspec
from aiohttp import web

from machinery.apiserver.http.responses import JSON, clauses, etag_matches, takes_gzip
from machinery.apiserver.openapi.discovery import served
from machinery.apiserver.openapi.operations import ALWAYS, content, paths_of, refusals
from machinery.apiserver.openapi.schemas import VERSION_INFO, kind_schemas, meta, reference, shared
from machinery.apiserver.openapi.version2 import encode, swagger
from machinery.apiserver.resource import ApiGroup

Document = Mapping[str, Any]


def documents_of(groups: Sequence[ApiGroup], title: str, release: str) -> Iterator[tuple[str, Document]]:
    """Yield each path below `/openapi/v3/` with its document. `release`: the version in documents without API version."""

    def document(paths: Document, schemas: Document, version: str = release) -> Document:
        info = {"title": title, "version": version}
        return {"openapi": "3.0.0", "info": info, "paths": paths, "components": {"schemas": dict(schemas)}}

    core = ("api", meta("APIVersions"), "get available versions of the legacy group", "discovery")
    pages = (
        *((core,) if any(not group.name for group in groups) else ()),
        ("apis", meta("APIGroupList"), "get available groups", "discovery"),
        ("version", VERSION_INFO, "get the version of this server", "version"),
        *((f"apis/{each.name}", meta("APIGroup"), f"get versions of {each.name}", "discovery") for each in groups if each.name),
    )
    for path, schema, description, part in pages:
        yield path, document(_page_operation(f"/{path}/", schema, description), shared()[part])
    for group in groups:
        for version in group.versions:
            path = f"apis/{group.name}/{version}" if group.name else f"api/{version}"
            schemas: dict[str, Any] = dict(shared()["objects"])
            paths: dict[str, Any] = {}
            resources = list(served(group, version))
            if not all(resource.custom for resource in resources):
                paths |= _page_operation(f"/{path}/", meta("APIResourceList"), "get available resources")
                schemas |= shared()["discovery"]
            for resource in resources:
                schemas |= kind_schemas(resource, version)
                paths |= paths_of(resource, version, f"/{path}")
            yield path, document(paths, schemas, version)


def _page_operation(path: str, schema: str, description: str) -> dict[str, Any]:
    words = (word.capitalize() for part in path.split("/") for word in part.replace("-", ".").split("."))
    operation = {
        "description": description,
        "operationId": f"get{''.join(words)}Page",
        "responses": {"200": {"description": "OK", "content": content(reference(schema))}, **refusals(*ALWAYS)},
    }
    return {path: {"get": operation}}


PROTO = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"
OLD_PROTO = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf"
"""Media type that clients before 2023 use for version 2 in protobuf. Its `@` is invalid in a media type."""
_VARIES = {"Vary": "Accept, Accept-Encoding"}
_ANYTHING = ("application/*", "*/*")


@dataclass(frozen=True, slots=True)
class _Page:
    """One document: media type, compressed bytes and hash."""

    media: str
    packed: bytes
    digest: str

    @property
    def etag(self) -> str:
        return f'"{self.digest}"'

    @property
    def headers(self) -> dict[str, str]:
        return {**_VARIES, "ETag": self.etag}


def _page(media: str, body: bytes, digest: str = "") -> _Page:
    """Return a page. `digest`: hash of the page; "": the hash of `body`. All encodings of a document have one hash."""
    return _Page(media, gzip.compress(body, 6, mtime=0), digest or hashlib.sha512(body).hexdigest().upper())


class OpenApi:
    """The OpenAPI documents of a list of groups; `title` and `version` are the product's."""

    def __init__(self, groups: Sequence[ApiGroup], title: str, version: str = "unversioned") -> None:
        self._groups = groups
        self._title = title
        self._version = version
        self._making = asyncio.Lock()
        self._three: Mapping[str, _Page] = {}
        """Pages of version 3 by path; "" is the index."""
        self._two: tuple[_Page, _Page] | None = None

    @staticmethod
    def paths() -> tuple[str, ...]:
        """Return the paths of the OpenAPI pages, for the response of `/`."""
        return ("/openapi/v2", "/openapi/v3")

    async def answer(self, request: web.Request, parts: Sequence[str], now: datetime) -> web.Response | None:
        """Return the page at `/openapi/<parts>`; None if there is no such page. `now`: for the expiry in cache headers."""
        match parts:
            case ["v2"]:
                return await self._version_two(request)
            case ["v3", *path]:
                return await self._version_three(request, "/".join(path), now)
        return None

    async def _version_two(self, request: web.Request) -> web.Response:
        async with self._making:
            if self._two is None:
                self._two = await asyncio.to_thread(self._make_two)
        as_json, as_protobuf = self._two
        for clause in clauses(request.headers.get("Accept", "")):
            if clause.media in (JSON, *_ANYTHING):
                return _answered(request, as_json)
            if clause.media in (PROTO, OLD_PROTO):
                return _answered(request, as_protobuf)
        return web.Response(status=406, headers=_VARIES)

    async def _version_three(self, request: web.Request, path: str, now: datetime) -> web.Response | None:
        async with self._making:
            if not self._three:
                self._three = await asyncio.to_thread(self._make_three)
        page = self._three.get(path)
        if page is None or not path:
            return None if page is None else _answered(request, page)
        if not any(clause.media in (JSON, *_ANYTHING) for clause in clauses(request.headers.get("Accept", ""))):
            return web.Response(status=406, headers=_VARIES)
        asked = request.query.get("hash", "").strip('"')
        if asked and asked != page.digest:
            location = f"/openapi/v3/{path}?hash={page.digest}"
            return web.Response(status=301, headers={**page.headers, "Location": location, "Content-Type": JSON})
        return _answered(request, page, _for_ever(now) if asked else {})

    def _make_three(self) -> dict[str, _Page]:
        documents = documents_of(self._groups, self._title, self._version)
        pages = {path: _page(JSON, msgspec.json.encode(document)) for path, document in documents}
        urls = {path: {"serverRelativeURL": f"/openapi/v3/{path}?hash={page.digest}"} for path, page in sorted(pages.items())}
        return {**pages, "": _page(JSON, msgspec.json.encode({"paths": urls}))}

    def _make_two(self) -> tuple[_Page, _Page]:
        documents = (document for _, document in documents_of(self._groups, self._title, self._version))
        document = swagger(documents, self._title, self._version)
        as_json = _page(JSON, msgspec.json.encode(document))
        return as_json, _page(PROTO, encode(document), as_json.digest)


def _answered(request: web.Request, page: _Page, more: Mapping[str, str] | None = None) -> web.Response:
    headers = {**page.headers, **(more or {})}
    if etag_matches(request.headers.get("If-None-Match", ""), page.etag):
        return web.Response(status=304, headers=headers)
    headers["Content-Type"] = page.media
    if takes_gzip(request.headers.get("Accept-Encoding", "")):
        return web.Response(body=page.packed, headers={**headers, "Content-Encoding": "gzip"})
    return web.Response(body=gzip.decompress(page.packed), headers=headers)


def _for_ever(now: datetime) -> dict[str, str]:
    """Return cache headers for a page that was requested by its hash. Such a page never changes."""
    year = now.replace(year=now.year + 1, day=min(now.day, 28))
    return {"Cache-Control": "public, immutable", "Expires": year.strftime("%a, %d %b %Y %H:%M:%S GMT")}
