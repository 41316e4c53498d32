"""Values of the agent's reports: the cluster's status, managed namespaces, and Events for operators.

Managed namespaces are those that the hub's cluster sets want on this cluster. Source: OCM's registration agent. A wanted
namespace has the hub's label with "true"; one that is no longer wanted has "false" and is never deleted, because its contents
are not ours. The label's key identifies the hub. OCM derives it from the hub's URL, so that a hub with two URLs counts as two;
here it is derived from the hub's id if there is one.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256

from machinery.identity import HubId
from machinery.meta.conditions import FALSE, TRUE, Condition

LABEL_PREFIX = "clusterset.open-cluster-management.io/"
LONGEST_LABEL = 63
"""Length of a label's name."""
NAMESPACE_AVAILABLE = "NamespaceAvailable"
WANTED, NOT_WANTED = "true", "false"


@dataclass(frozen=True, slots=True)
class ManagedNamespace:
    """A namespace that a cluster set wants."""

    name: str
    cluster_set: str


@dataclass(frozen=True, slots=True)
class NamespaceReport:
    namespace: ManagedNamespace
    condition: Condition


def hub_label(hub_id: HubId, server: str) -> str:
    """The label's key for a hub. `server`: the URL in its kubeconfig, used when the hub has no id."""
    return LABEL_PREFIX + sha256((hub_id or server).encode()).hexdigest()[:LONGEST_LABEL]


def unwanted_namespaces(labelled: Iterable[str], wanted: Iterable[ManagedNamespace], *, deleting: bool) -> tuple[str, ...]:
    """Names labelled as wanted that are no longer wanted, sorted. `deleting`: the cluster leaves the hub, so none is wanted."""
    kept = set() if deleting else {each.name for each in wanted}
    return tuple(sorted(set(labelled) - kept))


def namespace_applied_condition(name: str) -> Condition:
    return Condition(NAMESPACE_AVAILABLE, TRUE, "NamespaceApplied", f"Namespace {name} is there")


def namespace_failed_condition(name: str, why: str) -> Condition:
    return Condition(NAMESPACE_AVAILABLE, FALSE, "NamespaceApplyFailed", f"Namespace {name} could not be applied: {why}"[:1024])


NORMAL, WARNING = "Normal", "Warning"


@dataclass(frozen=True, slots=True)
class AgentEvent:
    """One Event about the cluster, or about one of its add-ons."""

    reason: str
    message: str
    type: str = NORMAL
    addon: str = ""


def news_of(condition: Condition, addon: str = "") -> AgentEvent:
    """The Event about a condition; a Warning unless the condition is True."""
    return AgentEvent(condition.reason, condition.message, NORMAL if condition.status == TRUE else WARNING, addon)


def left_out(claims: int, maximum: int) -> AgentEvent:
    """The Event about custom cluster claims that are not reported."""
    message = f"{claims} custom cluster claims are left out: at most {maximum} are reported (--max-custom-cluster-claims)"
    return AgentEvent("CustomClusterClaimsTruncated", message, WARNING)


@dataclass(frozen=True, slots=True)
class ReportedClaim:
    name: str
    value: str


@dataclass(frozen=True, slots=True)
class ExternalEndpoint:
    """One of `--spoke-external-server-urls` with the CA bundle that verifies it."""

    url: str
    ca_bundle: bytes


@dataclass(frozen=True, slots=True)
class NodeResources:
    """One node: Kubernetes quantities by resource name."""

    name: str
    capacity: Mapping[str, str]
    allocatable: Mapping[str, str]
    schedulable: bool


@dataclass(frozen=True, slots=True)
class ClusterReport:
    """The agent's part of ManagedCluster.status.

    `complete` False: the API server was unavailable, and resources stay as they are.
    """

    conditions: tuple[Condition, ...]
    complete: bool
    capacity: Mapping[str, str] = field(default_factory=dict)
    allocatable: Mapping[str, str] = field(default_factory=dict)
    kubernetes_version: str = ""
    claims: tuple[ReportedClaim, ...] = ()
    node_count: int = 0
    endpoints: tuple[ExternalEndpoint, ...] = ()
    namespaces: tuple[NamespaceReport, ...] = ()
    """Results for the namespaces that the hub wants; others stay as they are."""
