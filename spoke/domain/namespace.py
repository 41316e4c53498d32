"""Managed namespaces: what cluster sets of the hub want to have on this cluster. Source: OCM's registration agent.

A namespace that is wanted carries the hub's label with "true"; one that was and is no more has it set to "false", and is never
deleted: what is in it is not ours. The label's key tells one hub from another. OCM draws it from the hub's URL, so that a hub
of two URLs counts as two; a hub that tells its id is known by that.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import sha256

from machinery.identity import HubId
from machinery.meta.conditions import FALSE, TRUE, Condition

PREFIX = "clusterset.open-cluster-management.io/"
LONGEST = 63
"""Characters of a label's name."""
CONDITION = "NamespaceAvailable"
WANTED, NOT_WANTED = "true", "false"


@dataclass(frozen=True, slots=True)
class ManagedNamespace:
    """A namespace that a cluster set wants."""

    name: str
    cluster_set: str


@dataclass(frozen=True, slots=True)
class NamespaceReport:
    """What became of it."""

    namespace: ManagedNamespace
    condition: Condition


def hub_label(hub_id: HubId, server: str) -> str:
    """The label's key for a hub. `server`: the URL in its kubeconfig, by which one that tells no id is known."""
    return PREFIX + sha256((hub_id or server).encode()).hexdigest()[:LONGEST]


def superfluous(labelled: Iterable[str], wanted: Iterable[ManagedNamespace], *, deleting: bool) -> tuple[str, ...]:
    """Those labelled as wanted that are wanted no longer, sorted. `deleting`: the cluster leaves the hub, which wants none."""
    kept = set() if deleting else {each.name for each in wanted}
    return tuple(sorted(set(labelled) - kept))


def applied(name: str) -> Condition:
    return Condition(CONDITION, TRUE, "NamespaceApplied", f"Namespace {name} is there")


def failed(name: str, why: str) -> Condition:
    return Condition(CONDITION, FALSE, "NamespaceApplyFailed", f"Namespace {name} could not be applied: {why}"[:1024])
