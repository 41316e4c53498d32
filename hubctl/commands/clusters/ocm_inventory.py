"""Lists, copies and compares the inventory: the kinds of objects that this hub and an OCM hub have in common."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hubctl.arguments.targets import Manifest
from hubctl.client.http import ApiClient
from hubctl.client.resources import ADDONS, BINDINGS, CLUSTER_LABEL, CLUSTERS, NAMESPACES, SETS, Catalogue, ResourceKind, items
from hubctl.errors import CommandError, UsageError
from machinery.product import GROUP_SUFFIX

ADDONS_BEFORE = replace(ADDONS, group_version=ADDONS.group_version.replace("v1beta1", "v1alpha1"))
"""Add-ons in the version that OCM stores, and that all its releases serve without a conversion webhook."""
NOT_COPIED = (f"hub.{GROUP_SUFFIX}/", f"feature.{GROUP_SUFFIX}/addon-", "kubectl.kubernetes.io/last-applied-configuration")
"""Prefixes of labels and annotations that are not copied: they belong to one hub, or each hub derives them from its add-ons."""
AVAILABILITY_TAINTS = (f"cluster.{GROUP_SUFFIX}/unreachable", f"cluster.{GROUP_SUFFIX}/unavailable")
"""Keys of taints that each hub sets itself."""
PREDEFINED_SETS = ("default", "global")
ACCEPTED, AVAILABLE = "HubAcceptedManagedCluster", "ManagedClusterConditionAvailable"


@dataclass(frozen=True, slots=True)
class InventoryItem:
    """One object of an inventory. `str` returns its kind and name for messages. `found`: the object as its hub listed it."""

    kind: ResourceKind
    found: Mapping[str, Any]

    def __str__(self) -> str:
        return f'{self.kind.noun} "{self.name}"' + (f' of namespace "{self.namespace}"' if self.namespace else "")

    @property
    def name(self) -> str:
        return str(self.found["metadata"]["name"])

    @property
    def namespace(self) -> str:
        return str(self.found["metadata"].get("namespace") or "")

    @property
    def key(self) -> tuple[str, str, str]:
        """Plural of the kind, namespace and name: they identify the object on both hubs."""
        return self.kind.plural, self.namespace, self.name

    @property
    def is_accepted(self) -> bool:
        """Whether the object is an accepted cluster."""
        return (self.found.get("spec") or {}).get("hubAcceptsClient") is True

    def status_of(self, condition: str) -> str:
        """Return the status of a condition; empty if the object does not have the condition."""
        known = (self.found.get("status") or {}).get("conditions") or ()
        return next((str(each.get("status")) for each in known if each.get("type") == condition), "")

    @property
    def manifest(self) -> Manifest:
        """Return a copy for another hub: name, labels, annotations and spec, without values that a hub derives."""
        before, metadata = self.found["metadata"], {"name": self.name}
        metadata |= {"namespace": self.namespace} if self.namespace else {}
        parts = {
            part: {key: text for key, text in (before.get(part) or {}).items() if not key.startswith(NOT_COPIED)}
            for part in ("labels", "annotations")
        }
        spec = {name: value for name, value in (self.found.get("spec") or {}).items() if name != "taints"}
        taints = [
            {name: value for name, value in taint.items() if name != "timeAdded"}
            for taint in (self.found.get("spec") or {}).get("taints") or ()
            if taint.get("key") not in AVAILABILITY_TAINTS
        ]
        return {
            "apiVersion": self.kind.group_version,
            "kind": self.kind.kind,
            "metadata": {**metadata, **{part: kept for part, kept in parts.items() if kept}},
            **({} if self.kind == NAMESPACES else {"spec": {**spec, **({"taints": taints} if taints else {})}}),
        }


def read_inventory(client: ApiClient, names: Sequence[str], selector: str) -> list[InventoryItem]:
    """Read cluster sets, clusters, bindings and add-ons of a hub, in the order in which they must be created.

    `names`, `selector`: select clusters with their add-ons; both empty: all. Sets, except predefined sets, and bindings are
    always read. Raises CommandError.
    """
    served = {(each.resource.group_version, each.resource.plural) for each in Catalogue(client).served}
    every = (CLUSTERS, SETS, BINDINGS, ADDONS_BEFORE, ADDONS)
    known = [kind for kind in every if (client.served_version(kind.group_version), kind.plural) in served]
    if CLUSTERS not in known:
        raise UsageError("its server does not serve ManagedClusters: is it the kubeconfig of a hub?")
    kinds = [kind for kind in known[1:] if kind != ADDONS or ADDONS_BEFORE not in known]
    listed = [InventoryItem(CLUSTERS, each) for each in items(client, CLUSTERS.path, {"labelSelector": selector})]
    clusters = [each for each in listed if not names or each.name in names]
    chosen = {each.name for each in clusters}
    if missing := sorted(set(names) - chosen):
        raise CommandError(f'there is no cluster "{missing[0]}" on that hub', reason="NotFound")
    found = [InventoryItem(kind, each) for kind in kinds for each in items(client, kind.path, {})]
    sets = [each for each in found if each.kind == SETS and each.name not in PREDEFINED_SETS]
    others = [
        each for each in found if each.kind == BINDINGS or (each.kind.plural == ADDONS.plural and each.namespace in chosen)
    ]
    return [*sets, *clusters, *others]


def with_namespaces(found: Sequence[InventoryItem], known: Collection[str] = ()) -> list[InventoryItem]:
    """Return the inventory with the namespaces that its bindings and add-ons need, except `known` namespaces."""
    labels = {each.namespace: {CLUSTER_LABEL: each.namespace} for each in found if each.kind.plural == ADDONS.plural}
    names = dict.fromkeys(each.namespace for each in found if each.namespace and each.namespace not in known)
    new = [InventoryItem(NAMESPACES, {"metadata": {"name": name, "labels": labels.get(name)}}) for name in names]
    return [*(each for each in found if not each.namespace), *new, *(each for each in found if each.namespace)]


def differences(wanted: Any, here: Any, path: str = "") -> Iterator[str]:
    """Yield the paths of values in `wanted` that are missing or different in `here`. Other values in `here` do not count."""
    if isinstance(wanted, Mapping) and isinstance(here, Mapping):
        for name, value in wanted.items():
            step = name if name.isidentifier() else f'["{name}"]'
            yield from differences(value, here.get(name), f"{path}.{step}" if path and step == name else f"{path}{step}")
    elif isinstance(wanted, list) and isinstance(here, list):
        if any(all(next(differences(each, other), None) is not None for other in here) for each in wanted):
            yield path
    elif wanted != here and (wanted or here):
        yield path
