"""What the agent says of its cluster: availability, resources, claims.

Availability (OCM): a failing API server is believed only after it has failed for 20 s without one success, counted from the
start of the first probe that failed; until then the verdict stays as it was. Any number of probes within the threshold changes
nothing.
Claims (OCM): reserved ones are always kept and come first, both kinds are sorted by name, custom ones are cut to a maximum.
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
    """What is known of the API server; `failing_since` is monotonic."""

    verdict: bool | None = None
    failing_since: float | None = None
    condition: Condition | None = None

    @property
    def settled(self) -> bool:
        """No failure is being waited out."""
        return self.failing_since is None or self.verdict is False

    def observed(self, *, ok: bool, status_code: int | None, detail: str, began: float, ended: float) -> "Availability":
        """After one probe of the API server between two monotonic instants."""
        if ok:
            return Availability(verdict=True, condition=AVAILABLE_CONDITION)
        since = began if self.failing_since is None else self.failing_since
        if ended - since < FAILURE_THRESHOLD.total_seconds():
            return replace(self, failing_since=since)
        return Availability(verdict=False, failing_since=since, condition=unavailable(status_code, detail))


def unavailable(status_code: int | None, detail: str) -> Condition:
    """Available=False in OCM's words."""
    code = "" if status_code is None else f"status code: {status_code}, "
    message = f"The kube-apiserver is not ok, {code}{detail}"[:MAX_MESSAGE]
    return Condition(AVAILABLE, FALSE, "ManagedClusterKubeAPIServerUnavailable", message)


def capacity_of(nodes: Iterable[NodeResources]) -> dict[str, str]:
    """Capacity summed over all nodes."""
    return _sum(node.capacity for node in nodes)


def allocatable_of(nodes: Iterable[NodeResources]) -> dict[str, str]:
    """What can be allocated, summed over the nodes that take new work."""
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
    """Of one name the claim of the last source that has it: properties win over claims."""
    return tuple({claim.name: claim for source in sources for claim in source}.values())


def exposed_claims(claims: Sequence[ReportedClaim], rules: ClusterClaimRules) -> tuple[ReportedClaim, ...]:
    """The claims to report: reserved, then as many custom ones as allowed, each sorted by name."""
    ordered = sorted(claims, key=lambda claim: claim.name)
    reserved = [claim for claim in ordered if rules.is_reserved(claim.name)]
    custom = [claim for claim in ordered if not rules.is_reserved(claim.name)]
    return (*reserved, *custom[: max(rules.max_custom, 0)])


def truncated_claims(claims: Sequence[ReportedClaim], rules: ClusterClaimRules) -> int:
    """How many custom claims `exposed_claims` leaves out."""
    return len(claims) - len(exposed_claims(claims, rules))
