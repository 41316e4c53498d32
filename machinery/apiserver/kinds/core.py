"""Kinds that hubs and hollow clusters serve: namespaces, config maps, secrets, service accounts, and leases."""

import base64
from collections.abc import Iterator, Mapping
from datetime import datetime

from machinery.apiserver.kinds.declaration import KUBERNETES, builtin
from machinery.apiserver.resource import ApiGroup
from machinery.apiserver.write.metadata import dns_label
from machinery.errors import Cause, invalid_value, too_long
from machinery.meta.objects import Document

NAMESPACE_FINALIZER = "kubernetes"
LARGEST = 1024 * 1024
"""Largest content of a secret or config map in bytes."""
_MAX_KEY = 253
_KEY_LETTERS = frozenset("-._abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789")


def _complete_namespace(new: Document) -> Document:
    metadata = new["metadata"]
    labels = {**(metadata.get("labels") or {}), "kubernetes.io/metadata.name": metadata.get("name", "")}
    return {**new, "metadata": {**metadata, "labels": labels}}


_NEW_NAMESPACE = {"spec": {"finalizers": [NAMESPACE_FINALIZER]}, "status": {"phase": "Active"}}


def _terminating_namespace(document: Document, _now: datetime) -> Document:
    metadata = {name: value for name, value in document["metadata"].items() if name != "deletionGracePeriodSeconds"}
    return {**document, "metadata": metadata, "status": {**document.get("status", {}), "phase": "Terminating"}}


NAMESPACE = builtin(
    "namespaces",
    name_rule=dns_label,
    complete=_complete_namespace,
    fixed=("spec",),
    prepare_create=lambda new, _actor, _now: {**new, **_NEW_NAMESPACE},
    prepare_update=lambda new, old, _actor, _now: {**new, "spec": old.get("spec", {})},
    prepare_delete=_terminating_namespace,
    held=lambda document: bool(document.get("spec", {}).get("finalizers")),
    selectable=lambda document: {"status.phase": document.get("status", {}).get("phase", "")},
)


def _config_map_violations(new: Document, old: Document | None) -> Iterator[Cause]:
    yield from (*_key_violations(new, "data"), *_key_violations(new, "binaryData"), *_immutable_violations(new, old))
    size = sum(len(text.encode()) for text in new.get("data", {}).values()) + _encoded_size(new.get("binaryData", {}))
    if size > LARGEST:
        yield too_long("", LARGEST)


def _encoded_size(values: Mapping[str, str]) -> int:
    """Return the approximate size in bytes of base64 values after decoding."""
    return sum(len(text) * 3 // 4 for text in values.values())


def _key_violations(new: Document, part: str) -> Iterator[Cause]:
    rule = (
        "a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. 'key.name',  or 'KEY_NAME',  or "
        "'key-name', regex used for validation is '[-._a-zA-Z0-9]+')"
    )
    for key in new.get(part) or {}:
        if key in ("", ".", "..") or len(key) > _MAX_KEY or set(key) - _KEY_LETTERS:
            yield invalid_value(f"{part}[{key}]", key, rule)


def _immutable_violations(new: Document, old: Document | None) -> Iterator[Cause]:
    for part in ("immutable", "data", "binaryData", "stringData"):
        if old is not None and old.get("immutable") and new.get(part) != old.get(part):
            yield Cause("FieldValueForbidden", "Forbidden: field is immutable when `immutable` is set", part)


CONFIG_MAP = builtin(
    "configmaps",
    {"Data": lambda row: len({**row.document.get("data", {}), **row.document.get("binaryData", {})})},
    validate=_config_map_violations,
)

SERVICE_ACCOUNT = builtin("serviceaccounts", {"Secrets": lambda row: len(row.document.get("secrets", []))})


def _complete_secret(new: Document) -> Document:
    kept = {name: part for name, part in new.items() if name != "stringData"}
    if texts := new.get("stringData"):
        data = {key: base64.b64encode(str(text).encode()).decode() for key, text in texts.items()}
        kept["data"] = {**(new.get("data") or {}), **data}
    return {**kept, "type": kept.get("type") or "Opaque"}


def _secret_violations(new: Document, old: Document | None) -> Iterator[Cause]:
    yield from (*_key_violations(new, "data"), *_immutable_violations(new, old))
    if _encoded_size(new.get("data", {})) > LARGEST:
        yield too_long("data", LARGEST)
    if old is not None and new.get("type") != old.get("type"):
        yield invalid_value("type", new.get("type"), "field is immutable")


SECRET = builtin(
    "secrets",
    {"Data": lambda row: len(row.document.get("data", {}))},
    complete=_complete_secret,
    validate=_secret_violations,
    selectable=lambda document: {"type": document.get("type", "")},
)


def _lease_violations(new: Document, _old: Document | None) -> Iterator[Cause]:
    spec = new.get("spec", {})
    if spec.get("leaseDurationSeconds") is not None and spec["leaseDurationSeconds"] <= 0:
        yield invalid_value("spec.leaseDurationSeconds", spec["leaseDurationSeconds"], "must be greater than 0")
    if spec.get("leaseTransitions") is not None and spec["leaseTransitions"] < 0:
        yield invalid_value("spec.leaseTransitions", spec["leaseTransitions"], "must be greater than or equal to 0")


LEASE = KUBERNETES.resource("leases.coordination.k8s.io", custom=False, validate=_lease_violations)

COORDINATION = ApiGroup("coordination.k8s.io", (LEASE,))
