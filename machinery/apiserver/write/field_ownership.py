"""Field ownership of stored objects: Kubernetes' managedFields, per version of the writer.

A creator owns what it sent, an updater what it changed, an applier what it applies. Fields that preparation and admission add
have no owner, as in Kubernetes. An object without managedFields is not tracked until its first apply.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from machinery.apiserver.http.status_errors import conflict
from machinery.apiserver.resource import Resource, ServedVersion
from machinery.apiserver.storage import Document
from machinery.apiserver.write.metadata import MAX_ANNOTATIONS
from machinery.errors import BadRequestError
from machinery.meta.managedfields import holdings as held
from machinery.meta.managedfields import lastapplied
from machinery.meta.managedfields.applying import Application, Applied, configuration
from machinery.meta.managedfields.checking import misfits
from machinery.meta.managedfields.comparing import compare
from machinery.meta.managedfields.elements import field
from machinery.meta.managedfields.fieldset import EMPTY, FieldSet, of_paths
from machinery.meta.managedfields.holdings import FieldWriter, Holdings, applier, updater
from machinery.meta.managedfields.structure import FieldForm, Structure
from machinery.meta.managedfields.updating import Comparisons, Versions, conflict_error, current, updated

BEFORE_FIRST_APPLY = "before-first-apply"
"""Manager that owns all fields of an untracked object at its first apply."""


class ServedVersions(Versions):
    """The versions of a resource, converted through the stored one."""

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
        """None: the stored version."""
        versions = self._resource.versions
        return next((version for version in versions if self._resource.api_version(version.name) == api_version), None)


@dataclass(frozen=True, slots=True)
class FieldOwnership:
    """Computes field owners for one request: manager, version, subresource and time of the write."""

    resource: Resource
    manager: str
    api_version: str
    subresource: str
    time: str

    def of_new(self, sent: Document, new: Document) -> Holdings:
        """Owners of a new object's fields: the creator owns all fields that it sent and that are stored."""
        return self._updated(sent, {}, new, {})

    def of_changed(self, sent: Document, old: Document, new: Document) -> Holdings:
        """Owners after an update or patch: the writer owns what it changed; removed fields have no owner."""
        before = self._before(old, sent["metadata"].get("managedFields"))
        return self._updated(sent, old, new, before) if before else {}

    def applied(self, config: Mapping[str, Any], old: Document | None, *, force: bool) -> tuple[Document, Holdings]:
        """Apply the configuration. Return the object in the request's version, and the owners.

        Raises ConflictError with a cause per field, BadRequestError when the configuration does not fit the schema.
        """
        self._check(config)
        live = {} if old is None else self._versions.converted(old, self.api_version)
        if old is None and (uid := config["metadata"].get("uid")):
            why = f"uid mismatch: the provided object specified uid {uid}, and no existing object was found"
            raise conflict(self.resource, str(config["metadata"].get("name", "")), why)
        result = self._application(config, live, self._tracked(old)).result()
        found = result.conflicts if not force else []
        if found and self.manager == lastapplied.KUBECTL:
            found = lastapplied.real_conflicts(self._structure, live, found)
        if found:
            raise conflict_error(found)
        return self._with_note(result, config), result.holdings

    @property
    def _versions(self) -> ServedVersions:
        return ServedVersions(self.resource)

    @property
    def _structure(self) -> Structure:
        return self.resource.structures[self.api_version]

    def _updated(self, sent: Document, old: Document, new: Document, before: Holdings) -> Holdings:
        writer = updater(self.manager, self.api_version, self.subresource)
        asked = compare(self._structure, self._shown(old) if old else {}, self._shown(sent))
        meant = asked.written.without(_parts(self.resource.fixed)) - self._always_there
        return updated(Comparisons(self._versions, old, new), before, writer, self.time, of=meant)

    def _shown(self, document: Document) -> Document:
        return self._versions.converted(document, self.api_version)

    @property
    def _always_there(self) -> FieldSet:
        """Parts that an object of a built-in kind always has, even empty."""
        structure = self._structure
        return (
            EMPTY
            if self.resource.custom
            else _parts(name for name, part in structure.fields.items() if part.fields and part.form is FieldForm.MAP)
        )

    def _before(self, old: Document, asked: Any) -> Holdings:
        """Owners before the write, or as sent in a write of the whole object unless unreadable or empty."""
        if not self.subresource and held.is_reset(asked):
            return {}
        try:
            told = held.read(asked) if asked and not self.subresource else {}
        except held.UnreadableError:
            told = {}
        return current(self._versions, told or held.of_object(old))

    def _tracked(self, old: Document | None) -> Holdings:
        if old is None:
            return {}
        before = held.of_object(old)
        if before:
            return before
        first = updater(BEFORE_FIRST_APPLY, self.api_version, self.subresource)
        return updated(Comparisons(self._versions, {}, old), {}, first, self.time)

    def _application(self, config: Mapping[str, Any], live: Document, before: Holdings) -> Application:
        writer: FieldWriter = applier(self.manager, self.subresource)
        parts = tuple(name for name in config if self._changes(name))
        return Application(self._versions, live, configuration(config, parts), before, writer, self.time)

    def _changes(self, part: str) -> bool:
        """Whether a write on this path can change a top-level part of the object."""
        if self.subresource:
            return part == "status"
        return part not in self.resource.fixed and (part != "status" or not self.resource.has_status)

    def _check(self, config: Mapping[str, Any]) -> None:
        if config["metadata"].get("managedFields") is not None:
            raise BadRequestError("metadata.managedFields must be nil")
        if wrong := misfits(self._structure, config):
            metadata = config["metadata"]
            place = f"{metadata.get('namespace', '')}/{metadata.get('name', '')}"
            about = f"{place}; {self.api_version}, Kind={self.resource.kind}"
            text = wrong[0] if len(wrong) == 1 else "errors:\n" + "\n".join(f"  {each}" for each in wrong)
            raise BadRequestError(f"failed to create typed patch object ({about}): {text}")

    def _with_note(self, result: Applied, config: Mapping[str, Any]) -> Document:
        if self.manager != lastapplied.KUBECTL:
            return result.document
        return lastapplied.with_note(result.document, config, MAX_ANNOTATIONS)


def _parts(names: Iterable[str]) -> FieldSet:
    return of_paths(*((field(name),) for name in names))


def with_holdings(document: Document, holdings: Holdings) -> dict[str, Any]:
    """The document with managedFields; without that field when there are no owners."""
    metadata = {name: value for name, value in document["metadata"].items() if name != "managedFields"}
    if holdings:
        metadata["managedFields"] = held.written(holdings)
    return {**document, "metadata": metadata}
