"""The rules of writes as pure functions for every storage, which runs them inside its transaction.

Steps of an update, in Kubernetes' order: check uid and resourceVersion, take the parts that this path may change, set defaults,
run the preparation of the kind, increase the generation, validate. A write that removes the last finalizer of a terminating
object removes the object.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Any

import msgspec

from machinery.apiserver.http.limits import OBJECT_CEILING, OBJECT_LIMIT
from machinery.apiserver.http.status_errors import conflict_error, invalid_error, undecodable_error
from machinery.apiserver.resource import Resource, Schema, ServedVersion, Subresource
from machinery.apiserver.storage import Actor, Admission
from machinery.apiserver.write import metadata as object_metadata
from machinery.apiserver.write.metadata import FieldOwnership, with_managed_fields
from machinery.apiserver.write.schema import WRONG_TYPE, added, defaulted, pruned, violations
from machinery.errors import BadRequestError, Cause, ConflictError, ErrorSubject, InvalidError, TooLargeError, invalid_value
from machinery.meta.managedfields.ownership import Holdings, is_same
from machinery.meta.objects import Document, Key
from machinery.meta.timestamps import format_time

FEW = 1024  # bytes; enough for a condition and its managedFields
_encode = msgspec.json.Encoder().encode


@dataclass(slots=True)
class Write:
    """One write request. Its methods compute the new object and may run again; `warnings` are those of the last run."""

    resource: Resource
    actor: Actor
    now: datetime
    validation: str = "Warn"
    version: ServedVersion | None = None
    part: Subresource | None = None
    manager: str = ""
    dry_run: bool = False
    warnings: list[str] = field(default_factory=list)
    noted: list[str] = field(default_factory=list)
    removed: bool = False
    last: Document | None = None
    """The last state of a terminating object that this write removed."""

    @property
    def schema(self) -> Schema:
        return self.version.schema if self.version is not None else self.resource.schema

    @property
    def version_name(self) -> str:
        return self.version.name if self.version is not None else self.resource.version

    def known(self, document: Mapping[str, Any], old: Document | None = None) -> dict[str, Any]:
        """Return the document in the stored version without unknown fields. `Strict`: raises BadRequestError for one."""
        check_size(document, old)
        given = document if self.resource.custom else _without_nulls(dict(document))
        kept, unknown = pruned(self.schema, given)
        self.warnings = [f'unknown field "{path}"' for path in unknown] if self.validation == "Warn" else []
        if unknown and self.validation == "Strict":
            listed = ", ".join(f'unknown field "{path}"' for path in unknown)
            raise undecodable_error(self.resource, f"strict decoding error: {listed}")
        if self.version is None:
            return kept
        broken = partial(violations, self.schema)
        if causes := added(broken(kept), kept, lambda: self.shown(old) if old else None, broken):
            raise invalid_error(self.resource, str(kept.get("metadata", {}).get("name", "")), causes)
        return {**self.version.to_stored(kept), "apiVersion": self.resource.api_version()}

    def shown(self, stored: Document) -> Document:
        """Convert a stored document to the version of the request."""
        if self.version is None:
            return stored
        return {**self.version.from_stored(stored), "apiVersion": self.resource.api_version(self.version.name)}

    @property
    def ownership(self) -> FieldOwnership:
        part = self.part.name if self.part is not None else ""
        version = self.resource.api_version(self.version_name)
        return FieldOwnership(self.resource, self.manager, version, part, format_time(self.now))

    def created(self, document: Mapping[str, Any], holdings: Holdings | None = None) -> Document:
        """Return the new object to store. `holdings`: field owners from an apply.

        Raises InvalidError, BadRequestError, and errors of admission.
        """
        new = self.known(document)
        new["metadata"] = object_metadata.of_new(new.get("metadata") or {})
        if self.resource.has_status and self.resource.custom:
            new.pop("status", None)
        new = self._completed(new)
        causes = self._misshapen(new, None)
        sent = new
        if self.resource.prepare_create is not None:
            new = dict(self.resource.prepare_create(new, self.actor, self.now))
        new = with_managed_fields(new, self.ownership.of_new(sent, new) if holdings is None else holdings)
        if self.resource.counts_generations:
            new["metadata"] = {**new["metadata"], "generation": 1}
        self._validate(new, None, causes)
        check_size(new)
        return self._admitted(new, None)

    def changed(self, document: Mapping[str, Any], old: Document, holdings: Holdings | None = None) -> Document | None:
        """Return `old` as changed by a write of `document`; None: removed. `holdings`: field owners from an apply.

        If only times in managedFields would change, returns `old` itself, with its old times.
        """
        self._check_locks(document.get("metadata") or {}, old["metadata"])
        new = self.known(document, old)
        new["metadata"] = object_metadata.of_changed(new.get("metadata") or {}, old["metadata"])
        if self.part is None and self.resource.has_status:
            new.pop("status", None)
            new.update({"status": old["status"]} if "status" in old else {})
        new = self._completed(new)
        causes = self._misshapen(new, old)
        sent = {**new, "metadata": {**new["metadata"], "managedFields": (document.get("metadata") or {}).get("managedFields")}}
        if self.part is not None:
            new = dict(self.part.combine(new, old, self.actor, self.now))
        else:
            if self.resource.prepare_update is not None:
                new = dict(self.resource.prepare_update(new, old, self.actor, self.now))
            if self.resource.counts_generations and _content(new) != _content(old):
                new["metadata"] = {**new["metadata"], "generation": old["metadata"].get("generation", 0) + 1}
        new = with_managed_fields(new, self.ownership.of_changed(sent, old, new) if holdings is None else holdings)
        self._validate(new, old, causes)
        check_size(new, old)
        terminating = "deletionTimestamp" in new["metadata"]
        self.removed = terminating and not new["metadata"].get("finalizers") and not self.resource.held(new)
        self.last = new if self.removed else None
        if self.removed:
            return None
        return old if is_same(new, old) else self._admitted(new, old)

    def applied(self, config: Mapping[str, Any], old: Document, *, force: bool) -> Document | None:
        """Return `old` as changed by an apply. Raises ConflictError, BadRequestError, InvalidError."""
        check_size(config)
        document, holdings = self.ownership.applied(config, old, force=force)
        return self.changed(document, old, holdings)

    def deleted(self, old: Document) -> Document | None:
        """Return `old` as changed by a delete; None: removed. An object with finalizers begins to terminate."""
        metadata = old["metadata"]
        self.removed = not metadata.get("finalizers") and not self.resource.held(old)
        if self.removed:
            return None
        if "deletionTimestamp" in metadata:
            return old
        stamped = {**metadata, "deletionTimestamp": format_time(self.now), "deletionGracePeriodSeconds": 0}
        if self.resource.counts_generations:
            stamped["generation"] = metadata.get("generation", 0) + 1
        new: Document = {**old, "metadata": stamped}
        if self.resource.prepare_delete is not None:
            new = self.resource.prepare_delete(new, self.now)
        return self._admitted(new, old)

    def _admitted(self, new: Document, old: Document | None) -> Document:
        if self.resource.admit is None:
            return new
        metadata = new["metadata"]
        key = Key(metadata.get("namespace", ""), metadata["name"])
        return self.resource.admit(Admission(self.resource.key, key, new, old, self.actor))

    def _completed(self, new: dict[str, Any]) -> dict[str, Any]:
        whole = defaulted(self.resource.schema, new)
        return whole if self.resource.complete is None else dict(self.resource.complete(whole))

    def _check_locks(self, new: Mapping[str, Any], old: Mapping[str, Any]) -> None:
        name = old["name"]
        if new.get("uid") and new["uid"] != old["uid"]:
            why = f"Precondition failed: UID in precondition: {new['uid']}, UID in object meta: {old['uid']}"
            raise conflict_error(self.resource, name, why)
        revision = new.get("resourceVersion")
        if revision and revision != old["resourceVersion"]:
            raise conflict_error(self.resource, name)
        if not revision and not self.resource.unconditional_update:
            cause = invalid_value("metadata.resourceVersion", 0, "must be specified for an update")
            text = f'{self.resource.key} "{name}" is invalid: {cause.field}: {cause.message}'
            subject = ErrorSubject(name=name, group=self.resource.group, kind=self.resource.name)
            raise InvalidError(text, subject=subject, causes=(cause,))

    def _misshapen(self, new: Document, old: Document | None) -> list[Cause]:
        """Return the violations of metadata and schema. A wrong type raises an error, because it prevents further checks.

        Violations that the stored object already has do not count. Reports of agents are stored without schema validation, and
        a writer of other fields must not be refused because of them.
        """
        causes = added(self._broken(new, old), new, lambda: old, lambda before: self._broken(before, before))
        if check_types(self.resource, causes):
            raise invalid_error(self.resource, str(new["metadata"].get("name", "")), causes)
        return causes

    def _broken(self, document: Document, old: Document | None) -> list[Cause]:
        return [*object_metadata.violations(self.resource, document, old), *violations(self.resource.schema, document)]

    def _validate(self, new: Document, old: Document | None, causes: list[Cause]) -> None:
        rule = (self.part.validate if self.part is not None else None) or self.resource.validate
        if every := [*causes, *(rule(new, old) if rule is not None else ())]:
            raise invalid_error(self.resource, str(new["metadata"].get("name", "")), every)


def check_size(document: Mapping[str, Any], old: Document | None = None) -> None:
    """Raises TooLargeError above OBJECT_LIMIT. Larger stored objects may grow by FEW bytes a write, up to OBJECT_CEILING."""
    size = len(_encode(document))
    before = len(_encode(old)) if old is not None and size > OBJECT_LIMIT else 0
    grown = before + FEW if before > OBJECT_LIMIT else OBJECT_LIMIT
    if size > max(before, min(grown, OBJECT_CEILING)):
        raise TooLargeError(f"the object is too large: {size} bytes, and at most {OBJECT_LIMIT} are stored")


def _without_nulls(value: Any) -> Any:
    """Return the value without nulls, as typed decoding in Kubernetes does."""
    if isinstance(value, dict):
        return {name: _without_nulls(part) for name, part in value.items() if part is not None}
    return [_without_nulls(part) for part in value] if isinstance(value, list) else value


def _content(document: Document) -> dict[str, Any]:
    return {name: value for name, value in document.items() if name not in ("metadata", "status")}


def check_types(resource: Resource, causes: Sequence[Cause]) -> bool:
    """Return whether a cause is about a wrong type. For a built-in kind, raise BadRequestError instead, as Kubernetes does."""
    types = [cause for cause in causes if cause.reason == WRONG_TYPE]
    if types and not resource.custom:
        cause = types[0]
        raise undecodable_error(resource, f"{cause.field}: {cause.message.partition(': ')[2].partition(': ')[2]}")
    return bool(types)


def check_envelope(write: Write, document: Mapping[str, Any], namespace: str) -> dict[str, Any]:
    """Return the document with `apiVersion`, `kind` and namespace. Raises BadRequestError if the document has other values."""
    resource, expected = write.resource, write.resource.api_version(write.version_name)
    kind, version = document.get("kind"), document.get("apiVersion")
    metadata = document.get("metadata") or {}
    if not isinstance(metadata, dict):
        raise undecodable_error(resource, "metadata: must be an object")
    name = str(metadata.get("name", ""))
    if resource.custom and not (kind and version):
        raise BadRequestError(
            f"the object provided is unrecognized (must be of type {resource.kind}): kind or apiVersion is missing"
        )
    if version not in (None, "", expected):
        raise BadRequestError(f"the API version in the data ({version}) does not match the expected API version ({expected})")
    if kind not in (None, "", resource.kind):
        if not resource.custom:
            raise BadRequestError(f"the object provided is unrecognized (must be of type {resource.kind}): its kind is {kind}")
        cause = invalid_value("kind", kind, f"must be {resource.kind}")
        raise invalid_error(resource, name, (cause,), kind=str(kind))
    given = metadata.get("namespace") or ""
    if given and given != namespace:
        raise BadRequestError("the namespace of the provided object does not match the namespace sent on the request")
    if namespace:
        metadata = {**metadata, "namespace": namespace}
    return {**document, "apiVersion": expected, "kind": resource.kind, "metadata": metadata}


def check_configuration(write: Write, config: Mapping[str, Any], key: Key) -> dict[str, Any]:
    """Return an applied configuration with the URL's namespace. Raises BadRequestError if kind, name or namespace differ."""
    resource, expected = write.resource, write.resource.api_version(write.version_name)
    version, kind = config.get("apiVersion") or "", config.get("kind") or ""
    if (version, kind) != (expected, resource.kind):
        raise BadRequestError(f"invalid object type: {version}, Kind={kind}, expected: {expected}, Kind={resource.kind}")
    metadata = config.get("metadata")
    if not isinstance(metadata, dict):
        raise BadRequestError("error decoding patch: metadata must be an object")
    check_name(metadata.get("name"), key.name)
    if (metadata.get("namespace") or key.namespace) != key.namespace:
        raise BadRequestError("the namespace of the provided object does not match the namespace sent on the request")
    place = {"namespace": key.namespace} if key.namespace else {}
    return {**config, "metadata": {**metadata, **place}}


