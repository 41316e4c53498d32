"""Rules of `metadata` for every kind: names, labels, annotations, finalizers, and the fields that a client may not set."""

import re
import secrets
from collections.abc import Iterator, Mapping
from typing import Any

from machinery.apiserver.http.status_errors import forbidden, invalid_type, invalid_value, required
from machinery.apiserver.resource import Resource
from machinery.apiserver.storage import Document
from machinery.errors import Cause
from machinery.meta.selectors import valid_label_key, valid_label_value

ALPHABET = "bcdfghjklmnpqrstvwxz2456789"
SUFFIX_LENGTH = 5
MAX_SUBDOMAIN, MAX_LABEL, MAX_ANNOTATIONS = 253, 63, 256 * 1024

_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_SUBDOMAIN = rf"{_LABEL}(\.{_LABEL})*"
SUBDOMAIN_RULE = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end "
    f"with an alphanumeric character (e.g. 'example.com', regex used for validation is '{_SUBDOMAIN}')"
)
LABEL_RULE = (
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an "
    f"alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '{_LABEL}')"
)
LABEL_KEY_RULE = "a qualified name is up to 63 letters, digits, '-', '_' or '.', with an optional DNS subdomain and '/' before"
LABEL_VALUE_RULE = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end "
    "with an alphanumeric character"
)
KEPT = ("uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "generation", "generateName")
SETTABLE = ("name", "generateName", "namespace", "labels", "annotations", "finalizers", "ownerReferences")


def subdomain(name: str) -> str | None:
    """Why `name` is not a DNS subdomain; None: it is one."""
    return None if len(name) <= MAX_SUBDOMAIN and re.fullmatch(_SUBDOMAIN, name) else SUBDOMAIN_RULE


def dns_label(name: str) -> str | None:
    """Why `name` is not a DNS label; None: it is one."""
    return None if len(name) <= MAX_LABEL and re.fullmatch(_LABEL, name) else LABEL_RULE


def generated(prefix: str) -> str:
    """Generate a name from `metadata.generateName`."""
    return prefix[: MAX_LABEL - SUFFIX_LENGTH] + "".join(secrets.choice(ALPHABET) for _ in range(SUFFIX_LENGTH))


def of_new(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """The metadata fields that a creator may set; the server sets the others."""
    return {name: metadata[name] for name in SETTABLE if metadata.get(name) not in (None, "", {}, [])}


def of_changed(new: Mapping[str, Any], old: Mapping[str, Any]) -> dict[str, Any]:
    """Metadata of an update: fields that a writer may change come from the new object, the others from the old one."""
    kept = {name: old[name] for name in KEPT if name in old}
    changed = {name: new[name] for name in SETTABLE if name != "generateName" and new.get(name) not in (None, "", {}, [])}
    return {**changed, **kept, "resourceVersion": old["resourceVersion"]}


def violations(resource: Resource, new: Document, old: Document | None) -> Iterator[Cause]:
    metadata = new.get("metadata", {})
    if old is None:
        yield from _name_violations(resource, metadata)
    yield from _map_violations(metadata, "labels")
    yield from _map_violations(metadata, "annotations")
    yield from _finalizer_violations(metadata, old)


def _name_violations(resource: Resource, metadata: Mapping[str, Any]) -> Iterator[Cause]:
    name = metadata.get("name", "")
    if not name:
        yield required("metadata.name", "name or generateName is required")
    elif not isinstance(name, str):
        yield invalid_type("metadata.name", "", "metadata.name in body must be of type string")
    elif why := (resource.name_rule or subdomain)(name):
        yield invalid_value("metadata.name", name, why)


def _map_violations(metadata: Mapping[str, Any], part: str) -> Iterator[Cause]:
    field, entries = f"metadata.{part}", metadata.get(part) or {}
    if not isinstance(entries, dict) or not all(isinstance(value, str) for value in entries.values()):
        yield invalid_type(field, "object", f"{field} in body must be a map of strings")
        return
    for key, value in entries.items():
        if not valid_label_key(key if part == "labels" else key.lower()):
            yield invalid_value(field, key, LABEL_KEY_RULE)
        if part == "labels" and not valid_label_value(value):
            yield invalid_value(field, value, LABEL_VALUE_RULE)
    if part == "annotations" and sum(len(key) + len(value) for key, value in entries.items()) > MAX_ANNOTATIONS:
        yield Cause("FieldValueTooLong", f"Too long: may not be more than {MAX_ANNOTATIONS} bytes", field)


def _finalizer_violations(metadata: Mapping[str, Any], old: Document | None) -> Iterator[Cause]:
    field, finalizers = "metadata.finalizers", metadata.get("finalizers") or []
    if not isinstance(finalizers, list) or not all(isinstance(name, str) for name in finalizers):
        yield invalid_type(field, "array", f"{field} in body must be a list of strings")
        return
    yield from (invalid_value(field, name, LABEL_KEY_RULE) for name in finalizers if not valid_label_key(name))
    before = old.get("metadata", {}) if old is not None else {}
    if "deletionTimestamp" not in before:
        return
    there = set(before.get("finalizers") or ())
    if added := [name for name in finalizers if name not in there]:
        shown = ", ".join(f'"{name}"' for name in added)
        why = f"no new finalizers can be added if the object is being deleted, found new finalizers []string{{{shown}}}"
        yield forbidden(field, why)
