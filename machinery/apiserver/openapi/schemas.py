"""Published OpenAPI schemas: of metadata, lists, Status and discovery, which all kinds share, and of each kind."""

from collections.abc import Iterator, Mapping
from typing import Any

from machinery.apiserver.resource import Resource, Schema

META = "io.k8s.apimachinery.pkg.apis.meta.v1"
MERGED = {"x-kubernetes-patch-strategy": "merge"}
ATOMIC = {"x-kubernetes-list-type": "atomic"}
API_VERSION = {"type": "string", "description": "APIVersion defines the versioned schema of this representation of an object."}
KIND = {"type": "string", "description": "Kind is a string value representing the REST resource this object represents."}


def reference(name: str) -> dict[str, str]:
    """A reference to a schema of the same document."""
    return {"$ref": f"#/components/schemas/{name}"}


def described(name: str, description: str) -> dict[str, Any]:
    """A reference with its own description."""
    return {"description": description, "allOf": [reference(name)]}


def meta(name: str) -> str:
    return f"{META}.{name}"


def _text(description: str) -> dict[str, Any]:
    return {"type": "string", "description": description}


def _number(description: str, width: int = 64) -> dict[str, Any]:
    return {"type": "integer", "format": f"int{width}", "description": description}


def _moment(description: str) -> dict[str, Any]:
    return described(meta("Time"), description)


def _texts(description: str, **more: Any) -> dict[str, Any]:
    return {"type": "array", "items": {"type": "string"}, "description": description, **more}


def _object(description: str, properties: Mapping[str, Any], *required: str, **more: Any) -> dict[str, Any]:
    needed = {"required": list(required)} if required else {}
    return {"description": description, "type": "object", **needed, "properties": dict(properties), **more}


