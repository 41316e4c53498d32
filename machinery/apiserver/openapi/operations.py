"""OpenAPI operations: the parameters, the body and all responses of each path and verb."""

from collections.abc import Iterator, Mapping
from typing import Any

from machinery.apiserver.http.responses import JSON, PROTOBUF, YAML
from machinery.apiserver.openapi.schemas import group_version_kind, kind_reference, list_reference, meta, reference, shared
from machinery.apiserver.resource import Resource, Subresource
from machinery.apiserver.write.patches import APPLY_PATCH, JSON_PATCH, MERGE_PATCH, STRATEGIC_PATCH
from machinery.apiserver.write.protobuf import MESSAGES

_LIST = (
    *("allowWatchBookmarks", "at", "continue", "fieldSelector", "includeObject", "labelSelector", "limit", "resourceVersion"),
    *("resourceVersionMatch", "sendInitialEvents", "timeoutSeconds", "watch", "where"),
)
_WRITE = ("dryRun", "fieldManager", "fieldValidation")
_DELETE = ("dryRun", "gracePeriodSeconds", "orphanDependents", "propagationPolicy")
_BY_VERB: Mapping[str, tuple[str, ...]] = {
    "get": ("at", "includeObject", "resourceVersion"),
    "list": _LIST,
    "create": _WRITE,
    "update": _WRITE,
    "patch": (*_WRITE, "force"),
    "delete": _DELETE,
    "deletecollection": tuple(
        sorted({*_LIST, *_DELETE} - {"allowWatchBookmarks", "at", "includeObject", "sendInitialEvents", "watch"})
    ),
}


def parameters_of_path(kind: str, *, named: bool, namespaced: bool) -> list[dict[str, Any]]:
    found = []
    if named:
        found.append(_in_path("name", f"name of the {kind}"))
    if namespaced:
        found.append(_in_path("namespace", "object name and auth scope, such as for teams and projects"))
    return [*found, *(shared()["parameters"][name] for name in ("pretty", "timeout"))]


def _in_path(name: str, description: str) -> dict[str, Any]:
    schema = {"type": "string", "uniqueItems": True}
    return {"name": name, "in": "path", "description": description, "required": True, "schema": schema}


_METHODS = {"get": "get", "update": "put", "create": "post", "patch": "patch", "delete": "delete"}
_COLLECTION_METHODS = {"list": "get", "create": "post", "deletecollection": "delete"}
_ACTIONS = {"create": "post", "update": "put"}
_WORDS = {"get": "read", "update": "replace", "deletecollection": "delete collection of"}
ALWAYS = ("400", "401", "403", "404", "405", "406", "429", "500", "503", "504")
_WRITTEN = ("409", "413", "415", "422")
_REFUSALS = {
    "get": (),
    "list": ("410", "422"),
    "create": _WRITTEN,
    "update": _WRITTEN,
    "patch": _WRITTEN,
    "delete": _WRITTEN,
    "deletecollection": ("410", *_WRITTEN),
}
ANSWERED = (JSON, YAML)


def content(schema: Any, *media: str) -> dict[str, Any]:
    return {each: {"schema": schema} for each in media or ANSWERED}


def refusals(*codes: str) -> dict[str, Any]:
    """Return the responses with a Status for these HTTP codes, by code."""
    status = content(reference(meta("Status")))
    return {code: {"description": shared()["refusals"][code], "content": status} for code in sorted(codes)}


