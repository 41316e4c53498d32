"""OpenAPI version 3 documents by path: one per group and version, and those of discovery itself."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from machinery.apiserver.http.negotiation import JSON, YAML
from machinery.apiserver.openapi.discovery import served
from machinery.apiserver.openapi.metaschemas import (
    DISCOVERY_SCHEMAS,
    OBJECT_SCHEMAS,
    VERSION_INFO,
    VERSION_SCHEMAS,
    meta,
    reference,
)
from machinery.apiserver.openapi.operations import ALWAYS, content, paths_of, refusals
from machinery.apiserver.openapi.schemas import kind_schemas
from machinery.apiserver.resource import ApiGroup

Document = Mapping[str, Any]


def documents_of(groups: Sequence[ApiGroup], title: str, release: str) -> Iterator[tuple[str, Callable[[], Document]]]:
    """Paths below `/openapi/v3/`, each with a function that builds the document."""
    core = [group for group in groups if not group.name]
    named = [group for group in groups if group.name]
    if core:
        page = partial(_pages, {"/api/": ("APIVersions", "available versions of the legacy group")})
        yield "api", partial(_document, title, release, page, DISCOVERY_SCHEMAS)
    page = partial(_pages, {"/apis/": ("APIGroupList", "available groups")})
    yield "apis", partial(_document, title, release, page, DISCOVERY_SCHEMAS)
    yield "version", partial(_document, title, release, _version_page, VERSION_SCHEMAS)
    for group in named:
        page = partial(_pages, {f"/apis/{group.name}/": ("APIGroup", f"versions of {group.name}")})
        yield f"apis/{group.name}", partial(_document, title, release, page, DISCOVERY_SCHEMAS)
    for group in groups:
        for version in group.versions:
            path = f"apis/{group.name}/{version}" if group.name else f"api/{version}"
            yield path, partial(_of_version, group, version, title, f"/{path}")


def _document(title: str, version: str, paths: Callable[[], Any], schemas: Document) -> Document:
    info = {"title": title, "version": version}
    return {"openapi": "3.0.0", "info": info, "paths": paths(), "components": {"schemas": dict(schemas)}}


def _of_version(group: ApiGroup, version: str, title: str, prefix: str) -> Document:
    schemas: dict[str, Any] = dict(OBJECT_SCHEMAS)
    paths: dict[str, Any] = {}
    resources = list(served(group, version))
    if not all(resource.custom for resource in resources):
        paths |= _pages({f"{prefix}/": ("APIResourceList", "available resources")})
        schemas |= DISCOVERY_SCHEMAS
    for resource in resources:
        schemas |= kind_schemas(resource, version)
        paths |= paths_of(resource, version, prefix)
    return _document(title, version, lambda: paths, schemas)


def _pages(pages: Mapping[str, tuple[str, str]]) -> dict[str, Any]:
    return {path: _page(path, reference(meta(kind)), f"get {what}", JSON, YAML) for path, (kind, what) in pages.items()}


def _version_page() -> dict[str, Any]:
    return {"/version/": _page("/version/", reference(VERSION_INFO), "get the version of this server", JSON, YAML)}


def _page(path: str, schema: Any, description: str, *media: str) -> dict[str, Any]:
    words = (word.capitalize() for part in path.split("/") for word in part.replace("-", ".").split("."))
    operation = {
        "description": description,
        "operationId": f"get{''.join(words)}Page",
        "responses": {"200": {"description": "OK", "content": content(schema, *media)}, **refusals(*ALWAYS)},
    }
    return {"get": operation}