_LABELS = {"type": "object", "additionalProperties": {"type": "string"}}
_OWNER = _object(
    "OwnerReference contains enough information to let you identify an owning object.",
    {
        "apiVersion": _text("API version of the referent."),
        "kind": _text("Kind of the referent."),
        "name": _text("Name of the referent."),
        "uid": _text("UID of the referent."),
        "controller": {"type": "boolean", "description": "If true, this reference points to the managing controller."},
        "blockOwnerDeletion": {"type": "boolean", "description": "Whether the owner waits for this object when it is deleted."},
    },
    *("apiVersion", "kind", "name", "uid"),
    **{"x-kubernetes-map-type": "atomic"},
)
_MANAGED = _object(
    "ManagedFieldsEntry says which fields one manager has set, and when.",
    {
        "manager": _text("Manager is an identifier of the workflow managing these fields."),
        "operation": _text("Operation is how the fields were set: Apply or Update."),
        "apiVersion": _text("APIVersion is the version of the object in which the fields are named."),
        "time": _moment("Time is when the entry last changed."),
        "fieldsType": _text("FieldsType is the format of fieldsV1: FieldsV1."),
        "fieldsV1": described(meta("FieldsV1"), "FieldsV1 holds the fields as a tree of their names."),
        "subresource": _text("Subresource is the subresource by which the fields were set, if it was one."),
    },
)
_OBJECT_META = _object(
    "ObjectMeta is metadata that all persisted resources must have, which includes all objects users must create.",
    {
        "name": _text("Name must be unique within a namespace. It cannot be updated."),
        "generateName": _text("GenerateName is a prefix from which the server makes a unique name, when no name is given."),
        "namespace": _text("Namespace defines the space within which the name must be unique."),
        "uid": _text("UID is the unique value of this object in time and space. Read-only."),
        "resourceVersion": _text("ResourceVersion is the version of this object: to watch from, and to lock by. Read-only."),
        "generation": _number("Generation counts the changes of the desired state. Read-only."),
        "creationTimestamp": _moment("CreationTimestamp is when the object was created. Read-only."),
        "deletionTimestamp": _moment("DeletionTimestamp is since when the object is being deleted. Read-only."),
        "deletionGracePeriodSeconds": _number("How long the object may take to go. Read-only."),
        "labels": {**_LABELS, "description": "Labels organise and select objects."},
        "annotations": {**_LABELS, "description": "Annotations hold what tools want to remember. They are not queryable."},
        "finalizers": _texts(
            "Finalizers names who must let go before the object goes.", **MERGED, **{"x-kubernetes-list-type": "set"}
        ),
        "ownerReferences": {
            "type": "array",
            "description": "OwnerReferences lists the objects that this one depends on.",
            "items": reference(meta("OwnerReference")),
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["uid"],
            "x-kubernetes-patch-merge-key": "uid",
            **MERGED,
        },
        "managedFields": {
            "type": "array",
            "description": "ManagedFields says who has set which fields. Kept by the server.",
            "items": reference(meta("ManagedFieldsEntry")),
            **ATOMIC,
        },
        "selfLink": _text("SelfLink is not used any more."),
    },
)
_LIST_META = _object(
    "ListMeta describes metadata that synthetic resources must have, including lists and various status objects.",
    {
        "resourceVersion": _text("ResourceVersion is the version of the whole list: to watch from."),
        "continue": _text("Continue is the token for the next page; absent when there is none."),
        "remainingItemCount": _number("RemainingItemCount is how many objects follow after this page, where that is known."),
        "selfLink": _text("SelfLink is not used any more."),
    },
)
_CAUSE = _object(
    "StatusCause is one of several reasons of a failure.",
    {
        "reason": _text("A machine-readable description of the cause."),
        "message": _text("A human-readable description of the cause."),
        "field": _text("The field of the object that caused the error, by its path."),
    },
)
_DETAILS = _object(
    "StatusDetails says more about a failure; which fields are set depends on the reason.",
    {
        "name": _text("The name of the object."),
        "group": _text("The group of the resource."),
        "kind": _text("The resource, or the kind of the object."),
        "uid": _text("The UID of the object."),
        "causes": {"type": "array", "items": reference(meta("StatusCause")), "description": "Every broken rule.", **ATOMIC},
        "retryAfterSeconds": _number("When to try again.", 32),
    },
)
_STATUS = _object(
    "Status is a return value for calls that don't return other objects.",
    {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": described(meta("ListMeta"), "Standard list metadata."),
        "status": {**_text("Status of the operation."), "enum": ["Success", "Failure"]},
        "message": _text("A human-readable description of the status of this operation."),
        "reason": _text("A machine-readable description of why this operation failed."),
        "details": described(meta("StatusDetails"), "Extended data associated with the reason."),
        "code": _number("Suggested HTTP return code for this status.", 32),
    },
    **{"x-kubernetes-group-version-kind": [{"group": "", "version": "v1", "kind": "Status"}]},
)
_PRECONDITIONS = _object(
    "Preconditions must be fulfilled before a deletion is carried out.",
    {"uid": _text("The UID that the object must have."), "resourceVersion": _text("The version that it must have.")},
)
_DELETE_OPTIONS = _object(
    "DeleteOptions may be provided when deleting an API object.",
    {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "dryRun": _texts("All: nothing is deleted, the answer is as if it were.", **ATOMIC),
        "gracePeriodSeconds": _number("How long the object may take to go. No kind of this server uses it."),
        "orphanDependents": {"type": "boolean", "description": "Deprecated: use propagationPolicy."},
        "preconditions": described(meta("Preconditions"), "What must be true of the object."),
        "propagationPolicy": _text("Orphan, Background or Foreground."),
    },
)
_RESOURCE = _object(
    "APIResource names a resource, its kind, and what may be done with it.",
    {
        "name": _text("The plural name of the resource, or resource/subresource."),
        "singularName": _text("The singular name of the resource."),
        "namespaced": {"type": "boolean", "description": "Whether its objects live in namespaces."},
        "group": _text("The group of the kind, when it is another."),
        "version": _text("The version of the kind, when it is another."),
        "kind": _text("The kind of its objects."),
        "verbs": _texts("What may be done.", **ATOMIC),
        "shortNames": _texts("Short names for command lines.", **ATOMIC),
        "categories": _texts("Groups of resources for command lines.", **ATOMIC),
        "storageVersionHash": _text("Changes when objects are stored in another version."),
    },
    *("name", "singularName", "namespaced", "kind", "verbs"),
)
_RESOURCE_LIST = _object(
    "APIResourceList lists the resources of a group and version.",
    {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "groupVersion": _text("The group and version."),
        "resources": {"type": "array", "items": reference(meta("APIResource")), **ATOMIC},
    },
    *("groupVersion", "resources"),
)
_GROUP_VERSION = _object(
    "GroupVersionForDiscovery names a group and version.",
    {"groupVersion": _text("group/version"), "version": _text("The version alone.")},
    *("groupVersion", "version"),
)
_GROUP = _object(
    "APIGroup names a group, its versions, and which of them is preferred.",
    {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "name": _text("The name of the group."),
        "versions": {"type": "array", "items": reference(meta("GroupVersionForDiscovery")), **ATOMIC},
        "preferredVersion": described(meta("GroupVersionForDiscovery"), "The version that clients should use."),
        "serverAddressByClientCIDRs": {"type": "array", "items": {"type": "object"}, **ATOMIC},
    },
    *("name", "versions"),
)
_GROUP_LIST = _object(
    "APIGroupList lists the groups of the server.",
    {"apiVersion": API_VERSION, "kind": KIND, "groups": {"type": "array", "items": reference(meta("APIGroup")), **ATOMIC}},
    "groups",
)
_VERSIONS = _object(
    "APIVersions lists the versions of the legacy group.",
    {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "versions": _texts("The versions.", **ATOMIC),
        "serverAddressByClientCIDRs": {"type": "array", "items": {"type": "object"}, **ATOMIC},
    },
    "versions",
)

