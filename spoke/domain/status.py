"""Rules for the cluster's status: availability, resources, claims.

Availability (OCM): an API server counts as failed only after 20 s without a success, measured from the start of the first
failed probe; until then the verdict stays. The number of probes within the threshold does not matter.
Claims (OCM): reserved claims are always reported and come first; both kinds are sorted by name; custom ones are limited.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta

from machinery.meta.conditions import AVAILABLE, FALSE, JOINED, TRUE, Condition
from spoke.domain.quantity import add, format_quantity, parse_quantity
from spoke.domain.report import NodeResources, ReportedClaim

FAILURE_THRESHOLD = timedelta(seconds=20)
RECHECK = timedelta(seconds=5)
PROBE_PERIOD, PROBE_PERIOD_WHILE_FAILING = timedelta(seconds=5), timedelta(seconds=2)
"""From the start of one probe to the start of the next."""
PROBE_TIMEOUT = timedelta(seconds=5)
MAX_MESSAGE = 1024
RESERVED_CLAIMS = frozenset(
    (
        "id.k8s.io",
        "kubeversion.open-cluster-management.io",
        "platform.open-cluster-management.io",
        "product.open-cluster-management.io",
    )
)

JOINED_CONDITION = Condition(JOINED, TRUE, "ManagedClusterJoined", "Managed cluster joined")
AVAILABLE_CONDITION = Condition(AVAILABLE, TRUE, "ManagedClusterAvailable", "Managed cluster is available")


@dataclass(frozen=True, slots=True)
class Availability:
    """State of the API server; `failing_since` is monotonic."""

    verdict: bool | None = None
    failing_since: float | None = None
    condition: Condition | None = None

    @property
    def settled(self) -> bool:
        """Whether no failure is waiting for the threshold."""
        return self.failing_since is None or self.verdict is False

    def observed(self, *, ok: bool, status_code: int | None, detail: str, began: float, ended: float) -> "Availability":
        """The state after one probe that ran between two monotonic instants."""
        if ok:
            return Availability(verdict=True, condition=AVAILABLE_CONDITION)
        since = began if self.failing_since is None else self.failing_since
        if ended - since < FAILURE_THRESHOLD.total_seconds():
            return replace(self, failing_since=since)
        return Availability(verdict=False, failing_since=since, condition=unavailable(status_code, detail))


def unavailable(status_code: int | None, detail: str) -> Condition:
    """Available=False with OCM's reason and message."""
    code = "" if status_code is None else f"status code: {status_code}, "
    message = f"The kube-apiserver is not ok, {code}{detail}"[:MAX_MESSAGE]
    return Condition(AVAILABLE, FALSE, "ManagedClusterKubeAPIServerUnavailable", message)


def capacity_of(nodes: Iterable[NodeResources]) -> dict[str, str]:
    """Capacity summed over all nodes."""
    return _sum(node.capacity for node in nodes)


def allocatable_of(nodes: Iterable[NodeResources]) -> dict[str, str]:
    """Allocatable resources summed over the schedulable nodes."""
    return _sum(node.allocatable for node in nodes if node.schedulable)


def _sum(parts: Iterable[Mapping[str, str]]) -> dict[str, str]:
    total: dict[str, str] = {}
    for part in parts:
        for resource, quantity in part.items():
            present = total.get(resource)
            total[resource] = add(present, quantity) if present is not None else format_quantity(*parse_quantity(quantity))
    return dict(sorted(total.items()))


@dataclass(frozen=True, slots=True)
class ClusterClaimRules:
    """`--max-custom-cluster-claims` and `--reserved-cluster-claim-suffixes`."""

    max_custom: int = 20
    reserved_suffixes: tuple[str, ...] = ()

    def is_reserved(self, name: str) -> bool:
        return name in RESERVED_CLAIMS or any(name.endswith(suffix) for suffix in self.reserved_suffixes if suffix)


def merged_claims(sources: Sequence[Sequence[ReportedClaim]]) -> tuple[ReportedClaim, ...]:
    """For equal names, the claim of the last source: properties win over claims."""
    return tuple({claim.name: claim for source in sources for claim in source}.values())


def exposed_claims(claims: Sequence[ReportedClaim], rules: ClusterClaimRules) -> tuple[ReportedClaim, ...]:
    """The claims to report: reserved, then the allowed number of custom ones, each sorted by name."""
    ordered = sorted(claims, key=lambda claim: claim.name)
    reserved = [claim for claim in ordered if rules.is_reserved(claim.name)]
    custom = [claim for claim in ordered if not rules.is_reserved(claim.name)]
    return (*reserved, *custom[: max(rules.max_custom, 0)])


def truncated_claims(claims: Sequence[ReportedClaim], rules: ClusterClaimRules) -> int:
    """How many custom claims `exposed_claims` leaves out."""
    return len(claims) - len(exposed_claims(claims, rules))
