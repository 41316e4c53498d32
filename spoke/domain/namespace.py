"""Managed namespaces: namespaces that the hub's cluster sets want on this cluster. Source: OCM's registration agent.

A wanted namespace has the hub's label with "true"; one that is no longer wanted has "false" and is never deleted, because its
contents are not ours. The label's key identifies the hub. OCM derives it from the hub's URL, so that a hub with two URLs counts
as two; here it is derived from the hub's id if there is one.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import sha256

from machinery.identity import HubId
from machinery.meta.conditions import FALSE, TRUE, Condition

PREFIX = "clusterset.open-cluster-management.io/"
LONGEST = 63
"""Length of a label's name."""
CONDITION = "NamespaceAvailable"
WANTED, NOT_WANTED = "true", "false"


@dataclass(frozen=True, slots=True)
class ManagedNamespace:
    """A namespace that a cluster set wants."""

    name: str
    cluster_set: str


@dataclass(frozen=True, slots=True)
class NamespaceReport:
    """The result for a managed namespace."""

    namespace: ManagedNamespace
    condition: Condition


def hub_label(hub_id: HubId, server: str) -> str:
    """The label's key for a hub. `server`: the URL in its kubeconfig, used when the hub has no id."""
    return PREFIX + sha256((hub_id or server).encode()).hexdigest()[:LONGEST]


def superfluous(labelled: Iterable[str], wanted: Iterable[ManagedNamespace], *, deleting: bool) -> tuple[str, ...]:
    """Names labelled as wanted that are no longer wanted, sorted. `deleting`: the cluster leaves the hub, so none is wanted."""
    kept = set() if deleting else {each.name for each in wanted}
    return tuple(sorted(set(labelled) - kept))


def applied(name: str) -> Condition:
    return Condition(CONDITION, TRUE, "NamespaceApplied", f"Namespace {name} is there")


def failed(name: str, why: str) -> Condition:
    return Condition(CONDITION, FALSE, "NamespaceApplyFailed", f"Namespace {name} could not be applied: {why}"[:1024])
