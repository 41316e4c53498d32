"""Shorthands for the declarations of Kubernetes' own kinds: parts of schemas, and their common settings."""

from functools import partial
from typing import Any

from machinery.apiserver.resource import Resource

Schema = dict[str, Any]

TEXT: Schema = {"type": "string"}
BOOLEAN: Schema = {"type": "boolean"}
INT32: Schema = {"type": "integer", "format": "int32"}
BYTES: Schema = {"type": "string", "format": "byte"}
TIME: Schema = {"type": "string", "format": "date-time", "nullable": True}
MICRO_TIME: Schema = {"type": "string", "format": "micro-time", "nullable": True}
OPEN: Schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}


def record(description: str = "", needed: tuple[str, ...] = (), /, **properties: Schema) -> Schema:
    """An object with these fields; those in `needed` are required."""
    described = {"description": description} if description else {}
    required = {"required": list(needed)} if needed else {}
    return {"type": "object", **described, **required, "properties": properties}


def listing(items: Schema, *keys: str, kind: str = "") -> Schema:
    """A list; with `keys` a map list. `kind`: another x-kubernetes-list-type."""
    typed: Schema = {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": list(keys)} if keys else {}
    return {"type": "array", "items": items, **typed, **({"x-kubernetes-list-type": kind} if kind else {})}


def mapping(values: Schema) -> Schema:
    """An object with any names."""
    return {"type": "object", "additionalProperties": values}


TEXTS: Schema = listing(TEXT)
EXTRA: Schema = mapping(TEXTS)
"""Further attributes of a user."""

builtin = partial(Resource, version="v1", custom=False, unconditional_update=True)
"""A kind of Kubernetes itself."""
