"""The agent's reports: the rules for the cluster's status, managed namespaces, and Events for operators.

Managed namespaces (OCM): a hub's cluster set can require namespaces on its clusters. A required namespace has the hub's label
with the value "true". When it is no longer required, the value becomes "false"; the agent never deletes the namespace, because
its content belongs to others. The key of the label identifies the hub. It is derived from the hub's id, or, as in OCM, from the
hub's URL if the hub has no id.

Availability (OCM): the API server counts as failed after 20 s without a successful probe, measured from the start of the first
failed probe. Until then the previous verdict stays. The number of probes does not matter.

Resources: Kubernetes quantities, summed exactly. A quantity is a decimal number with an optional suffix (`n u m k M G T P E`,
powers of 1000; `Ki … Ei`, powers of 1024) or a decimal exponent. As in Kubernetes, a sum has the format of its first operand
and the largest suffix that leaves a whole number.

Claims (OCM): reserved claims come first and are always reported. Custom claims follow, up to a maximum number. Both groups are
sorted by name.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from decimal import Decimal, InvalidOperation
from enum import Enum
from hashlib import sha256

from machinery.identity import HubId
from machinery.meta.conditions import AVAILABLE, FALSE, JOINED, TRUE, Condition

LABEL_PREFIX = "clusterset.open-cluster-management.io/"
LONGEST_LABEL = 63
"""Largest length of the name part of a label key."""
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
    """Return the label key of a hub. `server`: the URL in its kubeconfig, used if the hub has no id."""
    return LABEL_PREFIX + sha256((hub_id or server).encode()).hexdigest()[:LONGEST_LABEL]


def unwanted_namespaces(labelled: Iterable[str], wanted: Iterable[ManagedNamespace], *, deleting: bool) -> tuple[str, ...]:
    """Return the sorted names of labelled namespaces that are no longer wanted. `deleting`: return all of them."""
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
    """Return the Event about a condition. It is a Warning unless the condition's status is True."""
    return AgentEvent(condition.reason, condition.message, NORMAL if condition.status == TRUE else WARNING, addon)


def left_out(claims: int, maximum: int) -> AgentEvent:
    """Return the Event about custom cluster claims that are not reported. `claims`: their number; `maximum`: the limit."""
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
    """Capacity and allocatable resources of one node: Kubernetes quantities by resource name."""

    name: str
    capacity: Mapping[str, str]
    allocatable: Mapping[str, str]
    schedulable: bool


@dataclass(frozen=True, slots=True)
class ClusterReport:
    """The agent's part of ManagedCluster.status.

    `complete` False: resources, version and claims could not be read, so the hub keeps those that it has.
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
    """Results for the namespaces that the hub wants. The hub keeps the results of other namespaces."""


_BINARY = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50, "Ei": 2**60}
_DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_SHAPE = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+))(?:([KMGTPE]i)|([numkMGTPE])|[eE]([+-]?\d{1,3}))?")


class Format(Enum):
    BINARY = "BinarySI"
    DECIMAL = "DecimalSI"


def parse_quantity(text: str) -> tuple[Decimal, Format]:
    """Return the exact value and the format. Raises ValueError for an invalid quantity."""
    match = _SHAPE.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not a Kubernetes quantity")
    number, binary, decimal, exponent = match.groups()
    try:
        value = Decimal(number)
    except InvalidOperation as error:
        raise ValueError(f"{text!r} is not a Kubernetes quantity") from error
    if binary:
        return value * _BINARY[binary], Format.BINARY
    power = int(exponent) if exponent else _DECIMAL[decimal or ""]
    return value.scaleb(power), Format.DECIMAL


def format_quantity(value: Decimal, form: Format) -> str:
    """Return the canonical text in this format: an integer and the largest possible suffix. Fractions of a nano round up."""
    if form is Format.BINARY and value == value.to_integral_value():
        whole = int(value)
        for suffix, factor in reversed(_BINARY.items()):
            if whole and whole % factor == 0:
                return f"{whole // factor}{suffix}"
        return str(whole)
    for suffix, power in reversed(_DECIMAL.items()):
        scaled = value.scaleb(-power)
        if scaled == scaled.to_integral_value() and (scaled or not suffix):
            return f"{int(scaled)}{suffix}"
    return f"{int(value.scaleb(9).to_integral_value(rounding='ROUND_CEILING'))}n"


def add(first: str, second: str) -> str:
    """Return the sum of two quantities, in the format of `first` unless `first` is zero."""
    (left, form), (right, other) = parse_quantity(first), parse_quantity(second)
    return format_quantity(left + right, form if left else other)


FAILURE_THRESHOLD = timedelta(seconds=20)
RECHECK = timedelta(seconds=5)
PROBE_PERIOD, PROBE_PERIOD_WHILE_FAILING = timedelta(seconds=5), timedelta(seconds=2)
"""Time from the start of one probe to the start of the next probe."""
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
    """State of the API server. `failing_since`: start of the first failed probe, in monotonic seconds; None: no failure."""

    verdict: bool | None = None
    failing_since: float | None = None
    condition: Condition | None = None

    def observed(self, *, ok: bool, status_code: int | None, detail: str, began: float, ended: float) -> "Availability":
        """Return the state after one probe. `began` and `ended` are the monotonic times of its start and end."""
        if ok:
            return Availability(verdict=True, condition=AVAILABLE_CONDITION)
        since = began if self.failing_since is None else self.failing_since
        if ended - since < FAILURE_THRESHOLD.total_seconds():
            return replace(self, failing_since=since)
        return Availability(verdict=False, failing_since=since, condition=unavailable_condition(status_code, detail))


def unavailable_condition(status_code: int | None, detail: str) -> Condition:
    """Return the condition Available=False with OCM's reason and message."""
    code = "" if status_code is None else f"status code: {status_code}, "
    message = f"The kube-apiserver is not ok, {code}{detail}"[:MAX_MESSAGE]
    return Condition(AVAILABLE, FALSE, "ManagedClusterKubeAPIServerUnavailable", message)


def capacity_of(nodes: Iterable[NodeResources]) -> dict[str, str]:
    return _sum(node.capacity for node in nodes)


def allocatable_of(nodes: Iterable[NodeResources]) -> dict[str, str]:
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
    """The options `--max-custom-cluster-claims` and `--reserved-cluster-claim-suffixes`."""

    max_custom: int = 20
    reserved_suffixes: tuple[str, ...] = ()

    def is_reserved(self, name: str) -> bool:
        return name in RESERVED_CLAIMS or any(name.endswith(suffix) for suffix in self.reserved_suffixes if suffix)


def merged_claims(sources: Sequence[Sequence[ReportedClaim]]) -> tuple[ReportedClaim, ...]:
    """Merge claims. For equal names, the claim of the last source counts; the caller passes ClusterProperties last."""
    return tuple({claim.name: claim for source in sources for claim in source}.values())


def exposed_claims(claims: Sequence[ReportedClaim], rules: ClusterClaimRules) -> tuple[ReportedClaim, ...]:
    """Return the claims to report: reserved claims, then the allowed number of custom claims, each sorted by name."""
    ordered = sorted(claims, key=lambda claim: claim.name)
    reserved = [claim for claim in ordered if rules.is_reserved(claim.name)]
    custom = [claim for claim in ordered if not rules.is_reserved(claim.name)]
    return (*reserved, *custom[: max(rules.max_custom, 0)])


def truncated_claims(claims: Sequence[ReportedClaim], rules: ClusterClaimRules) -> int:
    """Return how many custom claims `exposed_claims` omits."""
    return len(claims) - len(exposed_claims(claims, rules))