def paths_of(resource: Resource, version: str, prefix: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each path of a resource in a version, with its OpenAPI path item. `prefix`: the path of the group and version."""
    scope = f"{prefix}/namespaces/{{namespace}}" if resource.namespaced else prefix
    verbs = resource.verbs
    collection = {method: _operation(resource, version, verb) for verb, method in _COLLECTION_METHODS.items() if verb in verbs}
    yield f"{scope}/{resource.name}", _item(resource, collection)
    if resource.namespaced and "list" in verbs:
        everywhere = _operation(resource, version, "list", suffix="ForAllNamespaces")
        yield f"{prefix}/{resource.name}", _item(resource, {"get": everywhere}, namespaced=False)
    named = {
        method: _operation(resource, version, verb) for verb, method in _METHODS.items() if verb in verbs and verb != "create"
    }
    if named:
        yield f"{scope}/{resource.name}/{{name}}", _item(resource, named, named=True)
    for part in resource.subresources:
        yield f"{scope}/{resource.name}/{{name}}/{part.name}", _item(resource, _of_part(resource, version, part), named=True)


def _of_part(resource: Resource, version: str, part: Subresource) -> dict[str, Any]:
    suffix = "".join(word.capitalize() for word in part.name.split("-"))
    if part.question is not None:
        asked, verb = part.question, part.verbs[0]
        return {_METHODS[verb]: _operation(asked, asked.version, verb, suffix=suffix, of=(resource, version))}
    return {
        method: _operation(resource, version, verb, suffix=suffix) for verb, method in _METHODS.items() if verb in part.verbs
    }


def _item(
    resource: Resource, operations: dict[str, Any], *, named: bool = False, namespaced: bool | None = None
) -> dict[str, Any]:
    scoped = resource.namespaced if namespaced is None else namespaced
    return {**operations, "parameters": parameters_of_path(resource.kind, named=named, namespaced=scoped)}


def _operation(
    resource: Resource, version: str, verb: str, *, suffix: str = "", of: tuple[Resource, str] | None = None
) -> dict[str, Any]:
    """Return one operation. `of`: for a subresource of another kind (`resource`), its parent and version."""
    place, placed = of or (resource, version)
    operation: dict[str, Any] = {
        "tags": [_tag(place.group, placed)],
        "description": f"{_WORDS.get(verb, verb)} {_counted(resource, verb)}",
        "operationId": operation_id(place, placed, verb) + suffix,
        # kubectl searches for the names of parameters and does not resolve references, so there are none
        "parameters": [shared()["parameters"][name] for name in _BY_VERB.get(verb, ())],
    }
    if body := _body(resource, version, verb):
        operation["requestBody"] = body
    return {
        **operation,
        "responses": {**_successes(resource, version, verb), **refusals(*ALWAYS, *_REFUSALS[verb])},
        "x-kubernetes-action": _ACTIONS.get(verb, verb),
        "x-kubernetes-group-version-kind": group_version_kind(resource, version),
    }


def _counted(resource: Resource, verb: str) -> str:
    if verb == "list":
        return f"or watch objects of kind {resource.kind}"
    return resource.kind if verb in ("create", "deletecollection") else f"the specified {resource.kind}"


def operation_id(resource: Resource, version: str, verb: str) -> str:
    """Return the id, such as `listClusterOpenClusterManagementIoV1ManagedCluster`. It is unique in all documents."""
    place = _camel(resource.group or "core") + version.capitalize()
    scope = "Namespaced" if resource.namespaced else ""
    word = {"deletecollection": "delete", "get": "read", "update": "replace"}.get(verb, verb)
    collection = "Collection" if verb == "deletecollection" else ""
    return f"{word}{place}{collection}{scope}{resource.kind}"


def _tag(group: str, version: str) -> str:
    camel = _camel(group or "core")
    return f"{camel[:1].lower()}{camel[1:]}_{version}"


def _camel(group: str) -> str:
    words = group.removesuffix(".k8s.io").replace("-", ".").split(".")
    return "".join(word.capitalize() for word in words)


def _body(resource: Resource, version: str, verb: str) -> dict[str, Any] | None:
    if verb in ("create", "update"):
        protobuf = (PROTOBUF,) if (resource.api_version(version), resource.kind) in MESSAGES else ()
        return {"content": content(kind_reference(resource, version), *ANSWERED, *protobuf), "required": True}
    if verb == "patch":
        media = (APPLY_PATCH, JSON_PATCH, MERGE_PATCH, *(() if resource.custom else (STRATEGIC_PATCH,)))
        return {"content": content(reference(meta("Patch")), *media), "required": True}
    if verb in ("delete", "deletecollection"):
        return {"content": content(reference(meta("DeleteOptions")))}
    return None


def _successes(resource: Resource, version: str, verb: str) -> dict[str, Any]:
    kind = kind_reference(resource, version)
    ok, created = {"description": "OK", "content": content(kind)}, {"description": "Created", "content": content(kind)}
    match verb:
        case "list" | "deletecollection":
            return {"200": {"description": "OK", "content": content(list_reference(resource, version))}}
        case "create":
            return {"201": created}
        case "patch":
            return {"200": ok, "201": created}
        case "delete":
            words = "OK: a Status when the object is gone, the object itself while something holds it"
            return {"200": {"description": words, "content": content({"anyOf": [reference(meta("Status")), kind]})}}
    return {"200": ok}
