"""Parts of schemas and columns that several kinds share."""

from collections.abc import Callable
from typing import Any

from hub.api.meta import document as doc
from machinery.apiserver.resource import Column, TableRow, age_of

Schema = dict[str, Any]

TEXT: Schema = {"type": "string"}
NAME: Schema = {"type": "string", "minLength": 1}
FLAG: Schema = {"type": "boolean"}
INT32: Schema = {"type": "integer", "format": "int32"}
INT64: Schema = {"type": "integer", "format": "int64"}
MOMENT: Schema = {"type": "string", "format": "date-time"}
OPEN: Schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
DNS_LABEL: Schema = {**TEXT, "maxLength": 63, "pattern": "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"}
_PREFIX = r"([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?"
QUALIFIED_NAME = rf"^{_PREFIX}(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])$"
"""Pattern of a qualified name, for example of a condition's type."""
CONDITION: Schema = {
    "type": "object",
    "required": ["lastTransitionTime", "message", "reason", "status", "type"],
    "properties": {
        "lastTransitionTime": {**MOMENT, "description": "When the status last changed."},
        "message": {**TEXT, "maxLength": 32768, "description": "Details for people."},
        "observedGeneration": {**INT64, "minimum": 0, "description": "metadata.generation that the condition is about."},
        "reason": {
            **TEXT,
            "maxLength": 1024,
            "minLength": 1,
            "pattern": "^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$",
            "description": "The cause in one word, for programs.",
        },
        "status": {**TEXT, "enum": ["True", "False", "Unknown"], "description": "Whether the condition holds."},
        "type": {**TEXT, "maxLength": 316, "pattern": QUALIFIED_NAME, "description": "Name of the condition."},
    },
}


def record(about: str = "", needed: tuple[str, ...] = (), /, **properties: Schema) -> Schema:
    """Returns an object schema with these fields; those in `needed` are required."""
    text = {"description": about} if about else {}
    required = {"required": list(needed)} if needed else {}
    return {"type": "object", **text, **required, "properties": properties}


def described(schema: Schema, about: str) -> Schema:
    """Returns the schema with a description."""
    return {**schema, "description": about}


def listing(items: Schema, *keys: str, description: str = "") -> Schema:
    """Returns a list schema; with `keys` a map list with these keys."""
    text = {"description": description} if description else {}
    known = {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": list(keys)} if keys else {}
    return {"type": "array", **text, **known, "items": items}


TEXTS: Schema = listing(TEXT)
TEXT_MAP: Schema = {"type": "object", "additionalProperties": TEXT}
CONDITIONS: Schema = listing(CONDITION, "type", description="conditions describe the state of the object.")
LABEL_EXPRESSION: Schema = record(
    "A requirement on one label.",
    ("key", "operator"),
    key=described(TEXT, "The label's key."),
    operator=described(TEXT, "In, NotIn, Exists or DoesNotExist."),
    values={**described(TEXTS, "Values for In and NotIn."), "x-kubernetes-list-type": "atomic"},
)
MATCH_LABELS: Schema = described(TEXT_MAP, "Labels that an object must have.")
OBSERVED_GENERATION: Schema = described(INT64, "metadata.generation that the status is about.")


def cell(*path: str, absent: Any = None) -> Callable[[TableRow], Any]:
    """Returns a table cell with the value of a field; `absent` without one."""
    return lambda row: doc.mapping(row.document, *path[:-1]).get(path[-1], absent)


def words(*path: str, separator: str = ",") -> Callable[[TableRow], str]:
    """Returns a table cell with the entries of a list."""
    return lambda row: separator.join(map(str, doc.sequence(row.document, *path)))


def age_cell(*path: str, absent: str = "<unknown>") -> Callable[[TableRow], str]:
    """Returns a table cell with the age of an instant; `absent` without one."""
    return lambda row: age_of(moment, row.now) if (moment := cell(*path)(row)) else absent


def condition_cell(kind: str, part: str = "status") -> Callable[[TableRow], Any]:
    """Returns a table cell with a part of a condition; None without the condition."""
    return lambda row: next((each.get(part) for each in doc.conditions(row.document) if each.get("type") == kind), None)


def crd_path(path: str) -> str:
    """Returns the description that Kubernetes gives to a column of a custom resource definition."""
    return f"Custom resource definition column (in JSONPath format): {path}"


def condition_column(name: str, kind: str) -> Column:
    """Returns a column with the status of a condition."""
    return Column(name, condition_cell(kind), description=crd_path(f'.status.conditions[?(@.type=="{kind}")].status'))
