"""Kinds of the legacy core group for hubs and hollow clusters: namespaces, config maps, secrets, nodes, service accounts.

Events have their own module.
"""

import base64
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from machinery.apiserver.http.status_errors import invalid_value, too_long
from machinery.apiserver.read.tables import AGE
from machinery.apiserver.resource import STATUS, Column, Resource, TableRow
from machinery.apiserver.storage import Actor, Document
from machinery.apiserver.write.metadata import dns_label
from machinery.errors import Cause

OPEN: dict[str, Any] = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
TEXT: dict[str, Any] = {"type": "string"}
TEXTS: dict[str, Any] = {"type": "object", "additionalProperties": TEXT}
BYTES: dict[str, Any] = {"type": "object", "additionalProperties": {"type": "string", "format": "byte", "nullable": True}}
SET: dict[str, Any] = {"type": "array", "items": TEXT, "x-kubernetes-list-type": "set"}
NAMESPACE_FINALIZER = "kubernetes"
LARGEST = 1024 * 1024
"""Largest content of a secret or config map in bytes."""
_MAX_KEY = 253
_KEY_LETTERS = frozenset("-._abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789")


def listed_by(key: str) -> dict[str, Any]:
    """Schema of a list map of open objects with one key field."""
    items = {**OPEN, "properties": {key: TEXT}}
    return {"type": "array", "items": items, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": [key]}


def _complete_namespace(new: Document) -> Document:
    metadata = new["metadata"]
    labels = {**(metadata.get("labels") or {}), "kubernetes.io/metadata.name": metadata.get("name", "")}
    return {**new, "metadata": {**metadata, "labels": labels}}


def _new_namespace(new: Document, _actor: Actor, _now: datetime) -> Document:
    return {**new, "spec": {"finalizers": [NAMESPACE_FINALIZER]}, "status": {"phase": "Active"}}


def _changed_namespace(new: Document, old: Document, _actor: Actor, _now: datetime) -> Document:
    return {**new, "spec": old.get("spec", {})}


def _terminating_namespace(document: Document, _now: datetime) -> Document:
    metadata = {name: value for name, value in document["metadata"].items() if name != "deletionGracePeriodSeconds"}
    return {**document, "metadata": metadata, "status": {**document.get("status", {}), "phase": "Terminating"}}


NAMESPACE = Resource(
    group="",
    version="v1",
    name="namespaces",
    kind="Namespace",
    short_names=("ns",),
    custom=False,
    unconditional_update=True,
    verbs=("create", "delete", "get", "list", "patch", "update", "watch"),
    name_rule=dns_label,
    schema={
        "description": "Namespace provides a scope for Names. Use of multiple namespaces is optional.",
        "type": "object",
        "properties": {
            "spec": {"type": "object", "properties": {"finalizers": {"type": "array", "items": TEXT}}},
            "status": {"type": "object", "properties": {"phase": TEXT, "conditions": listed_by("type")}},
        },
    },
    subresources=(STATUS,),
    complete=_complete_namespace,
    fixed=("spec",),
    prepare_create=_new_namespace,
    prepare_update=_changed_namespace,
    prepare_delete=_terminating_namespace,
    held=lambda document: bool(document.get("spec", {}).get("finalizers")),
    selectable=lambda document: {"status.phase": document.get("status", {}).get("phase", "")},
    selectable_names=("status.phase",),
    columns=(
        Column(
            "Status", lambda row: row.document.get("status", {}).get("phase", ""), description="The status of the namespace"
        ),
        AGE,
    ),
)


def _config_map_violations(new: Document, old: Document | None) -> list[Cause]:
    causes = [*key_violations(new, "data"), *key_violations(new, "binaryData"), *immutable_violations(new, old)]
    size = sum(len(text.encode()) for text in new.get("data", {}).values()) + encoded_size(new.get("binaryData", {}))
    return [*causes, *((too_long("", LARGEST),) if size > LARGEST else ())]


def encoded_size(values: Mapping[str, str]) -> int:
    """Approximate number of bytes of base64 values."""
    return sum(len(text) * 3 // 4 for text in values.values())


def key_violations(new: Document, part: str) -> list[Cause]:
    """Violations of the key syntax of config maps and secrets."""
    rule = (
        "a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. 'key.name',  or 'KEY_NAME',  or "
        "'key-name', regex used for validation is '[-._a-zA-Z0-9]+')"
    )
    keys = new.get(part) or {}
    wrong = [key for key in keys if key in ("", ".", "..") or len(key) > _MAX_KEY or set(key) - _KEY_LETTERS]
    return [invalid_value(f"{part}[{key}]", key, rule) for key in wrong]


def immutable_violations(new: Document, old: Document | None) -> list[Cause]:
    """Forbidden changes of an object with `immutable`."""
    if old is None or not old.get("immutable"):
        return []
    parts = [part for part in ("immutable", "data", "binaryData", "stringData") if new.get(part) != old.get(part)]
    return [Cause("FieldValueForbidden", "Forbidden: field is immutable when `immutable` is set", part) for part in parts]


CONFIG_MAP = Resource(
    group="",
    version="v1",
    name="configmaps",
    kind="ConfigMap",
    short_names=("cm",),
    namespaced=True,
    custom=False,
    unconditional_update=True,
    schema={
        "description": "ConfigMap holds configuration data for pods to consume.",
        "type": "object",
        "properties": {"data": TEXTS, "binaryData": BYTES, "immutable": {"type": "boolean"}},
    },
    validate=_config_map_violations,
    columns=(
        Column("Data", lambda row: len({**row.document.get("data", {}), **row.document.get("binaryData", {})}), type="integer"),
        AGE,
    ),
)

SERVICE_ACCOUNT = Resource(
    group="",
    version="v1",
    name="serviceaccounts",
    kind="ServiceAccount",
    short_names=("sa",),
    namespaced=True,
    custom=False,
    unconditional_update=True,
    schema={
        "description": "ServiceAccount binds together a name and a set of secrets.",
        "type": "object",
        "properties": {
            "automountServiceAccountToken": {"type": "boolean"},
            "imagePullSecrets": {"type": "array", "items": OPEN},
            "secrets": listed_by("name"),
        },
    },
    columns=(Column("Secrets", lambda row: len(row.document.get("secrets", [])), type="integer"), AGE),
)


def _node_status(row: TableRow) -> str:
    conditions = row.document.get("status", {}).get("conditions", [])
    ready = next((condition.get("status") for condition in conditions if condition.get("type") == "Ready"), None)
    shown = {"True": "Ready", None: "Unknown"}.get(ready, "NotReady")
    return f"{shown},SchedulingDisabled" if row.document.get("spec", {}).get("unschedulable") else shown


def _node_roles(row: TableRow) -> str:
    prefix = "node-role.kubernetes.io/"
    roles = [label.removeprefix(prefix) for label in row.document["metadata"].get("labels", {}) if label.startswith(prefix)]
    return ",".join(sorted(roles)) or "<none>"


NODE = Resource(
    group="",
    version="v1",
    name="nodes",
    kind="Node",
    short_names=("no",),
    custom=False,
    unconditional_update=True,
    schema={
        "description": "Node is a worker node in Kubernetes.",
        "type": "object",
        "properties": {
            "spec": {**OPEN, "description": "Its desired state.", "properties": {"podCIDRs": SET}},
            "status": {
                **OPEN,
                "description": "Its state.",
                "properties": {"addresses": listed_by("type"), "conditions": listed_by("type")},
            },
        },
    },
    subresources=(STATUS,),
    selectable=lambda document: {"spec.unschedulable": str(document.get("spec", {}).get("unschedulable", False)).lower()},
    selectable_names=("spec.unschedulable",),
    columns=(
        Column("Status", _node_status, description="The status of the node"),
        Column("Roles", _node_roles, description="The roles of the node"),
        AGE,
        Column("Version", lambda row: row.document.get("status", {}).get("nodeInfo", {}).get("kubeletVersion", "")),
    ),
)


OPAQUE = "Opaque"


def _folded(new: Document) -> Document:
    """The object with `stringData` merged into `data`."""
    kept = {name: part for name, part in new.items() if name != "stringData"}
    texts = new.get("stringData") or {}
    if not texts:
        return kept
    data = {key: base64.b64encode(str(text).encode()).decode() for key, text in texts.items()}
    return {**kept, "data": {**(new.get("data") or {}), **data}}


def _complete(new: Document) -> Document:
    folded = _folded(new)
    return {**folded, "type": folded.get("type") or OPAQUE}


def _violations(new: Document, old: Document | None) -> list[Cause]:
    causes = [*key_violations(new, "data"), *immutable_violations(new, old)]
    if encoded_size(new.get("data", {})) > LARGEST:
        causes.append(too_long("data", LARGEST))
    if old is not None and new.get("type") != old.get("type"):
        causes.append(invalid_value("type", new.get("type"), "field is immutable"))
    return causes


SECRET = Resource(
    group="",
    version="v1",
    name="secrets",
    kind="Secret",
    namespaced=True,
    custom=False,
    unconditional_update=True,
    schema={
        "description": "Secret holds secret data of a certain type.",
        "type": "object",
        "properties": {"data": BYTES, "stringData": TEXTS, "type": TEXT, "immutable": {"type": "boolean"}},
    },
    complete=_complete,
    validate=_violations,
    selectable=lambda document: {"type": document.get("type", "")},
    selectable_names=("type",),
    columns=(
        Column("Type", lambda row: row.document.get("type", "")),
        Column("Data", lambda row: len(row.document.get("data", {})), type="integer"),
        AGE,
    ),
)