OBJECT_SCHEMAS: Mapping[str, Any] = {
    meta("ObjectMeta"): _OBJECT_META,
    meta("ListMeta"): _LIST_META,
    meta("OwnerReference"): _OWNER,
    meta("ManagedFieldsEntry"): _MANAGED,
    meta("FieldsV1"): {"description": "FieldsV1 is a set of fields, as a tree of their names.", "type": "object"},
    meta("Time"): {"description": "Time is an instant as RFC 3339 writes it.", "type": "string", "format": "date-time"},
    meta("Status"): _STATUS,
    meta("StatusDetails"): _DETAILS,
    meta("StatusCause"): _CAUSE,
    meta("DeleteOptions"): _DELETE_OPTIONS,
    meta("Preconditions"): _PRECONDITIONS,
    meta("Patch"): {"description": "Patch is the body of a PATCH request.", "type": "object"},
}
"""Schemas for the operations on objects."""

DISCOVERY_SCHEMAS: Mapping[str, Any] = {
    meta("APIResourceList"): _RESOURCE_LIST,
    meta("APIResource"): _RESOURCE,
    meta("APIGroup"): _GROUP,
    meta("APIGroupList"): _GROUP_LIST,
    meta("APIVersions"): _VERSIONS,
    meta("GroupVersionForDiscovery"): _GROUP_VERSION,
    **{meta(name): OBJECT_SCHEMAS[meta(name)] for name in ("Status", "StatusDetails", "StatusCause", "ListMeta")},
}
"""Schemas for the discovery documents."""

VERSION_INFO = "io.k8s.apimachinery.pkg.version.Info"
VERSION_SCHEMAS: Mapping[str, Any] = {
    VERSION_INFO: _object(
        "Info says which version this server speaks and is.",
        {
            name: _text(f"The {name} of the server.")
            for name in (
                *("major", "minor", "gitVersion", "gitCommit", "gitTreeState", "buildDate", "goVersion", "compiler"),
                "platform",
            )
        },
        *("major", "minor", "gitVersion"),
    ),
    **{meta(name): OBJECT_SCHEMAS[meta(name)] for name in ("Status", "StatusDetails", "StatusCause", "ListMeta")},
}


_FORMATS = {"micro-time": "date-time"}
"""Formats that only this server distinguishes, with the published format."""


def schema_name(resource: Resource, version: str) -> str:
    """`io.open-cluster-management.cluster.v1.ManagedCluster`, `io.k8s.api.coordination.v1.Lease`."""
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
    """Schemas of the kind, of its list if it can be listed, and of the kinds of its subresources."""
    name, kind = schema_name(resource, version), group_version_kind(resource, version)
    schema = next((other.schema for other in resource.versions if other.name == version), resource.schema)
    content = _published(schema, "", resource.merge_keys)
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
    """The schema with merge keys of its lists, and with published formats."""
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
