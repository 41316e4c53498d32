"""Parts of schemas that several kinds share."""

from collections.abc import Callable
from typing import Any

from hub.api.meta import document as doc
from machinery.apiserver.resource import Column, TableRow
from machinery.meta.objects import Document

Schema = dict[str, Any]

TEXT: Schema = {"type": "string"}
NAME: Schema = {"type": "string", "minLength": 1}
MOMENT: Schema = {"type": "string", "format": "date-time"}
OPEN: Schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
DNS_LABEL: Schema = {**TEXT, "maxLength": 63, "pattern": "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"}
_PREFIX = r"([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?"
QUALIFIED_NAME = rf"^{_PREFIX}(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])$"
"""Pattern of a qualified name, as of a condition's type."""
CONDITION: Schema = {
    "type": "object",
    "required": ["lastTransitionTime", "message", "reason", "status", "type"],
    "properties": {
        "lastTransitionTime": MOMENT,
        "message": {**TEXT, "maxLength": 32768},
        "observedGeneration": {"type": "integer", "format": "int64", "minimum": 0},
        "reason": {**TEXT, "maxLength": 1024, "minLength": 1, "pattern": "^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$"},
        "status": {**TEXT, "enum": ["True", "False", "Unknown"]},
        "type": {**TEXT, "maxLength": 316, "pattern": QUALIFIED_NAME},
    },
}


def record(about: str = "", needed: tuple[str, ...] = (), /, **properties: Schema) -> Schema:
    """Returns an object schema with these fields; those in `needed` are required."""
    told = {"description": about} if about else {}
    required = {"required": list(needed)} if needed else {}
    return {"type": "object", **told, **required, "properties": properties}


def described(schema: Schema, about: str) -> Schema:
    """Returns the schema with a description."""
    return {**schema, "description": about}


def listing(items: Schema, *keys: str, description: str = "") -> Schema:
    """Returns a list schema; with `keys` a map list with these keys."""
    told = {"description": description} if description else {}
    known = {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": list(keys)} if keys else {}
    return {"type": "array", **told, **known, "items": items}


CONDITIONS_OF_TYPE: Schema = listing(CONDITION, "type")
CONDITIONS: Schema = listing(CONDITION, "type", description="conditions describe the state of the object.")


def cell(*path: str, absent: Any = None) -> Callable[[TableRow], Any]:
    """Returns a table cell with the value of a field; `absent` without one."""
    return lambda row: doc.mapping(row.document, *path[:-1]).get(path[-1], absent)


def condition_status(document: Document, kind: str) -> str | None:
    """Returns the status of a condition; None: there is no such condition."""
    return next((entry.get("status") for entry in doc.conditions(document) if entry.get("type") == kind), None)


def condition_column(name: str, kind: str) -> Column:
    """Returns a column with the status of a condition."""

    def cell(row: TableRow) -> str | None:
        return condition_status(row.document, kind)

    path = f'.status.conditions[?(@.type=="{kind}")].status'
    return Column(name, cell, description=f"Custom resource definition column (in JSONPath format): {path}")
