"""OpenAPI v3: an index with hashes and one document per group and version, as `kubectl explain` and `--validate` want them."""

import hashlib
from collections.abc import Iterator, Sequence
from datetime import datetime
from functools import cached_property
from typing import Any

import msgspec
from aiohttp import web

from machinery.apiserver.discovery import served
from machinery.apiserver.negotiation import JSON, clauses
from machinery.apiserver.resource import Group, Resource, Schema

META = "io.k8s.apimachinery.pkg.apis.meta.v1"
_OBJECT_META: Schema = {
    "description": "ObjectMeta is metadata that all persisted resources must have.",
    "type": "object",
    "properties": {
        "name": {"type": "string", "description": "Name must be unique within a namespace."},
        "generateName": {"type": "string", "description": "A prefix from which the server makes a unique name."},
        "namespace": {"type": "string", "description": "The space within which the name must be unique."},
        "uid": {"type": "string", "description": "The unique value of this object in time and space. Read-only."},
        "resourceVersion": {"type": "string", "description": "The version of this object: for watches and locks."},
        "generation": {"type": "integer", "format": "int64", "description": "Counts the changes of the desired state."},
        "creationTimestamp": {"type": "string", "format": "date-time", "description": "When it was created. Read-only."},
        "deletionTimestamp": {"type": "string", "format": "date-time", "description": "Since when it goes. Read-only."},
        "deletionGracePeriodSeconds": {"type": "integer", "format": "int64"},
        "labels": {"type": "object", "additionalProperties": {"type": "string"}, "description": "To organise and select."},
        "annotations": {"type": "object", "additionalProperties": {"type": "string"}, "description": "Not queryable."},
        "finalizers": {"type": "array", "items": {"type": "string"}, "description": "Who must let go before it goes."},
        "ownerReferences": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {
                    "apiVersion": {"type": "string"},
                    "kind": {"type": "string"},
                    "name": {"type": "string"},
                    "uid": {"type": "string"},
                    "controller": {"type": "boolean"},
                    "blockOwnerDeletion": {"type": "boolean"},
                },
            },
        },
        "managedFields": {"type": "array", "items": {"type": "object"}},
        "selfLink": {"type": "string"},
    },
}
_LIST_META: Schema = {
    "description": "ListMeta describes a list.",
    "type": "object",
    "properties": {
        "resourceVersion": {"type": "string"},
        "continue": {"type": "string"},
        "remainingItemCount": {"type": "integer", "format": "int64"},
        "selfLink": {"type": "string"},
    },
}
_API_VERSION = {"type": "string", "description": "APIVersion defines the versioned schema of this representation of an object."}
_KIND = {"type": "string", "description": "Kind is a string value representing the REST resource this object represents."}
_WRITE_PARAMETERS = ("dryRun", "fieldManager", "fieldValidation", "pretty")
_LIST_PARAMETERS = (
    *("allowWatchBookmarks", "continue", "fieldSelector", "labelSelector", "limit", "pretty", "resourceVersion"),
    *("resourceVersionMatch", "sendInitialEvents", "timeoutSeconds", "watch"),
)
_METHODS = {"get": "get", "update": "put", "patch": "patch", "delete": "delete"}
_COLLECTION_METHODS = {"list": "get", "create": "post", "deletecollection": "delete"}


def schema_name(resource: Resource, version: str) -> str:
    """`io.open-cluster-management.cluster.v1.ManagedCluster`, `io.k8s.api.coordination.v1.Lease`."""
    if resource.custom:
        return ".".join((*reversed(resource.group.split(".")), version, resource.kind))
    return f"io.k8s.api.{resource.group.split('.')[0] or 'core'}.{version}.{resource.kind}"


def _reference(name: str) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{name}"}