def check_name(given: Any, expected: str) -> None:
    """Raises BadRequestError if an object's name is absent or is not the name in the URL."""
    if not given:
        raise BadRequestError(f"the name of the object ({expected} based on URL) was undeterminable: name must be provided")
    if given != expected:
        raise other_name_error(str(given), expected)


def other_name_error(given: str, expected: str) -> BadRequestError:
    return BadRequestError(f"the name of the object ({given}) does not match the name on the URL ({expected})")


_PRECONDITIONS = (("uid", "UID", "deleted and then recreated"), ("resourceVersion", "ResourceVersion", "modified"))


def check_preconditions(write: Write, preconditions: Mapping[str, Any], old: Document) -> None:
    """Check the preconditions of a delete. Raises ConflictError."""
    resource, name = write.resource, old["metadata"]["name"]
    for lock, label, what in _PRECONDITIONS:
        asked, recorded = preconditions.get(lock), old["metadata"][lock]
        if asked and asked != recorded:
            raise ConflictError(
                f'Operation cannot be fulfilled on {resource.qualified_kind} "{name}": the {label} in the precondition '
                f"({asked}) does not match the {label} in record ({recorded}). The object might have been {what}",
                subject=ErrorSubject(name=name, group=resource.group, kind=resource.kind),
            )
