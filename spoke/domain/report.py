"""Values of the agent's reports: the cluster's status, and Events for operators."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from machinery.meta.conditions import TRUE, Condition
from spoke.domain.namespace import NamespaceReport

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
