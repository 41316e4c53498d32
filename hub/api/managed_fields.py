"""Field managers for the hub's own writes, and the merge keys of lists by kind."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from hub.api.managedclusteraddons import versions as addon_versions
from hub.api.meta.change import (
    ADDON_DEFINITIONS,
    ADDONS,
    APPROVAL_RULES,
    CLUSTER_PROFILES,
    CLUSTER_ROLE_BINDINGS,
    CLUSTER_SETS,
    CREDENTIAL_ISSUERS,
    EVENTS,
    JWT_AUTHENTICATORS,
    MANAGED_CLUSTERS,
    NAMESPACES,
    REQUESTS,
    ROLE_BINDINGS,
    SERVICE_ACCOUNTS,
    WEBHOOK_AUTHENTICATORS,
    Kind,
)
from machinery.meta.managedfields import ownership
from machinery.meta.managedfields.comparing import Comparison, compare
from machinery.meta.managedfields.fieldset import Fields, field, minus
from machinery.meta.managedfields.ownership import NOBODYS, updater
from machinery.meta.managedfields.structure import LEAF, METADATA, OPEN, FieldForm, Structure
from machinery.meta.objects import Document
from machinery.meta.timestamps import format_time
from machinery.product import NAME

HUB_WRITER, AGENT_WRITER = f"{NAME}-hub", f"{NAME}-agent"

LIST_MAPS: Mapping[Kind, Mapping[str, tuple[str, ...]]] = {
    MANAGED_CLUSTERS: {
        "status.conditions": ("type",),
        "status.managedNamespaces": ("clusterSet", "name"),
        "status.managedNamespaces.conditions": ("type",),
    },
    ADDON_DEFINITIONS: {"spec.defaultConfigs": ("group", "resource"), "spec.installStrategy.placements": ("namespace", "name")},
    ADDONS: {"status.conditions": ("type",), "status.supportedConfigs": ("group", "resource")},
    APPROVAL_RULES: {"status.conditions": ("type",)},
    CLUSTER_PROFILES: {"status.conditions": ("type",), "status.properties": ("name",)},
    CREDENTIAL_ISSUERS: {"status.strategies": ("type",)},
    CLUSTER_SETS: {"spec.managedNamespaces": ("name",)},
    JWT_AUTHENTICATORS: {"status.conditions": ("type",)},
    WEBHOOK_AUTHENTICATORS: {"status.conditions": ("type",)},
    REQUESTS: {"status.conditions": ("type",)},
    NAMESPACES: {"status.conditions": ("type",)},
    SERVICE_ACCOUNTS: {"secrets": ("name",)},
}
"""By kind: lists whose entries have separate managers, and their keys.

Source: the declarations of OCM and Kubernetes. Every other list is atomic.
"""
FIXED: Mapping[Kind, tuple[str, ...]] = {REQUESTS: ("spec",), NAMESPACES: ("spec",)}
"""Immutable parts, which have no manager."""
WHOLE: Mapping[Kind, tuple[str, ...]] = {
    APPROVAL_RULES: ("spec.clusterSelector",),
    CLUSTER_ROLE_BINDINGS: ("roleRef",),
    CLUSTER_SETS: ("spec.clusterSelector.labelSelector",),
    EVENTS: ("involvedObject", "related"),
    ROLE_BINDINGS: ("roleRef",),
}
"""By kind: atomic maps."""
SHOWN: Mapping[tuple[Kind, str], Callable[[Document], dict[str, Any]]] = {(ADDONS, "v1alpha1"): addon_versions.add_on_shown}
"""Conversion of a stored document to another version, for managers that own fields in that version.

Versions without an entry have the same fields as the stored one.
"""
_CUSTOM_GROUPS = frozenset(("addon", "cluster", "hub", "login", "multicluster.x-k8s.io"))
_STATUS = field("status")
_PARTS: Fields = {field("spec"): {}, _STATUS: {}}
_ENVELOPE = {"apiVersion": LEAF, "kind": LEAF, "metadata": METADATA}


def tracked(kind: Kind, new: dict[str, Any], old: Document | None, manager: str, now: datetime) -> dict[str, Any]:
    """Return `new` with the managedFields after a write by `manager`; none if the old object has none."""
    before = (old or {}).get("metadata", {}).get("managedFields") or []
    if old is not None and not before:
        return new
    version = str(new["apiVersion"])
    own = compare(STRUCTURES.get(kind, _PLAIN), old or {}, new)

    def changed(api_version: str) -> Comparison:
        shown = None if api_version == version else SHOWN.get((kind, api_version.rpartition("/")[2]))
        return own if shown is None else compare(STRUCTURES.get(kind, _PLAIN), shown(old) if old else {}, shown(new))

    divided = _divided(kind, minus(own.written, NOBODYS), is_new=old is None)
    taken = {updater(manager, version, subresource): fields for subresource, fields in divided}
    holdings = ownership.updated(changed, ownership.of_entries(before), taken, format_time(now))
    held = ownership.written(holdings)
    metadata = {name: part for name, part in new["metadata"].items() if name != "managedFields"}
    return {**new, "metadata": {**metadata, **({"managedFields": held} if held else {})}}


def is_kubernetes_own(kind: Kind) -> bool:
    """Whether the kind is Kubernetes' own: its objects always have `spec` and `status`, so these fields have no manager."""
    return kind.partition(".")[2] not in _CUSTOM_GROUPS


def _divided(kind: Kind, fields: Fields, *, is_new: bool) -> Iterator[tuple[str, Fields]]:
    """Split the fields into those of the status and the others. A create never owns status fields of Kubernetes kinds."""
    if is_kubernetes_own(kind):
        without_finalizers = {_STATUS if is_new else "", *(field(part) for part in FIXED.get(kind, ()))}
        fields = minus({name: part for name, part in fields.items() if name not in without_finalizers}, _PARTS)
    rest = {element: below for element, below in fields.items() if element != _STATUS}
    if rest:
        yield "", rest
    if _STATUS in fields:
        yield "status", {_STATUS: fields[_STATUS]}


def _structure(lists: Mapping[str, tuple[str, ...]], whole: Sequence[str], path: str = "") -> Structure:
    """Granular maps and atomic lists, except for the given ones."""
    if path in whole:
        return LEAF
    prefix = f"{path}." if path else ""
    inner = {name.removeprefix(prefix).partition(".")[0] for name in (*lists, *whole) if name.startswith(prefix)}
    fields = {name: _structure(lists, whole, f"{prefix}{name}") for name in inner} | ({} if path else _ENVELOPE)
    below = Structure(FieldForm.MAP, fields, OPEN)
    return Structure(FieldForm.KEYED, element=below, keys=lists[path]) if path in lists else below


STRUCTURES = {kind: _structure(LIST_MAPS.get(kind, {}), WHOLE.get(kind, ())) for kind in {*LIST_MAPS, *WHOLE}}
_PLAIN = _structure({}, ())
