"""Published OpenAPI schemas: those that all kinds share (metadata, lists, Status, discovery), and those of each kind."""

from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from machinery.apiserver.resource import Resource, Schema
from machinery.meta import bounded_yaml

META = "io.k8s.apimachinery.pkg.apis.meta.v1"
VERSION_INFO = "io.k8s.apimachinery.pkg.version.Info"
API_VERSION = {"type": "string", "description": "APIVersion defines the versioned schema of this representation of an object."}
KIND = {"type": "string", "description": "Kind is a string value representing the REST resource this object represents."}


@cache
def shared() -> Mapping[str, Mapping[str, Any]]:
    """Return shared.yaml: schemas by name in `objects`, `discovery`, `version`; query parameters; error texts by HTTP code."""
    parts = bounded_yaml.load(Path(__file__).with_name("shared.yaml").read_bytes())
    refusal = {meta(name): parts["objects"][meta(name)] for name in ("Status", "StatusDetails", "StatusCause", "ListMeta")}
    return {**parts, "discovery": {**parts["discovery"], **refusal}, "version": {**parts["version"], **refusal}}


def reference(name: str) -> dict[str, str]:
    """Return a reference to the schema `name` in the same OpenAPI document."""
    return {"$ref": f"#/components/schemas/{name}"}


def described(name: str, description: str) -> dict[str, Any]:
    """Return a reference to the schema `name`, with another description than the schema has."""
    return {"description": description, "allOf": [reference(name)]}


def meta(name: str) -> str:
    return f"{META}.{name}"


_FORMATS = {"micro-time": "date-time"}
"""Maps formats that only this server distinguishes to published formats."""


def schema_name(resource: Resource, version: str) -> str:
    """Return the schema's name, such as `io.k8s.api.coordination.v1.Lease`."""
    if resource.custom:
        return ".".join((*reversed(resource.group.split(".")), version, resource.kind))
    return f"io.k8s.api.{resource.group.split('.')[0] or 'core'}.{version}.{resource.kind}"


def kind_reference(resource: Resource, version: str) -> dict[str, str]:
    return reference(schema_name(resource, version))


def list_reference(resource: Resource, version: str) -> dict[str, str]:
    return reference(f"{schema_name(resource, version)}List")


def group_version_kind(resource: Resource, version: str) -> dict[str, str]:
    return {"group": resource.group, "version": version, "kind": resource.kind}


def kind_schemas(resource: Resource, version: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the schemas of the kind, of its list if it can be listed, and of the kinds of its subresources."""
    name, kind = schema_name(resource, version), group_version_kind(resource, version)
    converted = resource.served_versions.get(version)
    content = _published(converted.schema if converted else resource.schema, "", resource.merge_keys)
    metadata = described(meta("ObjectMeta"), "Standard object's metadata.")
    properties = {"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, **content.get("properties", {})}
    yield name, {**content, "type": "object", "properties": properties, "x-kubernetes-group-version-kind": [kind]}
    if "list" in resource.verbs:
        yield f"{name}List", _list_schema(resource, name, kind)
    for part in resource.subresources:
        if part.question is not None:
            yield from kind_schemas(part.question, part.question.version)


def _list_schema(resource: Resource, name: str, kind: Mapping[str, str]) -> dict[str, Any]:
    return {
        "description": f"{resource.list_kind} is a list of {resource.kind}",
        "type": "object",
        "required": ["items"],
        "properties": {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "metadata": described(meta("ListMeta"), "Standard list metadata."),
            "items": {"description": "The objects.", "type": "array", "items": reference(name)},
        },
        "x-kubernetes-group-version-kind": [{**kind, "kind": resource.list_kind}],
    }


def _published(schema: Schema, path: str, merge_keys: Mapping[str, str]) -> dict[str, Any]:
    """Return the schema that clients get: with the merge keys of its lists, and with standard formats."""
    shown = dict(schema)
    if shown.get("format") in _FORMATS:
        shown["format"] = _FORMATS[shown["format"]]
    if path in merge_keys:
        shown |= {"x-kubernetes-patch-merge-key": merge_keys[path], "x-kubernetes-patch-strategy": "merge"}
    if "properties" in shown:
        shown["properties"] = {
            name: _published(part, f"{path}.{name}" if path else name, merge_keys) for name, part in shown["properties"].items()
        }
    for inner in ("items", "additionalProperties"):
        if isinstance(shown.get(inner), Mapping):
            shown[inner] = _published(shown[inner], f"{path}[]", merge_keys)
    return shown