class OpenApi:
    """The documents of a list of groups, made at the first request and then kept."""

    def __init__(self, groups: Sequence[Group], title: str) -> None:
        self._groups = groups
        self._title = title

    @cached_property
    def _documents(self) -> dict[str, tuple[bytes, str]]:
        documents = {}
        for group in self._groups:
            for version in group.versions:
                path = f"apis/{group.name}/{version}" if group.name else f"api/{version}"
                body = msgspec.json.encode(self._document(group, version, f"/{path}"))
                documents[path] = (body, hashlib.sha512(body).hexdigest().upper())
        return documents

    def index(self) -> dict[str, Any]:
        """`/openapi/v3`."""
        urls = {path: f"/openapi/v3/{path}?hash={digest}" for path, (_, digest) in self._documents.items()}
        return {"paths": {path: {"serverRelativeURL": url} for path, url in urls.items()}}

    def answer(self, request: web.Request, path: str, now: datetime) -> web.Response | None:
        """The document of a group and version; None when there is none. A wrong hash leads to the right one."""
        found = self._documents.get(path)
        if found is None:
            return None
        body, digest = found
        headers = {"Vary": "Accept", "ETag": f'"{digest}"'}
        if not any(clause.media in (JSON, "application/*", "*/*") for clause in clauses(request.headers.get("Accept", ""))):
            return web.Response(status=406, headers={"Vary": "Accept"})
        asked = request.query.get("hash", "").strip('"')
        if asked and asked != digest:
            location = f"/openapi/v3/{path}?hash={digest}"
            return web.Response(status=301, headers={**headers, "Location": location, "Content-Type": JSON})
        if request.headers.get("If-None-Match", "").strip('"') == digest:
            return web.Response(status=304, headers=headers)
        if asked:
            year = now.replace(year=now.year + 1, day=min(now.day, 28))
            headers |= {"Cache-Control": "public, immutable", "Expires": year.strftime("%a, %d %b %Y %H:%M:%S UTC")}
        return web.Response(body=body, headers={**headers, "Content-Type": JSON})

    def _document(self, group: Group, version: str, prefix: str) -> dict[str, Any]:
        resources = list(served(group, version))
        schemas: dict[str, Any] = {f"{META}.ObjectMeta": _OBJECT_META, f"{META}.ListMeta": _LIST_META}
        paths: dict[str, Any] = {}
        for resource in resources:
            schemas.update(_schemas(resource, version))
            for part in resource.subresources:
                if part.question is not None:
                    schemas.update(_schemas(part.question, part.question.version))
            paths.update(_paths(resource, version, prefix))
        info = {"title": self._title, "version": version}
        return {"openapi": "3.0.0", "info": info, "paths": paths, "components": {"schemas": schemas}}


def _schemas(resource: Resource, version: str) -> Iterator[tuple[str, dict[str, Any]]]:
    name = schema_name(resource, version)
    schema = next((other.schema for other in resource.versions if other.name == version), resource.schema)
    gvk = {"group": resource.group, "version": version}
    metadata = {"description": "Standard object's metadata.", "allOf": [_reference(f"{META}.ObjectMeta")]}
    properties = {"apiVersion": _API_VERSION, "kind": _KIND, "metadata": metadata, **schema.get("properties", {})}
    kind = {**gvk, "kind": resource.kind}
    yield name, {**schema, "type": "object", "properties": properties, "x-kubernetes-group-version-kind": [kind]}
    if "list" not in resource.verbs:
        return
    listed = {
        "apiVersion": _API_VERSION,
        "kind": _KIND,
        "metadata": {"description": "Standard list metadata.", "allOf": [_reference(f"{META}.ListMeta")]},
        "items": {"type": "array", "items": {"allOf": [_reference(name)]}},
    }
    list_kind = {**gvk, "kind": resource.list_kind}
    yield (
        f"{name}List",
        {
            "description": f"{resource.list_kind} is a list of {resource.kind}",
            "type": "object",
            "required": ["items"],
            "properties": listed,
            "x-kubernetes-group-version-kind": [list_kind],
        },
    )


def _paths(resource: Resource, version: str, prefix: str) -> Iterator[tuple[str, dict[str, Any]]]:
    scope = f"{prefix}/namespaces/{{namespace}}" if resource.namespaced else prefix
    collection = {
        method: _operation(resource, version, verb) for verb, method in _COLLECTION_METHODS.items() if verb in resource.verbs
    }
    yield f"{scope}/{resource.name}", collection
    if resource.namespaced and "list" in resource.verbs:
        yield f"{prefix}/{resource.name}", {"get": _operation(resource, version, "list")}
    item = {method: _operation(resource, version, verb) for verb, method in _METHODS.items() if verb in resource.verbs}
    if item:
        yield f"{scope}/{resource.name}/{{name}}", item
    for part in resource.subresources:
        if part.question is not None:
            asked = _operation(part.question, part.question.version, "create")
            yield f"{scope}/{resource.name}/{{name}}/{part.name}", {"post": asked}
            continue
        written = {method: _operation(resource, version, verb) for verb, method in _METHODS.items() if verb in part.verbs}
        yield f"{scope}/{resource.name}/{{name}}/{part.name}", written


def _operation(resource: Resource, version: str, verb: str) -> dict[str, Any]:
    name = schema_name(resource, version)
    names = _LIST_PARAMETERS if verb in ("list", "deletecollection") else _WRITE_PARAMETERS
    answer = _reference(f"{name}List" if verb == "list" else name)
    content = {JSON: {"schema": answer}}
    operation: dict[str, Any] = {
        "description": f"{verb} {resource.kind}",
        "parameters": [{"name": name, "in": "query", "schema": {"type": "string", "uniqueItems": True}} for name in names],
        "responses": {"200": {"description": "OK", "content": content}, "401": {"description": "Unauthorized"}},
        "x-kubernetes-action": {"create": "post", "update": "put"}.get(verb, verb),
        "x-kubernetes-group-version-kind": {"group": resource.group, "version": version, "kind": resource.kind},
    }
    if verb in ("create", "update", "patch"):
        operation["requestBody"] = {"content": {"*/*": {"schema": _reference(name)}}, "required": True}
    return operation
