"""Field managers for the hub's own writes, and the managedFields after such a write."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from hub.api.managedclusteraddons import versions as addon_versions
from hub.api.meta.change import ADDONS, NAMESPACES, REQUESTS, Kind
from machinery.meta.managedfields import ownership
from machinery.meta.managedfields.comparing import Comparison, compare
from machinery.meta.managedfields.fieldset import Fields, field, minus
from machinery.meta.managedfields.ownership import NOBODYS, updater
from machinery.meta.managedfields.structure import Structure
from machinery.meta.objects import Document
from machinery.meta.timestamps import format_time
from machinery.product import NAME

HUB_WRITER, AGENT_WRITER = f"{NAME}-hub", f"{NAME}-agent"

FIXED: Mapping[Kind, tuple[str, ...]] = {REQUESTS: ("spec",), NAMESPACES: ("spec",)}
"""Immutable top-level fields of a kind. They have no manager."""
SHOWN: Mapping[tuple[Kind, str], Callable[[Document], dict[str, Any]]] = {(ADDONS, "v1alpha1"): addon_versions.add_on_shown}
"""Conversion of a stored document to another version, for managers that own fields in that version.

Versions without an entry have the same fields as the stored one.
"""
_STATUS = field("status")
_PARTS: Fields = {field("spec"): {}, _STATUS: {}}


@dataclass(frozen=True, slots=True)
class KindStructure:
    """How objects of a kind are divided into fields that managers own. `custom`: it is not one of Kubernetes' own kinds."""

    kind: Kind
    structure: Structure
    custom: bool


def tracked(form: KindStructure, new: dict[str, Any], old: Document | None, manager: str, now: datetime) -> dict[str, Any]:
    """Return `new` with the managedFields after a write by `manager`; `new` unchanged if `old` has no managedFields."""
    before = (old or {}).get("metadata", {}).get("managedFields") or []
    if old is not None and not before:
        return new
    version = str(new["apiVersion"])
    own = compare(form.structure, old or {}, new)

    def changed(api_version: str) -> Comparison:
        shown = None if api_version == version else SHOWN.get((form.kind, api_version.rpartition("/")[2]))
        return own if shown is None else compare(form.structure, shown(old) if old else {}, shown(new))

    divided = _divided(form, minus(own.written, NOBODYS), is_new=old is None)
    taken = {updater(manager, version, subresource): fields for subresource, fields in divided}
    holdings = ownership.updated(changed, ownership.of_entries(before), taken, format_time(now))
    held = ownership.written(holdings)
    metadata = {name: part for name, part in new["metadata"].items() if name != "managedFields"}
    return {**new, "metadata": {**metadata, **({"managedFields": held} if held else {})}}


def _divided(form: KindStructure, fields: Fields, *, is_new: bool) -> Iterator[tuple[str, Fields]]:
    """Split the fields into status fields and other fields. A create manages no status fields of Kubernetes' own kinds."""
    if not form.custom:  # Kubernetes' own kinds always have `spec` and `status`, so these two fields have no manager
        without_finalizers = {_STATUS if is_new else "", *(field(part) for part in FIXED.get(form.kind, ()))}
        fields = minus({name: part for name, part in fields.items() if name not in without_finalizers}, _PARTS)
    rest = {element: below for element, below in fields.items() if element != _STATUS}
    if rest:
        yield "", rest
    if _STATUS in fields:
        yield "status", {_STATUS: fields[_STATUS]}
