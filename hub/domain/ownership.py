"""Who holds which fields when the hub itself writes, and which lists of its kinds are maps.

The hub's controllers write as `muster-hub`, what an agent tells is written as `muster-agent`; what they write into the status
is held apart from the rest, as Kubernetes does for subresources.
"""

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any

from hub.domain.change import ADDONS, MANAGED_CLUSTERS, NAMESPACES, REQUESTS, SERVICE_ACCOUNTS, Document, Kind
from machinery.managedfields import entries
from machinery.managedfields.comparing import compare
from machinery.managedfields.elements import field
from machinery.managedfields.fieldset import FieldSet, of_paths
from machinery.managedfields.holdings import updater
from machinery.managedfields.structure import METADATA, OPEN, Form, Structure
from machinery.managedfields.updating import NOBODYS
from machinery.product import NAME
from machinery.timestamps import format_time

HUB_WRITER, AGENT_WRITER = f"{NAME}-hub", f"{NAME}-agent"

LIST_MAPS: Mapping[Kind, Mapping[str, tuple[str, ...]]] = {
    MANAGED_CLUSTERS: {
        "status.conditions": ("type",),
        "status.managedNamespaces": ("clusterSet", "name"),
        "status.managedNamespaces.conditions": ("type",),
    },
    ADDONS: {"status.conditions": ("type",), "status.supportedConfigs": ("group", "resource")},
    REQUESTS: {"status.conditions": ("type",)},
    NAMESPACES: {"status.conditions": ("type",)},
    SERVICE_ACCOUNTS: {"secrets": ("name",)},
}
"""By kind: the lists whose entries have holders of their own, and the keys that tell the entries apart.

These are OCM's and Kubernetes' own declarations; every other list has one holder."""
FIXED: Mapping[Kind, tuple[str, ...]] = {REQUESTS: ("spec",), NAMESPACES: ("spec",)}
"""Parts that nobody can change, and so nobody holds."""
KUBERNETES_OWN = frozenset((REQUESTS, NAMESPACES, SERVICE_ACCOUNTS))
"""Kinds that have `spec` and `status` even when these are empty: nobody holds the parts themselves."""
_STATUS = field("status")
_ENVELOPE = {"apiVersion": Structure(Form.LEAF), "kind": Structure(Form.LEAF), "metadata": METADATA}


def tracked(kind: Kind, new: dict[str, Any], old: Document | None, manager: str, now: datetime) -> dict[str, Any]:
    """`new` with its managedFields after a write by `manager`. An object that came without any stays without."""
    before = (old or {}).get("metadata", {}).get("managedFields") or []
    if old is not None and not before:
        return new
    comparison = compare(STRUCTURES.get(kind, _PLAIN), old or {}, new)
    version = str(new["apiVersion"])
    divided = _divided(kind, comparison.written - NOBODYS, is_new=old is None)
    takings = [entries.Taking(updater(manager, version, subresource), fields) for subresource, fields in divided]
    held = entries.after(before, comparison, takings, format_time(now))
    metadata = {name: part for name, part in new["metadata"].items() if name != "managedFields"}
    return {**new, "metadata": {**metadata, **({"managedFields": held} if held else {})}}


def _divided(kind: Kind, fields: FieldSet, *, is_new: bool) -> Iterator[tuple[str, FieldSet]]:
    """What is held through the status, and what through the object itself. Nobody creates an object with a status."""
    if kind in KUBERNETES_OWN:
        fixed = (*FIXED.get(kind, ()), *(("status",) if is_new else ()))
        fields = fields.without(_parts(fixed)) - _parts(("spec", "status"))
    status = fields.children.get(_STATUS)
    rest = {element: below for element, below in fields.children.items() if element != _STATUS}
    if rest:
        yield "", FieldSet(children=rest)
    if status is not None:
        yield "status", FieldSet(children={_STATUS: status})


def _parts(names: Iterable[str]) -> FieldSet:
    return of_paths(*((field(name),) for name in names))


def _structure(lists: Mapping[str, tuple[str, ...]], path: str = "") -> Structure:
    """Maps by names and lists as wholes, but for these lists."""
    inner = {name.removeprefix(path).partition(".")[0] for name in lists if name.startswith(path)}
    fields = {}
    for name in inner:
        below = _structure(lists, f"{path}{name}.")
        keys = lists.get(f"{path}{name}")
        fields[name] = Structure(Form.KEYED, element=below, keys=keys) if keys else below
    return Structure(Form.MAP, fields, OPEN)


def _with_envelope(content: Structure) -> Structure:
    return Structure(Form.MAP, {**content.fields, **_ENVELOPE}, OPEN)


STRUCTURES = {kind: _with_envelope(_structure(lists)) for kind, lists in LIST_MAPS.items()}
_PLAIN = _with_envelope(OPEN)
