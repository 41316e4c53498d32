"""Secret and ConfigMap: values by key."""

import base64
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from hollow.kinds.cells import part
from machinery.apiserver.refusals import forbidden, invalid_value, too_long
from machinery.apiserver.resource import Column, Resource, Row
from machinery.apiserver.storage import Actor, Document
from machinery.apiserver.tables import AGE
from machinery.errors import Cause

LIMIT = 1024 * 1024
_KEY = re.compile(r"[-._a-zA-Z0-9]+")
_KEY_RULE = (
    "a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. 'key.name',  or 'KEY_NAME',  "
    "or 'key-name', regex used for validation is '[-._a-zA-Z0-9]+')"
)
_IMMUTABLE = "field is immutable when `immutable` is set"
_TEXTS = {"type": "object", "additionalProperties": {"type": "string"}, "nullable": True}
_BYTES = {"type": "object", "additionalProperties": {"type": "string", "format": "byte"}, "nullable": True}


def _secret_made(document: Document, _actor: Actor, _now: datetime) -> Document:
    """`stringData` is for writing only: it becomes part of `data`."""
    plain = document.get("stringData") or {}
    encoded = {key: base64.b64encode(str(value).encode()).decode() for key, value in plain.items()}
    kept = {name: value for name, value in document.items() if name != "stringData"}
    if encoded:
        kept["data"] = {**(document.get("data") or {}), **encoded}
    return {**kept, "type": document.get("type") or "Opaque"}


def _secret_changed(new: Document, _old: Document, actor: Actor, now: datetime) -> Document:
    return _secret_made(new, actor, now)


def _check_secret(new: Document, old: Document | None) -> Sequence[Cause]:
    causes = list(_check_keyed(new, old, encoded=("data",)))
    if old is not None and new.get("type") != old.get("type"):
        causes.append(invalid_value("type", new.get("type"), "field is immutable"))
    return causes


def _check_config_map(new: Document, old: Document | None) -> Sequence[Cause]:
    return _check_keyed(new, old, encoded=("binaryData",), plain=("data",))


def _check_keyed(
    new: Document, old: Document | None, *, encoded: tuple[str, ...], plain: tuple[str, ...] = ()
) -> Sequence[Cause]:
    parts = encoded + plain
    causes = [
        invalid_value(f"{name}[{key}]", key, _KEY_RULE)
        for name in parts
        for key in _mapping(new, name)
        if not _KEY.fullmatch(key) or key in (".", "..")
    ]
    size = sum(len(value) * 3 // 4 for name in encoded for value in _mapping(new, name).values())
    if size + sum(len(value.encode()) for name in plain for value in _mapping(new, name).values()) > LIMIT:
        causes.append(too_long(parts[-1], LIMIT))
    if old is not None and old.get("immutable"):
        causes += [forbidden(name, _IMMUTABLE) for name in parts if _mapping(new, name) != _mapping(old, name)]
        if not new.get("immutable"):
            causes.append(forbidden("immutable", _IMMUTABLE))
    return causes


def _count(row: Row) -> int:
    return sum(len(_mapping(row.document, name)) for name in ("data", "binaryData"))


def _mapping(document: Document, name: str) -> Mapping[str, Any]:
    return part(document, name) or {}


SECRET = Resource(
    group="",
    version="v1",
    name="secrets",
    kind="Secret",
    namespaced=True,
    schema={
        "type": "object",
        "properties": {
            "data": _BYTES,
            "stringData": _TEXTS,
            "type": {"type": "string"},
            "immutable": {"type": "boolean", "nullable": True},
        },
    },
    prepare_create=_secret_made,
    prepare_update=_secret_changed,
    validate=_check_secret,
    columns=(
        Column("Type", lambda row: str(row.document.get("type") or ""), description="The type of the secret."),
        Column("Data", _count, description="How many keys it holds."),
        AGE,
    ),
    selectable=lambda document: {"type": str(document.get("type") or "")},
    selectable_names=("type",),
    custom=False,
)

CONFIG_MAP = Resource(
    group="",
    version="v1",
    name="configmaps",
    kind="ConfigMap",
    short_names=("cm",),
    namespaced=True,
    schema={
        "type": "object",
        "properties": {"data": _TEXTS, "binaryData": _BYTES, "immutable": {"type": "boolean", "nullable": True}},
    },
    validate=_check_config_map,
    columns=(Column("Data", _count, description="How many keys it holds."), AGE),
    custom=False,
)
