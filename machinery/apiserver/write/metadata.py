"""Metadata of stored objects: rules for all kinds, and the field ownership (managedFields) of a write.

A create owns the fields that it sends, an update the fields that it changes, an apply the fields that it contains. As in
Kubernetes, fields that preparation and admission add have no owner, and an object without managedFields gets none before its
first apply.
"""

import re
import secrets
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from machinery.apiserver.http.status_errors import conflict_error
from machinery.apiserver.resource import Resource, ServedVersion
from machinery.errors import BadRequestError, Cause, forbidden, invalid_type, invalid_value, required
from machinery.meta.managedfields import configurations, ownership as held
from machinery.meta.managedfields.applying import apply, field_conflict_error
from machinery.meta.managedfields.comparing import compare
from machinery.meta.managedfields.fieldset import Fields, common, field, minus, of_paths
from machinery.meta.managedfields.ownership import (
    NOBODYS,
    FieldWriter,
    Holdings,
    InVersion,
    Versions,
    applier,
    comparisons,
    current,
    updater,
)
from machinery.meta.managedfields.structure import FieldForm, Structure
from machinery.meta.objects import Document
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
SERVER_FIELDS = ("uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "generation", "generateName")
SETTABLE = ("name", "generateName", "namespace", "labels", "annotations", "finalizers", "ownerReferences")


def subdomain_error(name: str) -> str | None:
    """Return why `name` is not a DNS subdomain; None if it is one."""
    return None if len(name) <= MAX_SUBDOMAIN and re.fullmatch(_SUBDOMAIN, name) else SUBDOMAIN_RULE


def dns_label(name: str) -> str | None:
    """Return why `name` is not a DNS label; None if it is one."""
    return None if len(name) <= MAX_LABEL and re.fullmatch(_LABEL, name) else LABEL_RULE


def generated(prefix: str) -> str:
    """Return a name: `prefix` (the value of `metadata.generateName`), shortened if needed, and a random suffix."""
    return prefix[: MAX_LABEL - SUFFIX_LENGTH] + "".join(secrets.choice(ALPHABET) for _ in range(SUFFIX_LENGTH))


def of_new(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metadata fields that a creator may set. The server sets the other fields."""
    return {name: metadata[name] for name in SETTABLE if metadata.get(name) not in (None, "", {}, [])}


def of_changed(new: Mapping[str, Any], old: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metadata of an update: the old metadata, with the new values of fields that a writer may change."""
    kept = {name: old[name] for name in SERVER_FIELDS if name in old}
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
    elif why := (resource.name_rule or subdomain_error)(name):
        yield invalid_value("metadata.name", name, why)


def _map_violations(metadata: Mapping[str, Any], part: str) -> Iterator[Cause]:
    field, entries = f"metadata.{part}", metadata.get(part, {})
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
    field, finalizers = "metadata.finalizers", metadata.get("finalizers", [])
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


BEFORE_FIRST_APPLY = "before-first-apply"
"""Name of the field manager that owns all fields of an object without managedFields from its first apply."""


class ServedVersions(Versions):
    """The versions of a resource. Conversions between two versions go through the stored version."""

    def __init__(self, resource: Resource) -> None:
        self._resource = resource

    def structure(self, api_version: str) -> Structure | None:
        return self._resource.structures.get(api_version)

    def converted(self, document: Document, api_version: str) -> Document:
        given = str(document.get("apiVersion"))
        if given == api_version:
            return document
        stored = document if (version := self._version(given)) is None else version.to_stored(document)
        target = self._version(api_version)
        shown = stored if target is None else target.from_stored(stored)
        return {**shown, "apiVersion": api_version}

    def _version(self, api_version: str) -> ServedVersion | None:
        """Return the version; None if it is the stored version."""
        return self._resource.served_versions.get(api_version.rpartition("/")[2])


@dataclass(frozen=True, slots=True)
class FieldOwnership:
    """Computes field owners for one request: manager, version, subresource and time of the write."""

    resource: Resource
    manager: str
    api_version: str
    subresource: str
    time: str

    def of_new(self, sent: Document, new: Document) -> Holdings:
        """Return the owners of a new object's fields. The creator owns all fields that it sent and that are stored."""
        return self._updated(sent, {}, new, {})

    def of_changed(self, sent: Document, old: Document, new: Document) -> Holdings:
        """Return the owners after an update or patch. The writer owns changed fields; removed fields have no owner.

        The earlier owners come from the managedFields in the request. If these are missing or unreadable, the earlier owners
        come from the managedFields of the stored object.
        """
        asked = sent["metadata"].get("managedFields")
        given: Holdings = {}
        if not self.subresource and asked in ([], [{}]):  # a reset of managedFields; `[{}]` by clients that omit empty lists
            return {}
        with suppress(held.UnreadableError):
            given = held.read(asked) if asked and not self.subresource else given
        before = current(ServedVersions(self.resource), given or held.of_object(old))
        return self._updated(sent, old, new, before) if before else {}

    def applied(self, config: Mapping[str, Any], old: Document | None, *, force: bool) -> tuple[Document, Holdings]:
        """Apply the configuration. Return the object in the request's version, and the owners.

        Raises ConflictError with a cause per field, BadRequestError if the configuration does not fit the schema.
        """
        self._check(config)
        versions, structure = ServedVersions(self.resource), self.resource.structures[self.api_version]
        live, before = ({}, {}) if old is None else (versions.converted(old, self.api_version), held.of_object(old))
        if old is None and (uid := config["metadata"].get("uid")):
            why = f"uid mismatch: the provided object specified uid {uid}, and no existing object was found"
            raise conflict_error(self.resource, str(config["metadata"].get("name", "")), why)
        if old is not None and not before:
            first, changed = updater(BEFORE_FIRST_APPLY, self.api_version, self.subresource), comparisons(versions, {}, old)
            before = held.updated(changed, {}, {first: _written(changed, first)}, self.time)
        writer: FieldWriter = applier(self.manager, self.subresource)
        parts = configurations.configuration(config, tuple(filter(self._is_writable, config)))
        result = apply(versions, live, parts, before, writer, time=self.time)
        found, is_kubectl = [] if force else result.conflicts, self.manager == configurations.KUBECTL
        if found and is_kubectl:
            found = configurations.real_conflicts(structure, live, found)
        if found:
            raise field_conflict_error(found)
        document = configurations.with_note(result.document, config, MAX_ANNOTATIONS) if is_kubectl else result.document
        return document, result.holdings

    def _updated(self, sent: Document, old: Document, new: Document, before: Holdings) -> Holdings:
        versions, structure = ServedVersions(self.resource), self.resource.structures[self.api_version]
        shown = versions.converted(old, self.api_version) if old else {}
        asked = compare(structure, shown, versions.converted(sent, self.api_version))
        meant = {element: below for element, below in asked.written.items() if element not in _parts(self.resource.fixed)}
        writer = updater(self.manager, self.api_version, self.subresource)
        changed = comparisons(versions, old, new)
        always: Fields = {}
        if not self.resource.custom:  # objects of built-in kinds always have these parts, even if they are empty
            fields = structure.fields.items()
            always = _parts(name for name, part in fields if part.fields and part.form is FieldForm.MAP)
        return held.updated(changed, before, {writer: common(_written(changed, writer), minus(meant, always))}, self.time)

    def _is_writable(self, part: str) -> bool:
        """Whether a write on this path can change a top-level part of the object."""
        if self.subresource:
            return part == "status"
        return part not in self.resource.fixed and (part != "status" or not self.resource.has_status)

    def _check(self, config: Mapping[str, Any]) -> None:
        metadata = config["metadata"]
        if metadata.get("managedFields") is not None:
            raise BadRequestError("metadata.managedFields must be nil")
        if wrong := configurations.type_errors(self.resource.structures[self.api_version], config):
            place = f"{metadata.get('namespace', '')}/{metadata.get('name', '')}"
            about = f"{place}; {self.api_version}, Kind={self.resource.kind}"
            text = wrong[0] if len(wrong) == 1 else "errors:\n" + "\n".join(f"  {each}" for each in wrong)
            raise BadRequestError(f"failed to create typed patch object ({about}): {text}")


def _parts(names: Iterable[str]) -> Fields:
    return of_paths(*((field(name),) for name in names))


def _written(changed: InVersion, writer: FieldWriter) -> Fields:
    comparison = changed(writer.api_version)
    return {} if comparison is None else minus(comparison.written, NOBODYS)


def with_managed_fields(document: Document, holdings: Holdings) -> dict[str, Any]:
    """Return the document with managedFields; without that field if there are no owners."""
    metadata = {name: value for name, value in document["metadata"].items() if name != "managedFields"}
    if holdings:
        metadata["managedFields"] = held.written(holdings)
    return {**document, "metadata": metadata}
