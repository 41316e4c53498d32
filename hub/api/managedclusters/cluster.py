"""ManagedClusters: join requests, status reports, and the rules that apply them to the document.

Sources: OCM's ManagedCluster API (conditions, reasons and messages); ADR 0015 and ADR 0016.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import Enum, auto
from functools import partial
from typing import Any

from hub.api.bootstrapcredentials import Attested
from hub.api.liveness import DEFAULT_LEASE_DURATION
from hub.api.meta import document as doc
from machinery.errors import InvalidError
from machinery.expression import Type
from machinery.identity import AgentId, ClusterName, CredentialId
from machinery.meta import conditions
from machinery.meta.conditions import Condition
from machinery.meta.objects import Document
from machinery.meta.timestamps import format_time
from machinery.product import GROUP_SUFFIX

GROUP = f"cluster.{GROUP_SUFFIX}"
API_VERSION = f"{GROUP}/v1"
KIND = "ManagedCluster"
RESOURCE = f"managedclusters.{GROUP}"

CLUSTER_UID = "hub.open-cluster-management.io/cluster-uid"
"""Annotation: uid of the managed cluster's namespace kube-system; it distinguishes two clusters with one name."""
ACCEPTED_ON = "open-cluster-management.io/automatically-accepted-on"
ACCEPTED_BY = "hub.open-cluster-management.io/accepted-by-rule"
"""Annotation: the ApprovalRule that accepted the cluster."""
DENIED_FOR = "hub.open-cluster-management.io/denied"
"""Annotation: an operator denied the cluster; the text is the reason. The hub removes it at acceptance."""
MAX_REASON = 1024
BOUND_ONLY = "hub.open-cluster-management.io/bound-credentials-only"
"""Annotation: with the value "true", only bootstrap credentials for this name alone can register agents of the cluster."""
AGENT_ANNOTATIONS = "agent.open-cluster-management.io/"
DUPLICATED = "ManagedClusterDuplicated"
ATTESTED = "ManagedClusterAttested"
NODES = "nodes"
"""The entry of `status.capacity` with the number of nodes."""

HUB_CONDITIONS = frozenset(
    (
        *(conditions.HUB_ACCEPTED, conditions.CLOCK_SYNCED, DUPLICATED, ATTESTED),
        *("Deleting", "ManagedClusterImportSucceeded", "ManagedClusterStale", "ApprovalRuleDryRun"),
    )
)
"""Conditions that only the hub sets; they are ignored in agents' reports."""
MAX_CONDITIONS = 32
MAX_CLAIMS = 256
MAX_NAMESPACES = 1000
MAX_MESSAGE = 32768
MAX_CLAIM_NAME = 253
MAX_CLAIM_VALUE = 1024

AVAILABLE = Condition(conditions.AVAILABLE, conditions.TRUE, "ManagedClusterAvailable", "Managed cluster is available")
UNAVAILABLE = replace(
    AVAILABLE, status=conditions.FALSE, reason="ManagedClusterKubeAPIServerUnavailable", message="The kube-apiserver is not ok"
)
_unknown = partial(Condition, conditions.AVAILABLE, conditions.UNKNOWN)
SILENT = _unknown("ManagedClusterLeaseUpdateStopped", "Registration agent stopped updating its lease.")
NEVER_JOINED = _unknown(
    "ManagedClusterNeverJoined", "No registration agent has sent a heartbeat since the cluster was accepted."
)
REVOKED = _unknown("Revoked", "The certificates of the registration agent are revoked. It must register again.")
ACCEPTED = Condition(conditions.HUB_ACCEPTED, conditions.TRUE, "HubClusterAdminAccepted", "Accepted by hub cluster admin")
DENIED = Condition(conditions.HUB_ACCEPTED, conditions.FALSE, "HubClusterAdminDenied", "Denied by hub cluster admin")


@dataclass(frozen=True, slots=True)
class ClientConfig:
    """Address of the managed cluster's API server."""

    url: str
    ca_bundle: bytes = b""


@dataclass(frozen=True, slots=True)
class ClusterClaim:
    name: str
    value: str


@dataclass(frozen=True, slots=True)
class JoinRequest:
    """The registration of a cluster.

    `credential`: the bootstrap credential that was presented; None if the agent presented its own certificate.
    """

    name: ClusterName
    cluster_uid: str
    agent: AgentId | None = None
    client_configs: tuple[ClientConfig, ...] = ()
    annotations: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    """The labels that the agent may set."""
    credential: CredentialId | None = None
    attested: Attested | None = None
    """The verified attestation; None if the hub required none."""


@dataclass(frozen=True, slots=True)
class Joined:
    """The ManagedCluster that a join created or found."""

    created: bool
    accepted: bool
    uid: str


@dataclass(frozen=True, slots=True)
class StatusReport:
    """The agent's part of `status`. `complete` False keeps capacity, allocatable, version and claims unchanged."""

    conditions: tuple[Condition, ...] = ()
    complete: bool = True
    capacity: Mapping[str, str] = field(default_factory=dict)
    allocatable: Mapping[str, str] = field(default_factory=dict)
    kubernetes_version: str = ""
    claims: tuple[ClusterClaim, ...] = ()
    client_configs: tuple[ClientConfig, ...] = ()
    node_count: int | None = None
    namespaces: Mapping[tuple[str, str], tuple[Condition, ...]] = field(default_factory=dict)
    """Conditions of the namespaces that cluster sets request on the cluster, by set and namespace."""
    agent_version: str = ""
    """Version of the reporting agent; "" if it is not reported."""


def joining_document(joining: JoinRequest, lease_duration: timedelta) -> dict[str, Any]:
    """Return the ManagedCluster that a join creates: not accepted, as in OCM."""
    labels, configs = {"labels": dict(joining.labels)} if joining.labels else {}, _client_configs(joining.client_configs)
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": joining.name, "annotations": joining_annotations(joining), **labels},
        "spec": {
            "hubAcceptsClient": False,
            "leaseDurationSeconds": max(1, round(lease_duration.total_seconds())),
            **({"managedClusterClientConfigs": configs} if configs else {}),
        },
    }


def adopted(cluster: Document, joining: JoinRequest) -> dict[str, Any]:
    """Return a copy with the data of the join, for a cluster that existed before its agent registered. Existing labels stay."""
    is_first = CLUSTER_UID not in doc.annotations(cluster)
    known = doc.with_annotations(cluster, joining_annotations(joining))
    if not joining.labels or not is_first:
        return known
    return doc.with_metadata(known, labels={**joining.labels, **doc.labels(cluster)})


def joining_annotations(joining: JoinRequest) -> dict[str, str]:
    """Return the annotations that an agent may set, and the annotation with the cluster uid."""
    kept = {note: value for note, value in joining.annotations.items() if note.startswith(AGENT_ANNOTATIONS)}
    return {**kept, CLUSTER_UID: joining.cluster_uid} if joining.cluster_uid else kept


def is_same_cluster(cluster: Document, uid: str) -> bool:
    """Whether the stored cluster uid equals `uid` or is not yet known."""
    recorded = doc.annotations(cluster).get(CLUSTER_UID, "")
    return recorded in ("", uid)


def attested_condition(proven: Attested) -> Condition:
    """Return the condition ATTESTED of a cluster whose name is bound to an issuer."""
    message = f"The name is bound to {proven.subject} of the issuer {proven.issuer}."
    return Condition(ATTESTED, conditions.TRUE, "AttestedByItsIssuer", message)


class Acceptance(Enum):
    """Acceptance of a cluster. DENIED: an operator has denied the cluster, before or after its acceptance."""

    ABSENT = auto()
    WAITING = auto()
    ACCEPTED = auto()
    DENIED = auto()


def acceptance(cluster: Document) -> Acceptance:
    """Return the acceptance of an existing cluster."""
    if is_accepted(cluster):
        return Acceptance.ACCEPTED
    return Acceptance.DENIED if is_denied(cluster) else Acceptance.WAITING


def is_accepted(cluster: Document) -> bool:
    return doc.mapping(cluster, "spec").get("hubAcceptsClient") is True


def is_bound_only(cluster: Document | None) -> bool:
    """Return whether only bootstrap credentials for this name alone can register the cluster's agents, as after an import."""
    return cluster is not None and doc.annotations(cluster).get(BOUND_ONLY) == "true"


def lease_duration(cluster: Document) -> timedelta:
    """Return `spec.leaseDurationSeconds`; if it is 0 or absent, the default, as in OCM."""
    seconds = doc.mapping(cluster, "spec").get("leaseDurationSeconds")
    return timedelta(seconds=seconds) if isinstance(seconds, int) and seconds > 0 else DEFAULT_LEASE_DURATION


def availability(cluster: Document) -> Condition | None:
    return conditions.find(doc.conditions(cluster), conditions.AVAILABLE)


def is_revoked(cluster: Document) -> bool:
    """Whether the cluster's availability is Unknown because its agent's certificates are revoked."""
    current = availability(cluster)
    return current is not None and (current.status, current.reason) == (REVOKED.status, REVOKED.reason)


def availability_condition(available: bool | None) -> Condition | None:  # noqa: FBT001 - the agent's verdict
    """Return the condition Available for the verdict in a beat; None if the beat has no verdict."""
    if available is None:
        return None
    return AVAILABLE if available else UNAVAILABLE


def with_report(cluster: Document, report: StatusReport, now: datetime) -> dict[str, Any]:
    """Return the ManagedCluster after a status report; only the agent's fields change. Raises InvalidError."""
    check_report(report)
    reported = dict(cluster)
    for condition in report.conditions:
        if condition.type not in HUB_CONDITIONS:
            reported = doc.with_status_condition(reported, condition, now)
    if report.complete:
        # entries of capacity that are not in allocatable belong to other writers, and stay
        known = {*doc.mapping(cluster, "status", "allocatable"), NODES}
        others = {name: value for name, value in doc.mapping(cluster, "status", "capacity").items() if name not in known}
        nodes = {NODES: str(report.node_count)} if report.node_count is not None else {}
        reported = doc.with_status(
            reported,
            capacity=_quantities({**others, **report.capacity, **nodes}),
            allocatable=_quantities(report.allocatable),
            version={"kubernetes": report.kubernetes_version},
            clusterClaims=[{"name": claim.name, "value": claim.value} for claim in report.claims],
        )
    if report.client_configs:
        configs = merged_client_configs(cluster, report.client_configs)
        reported = doc.with_spec(reported, managedClusterClientConfigs=configs)
    return reported


def _quantities(resources: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries that are quantities. With others, typed clients could not decode the cluster."""
    return {name: amount for name, amount in resources.items() if Type.QUANTITY.read(amount) is not None}


def merged_client_configs(cluster: Document, configs: tuple[ClientConfig, ...]) -> list[dict[str, Any]]:
    """Return the client configs after a report. Entries with other URLs stay. Reported URLs get the reported CA bundle."""
    ours = {entry["url"]: entry for entry in _client_configs(configs)}
    known = [entry for entry in doc.sequence(cluster, "spec", "managedClusterClientConfigs") if isinstance(entry, Mapping)]
    return [*(ours.pop(str(entry.get("url")), dict(entry)) for entry in known), *ours.values()]


def _client_configs(configs: tuple[ClientConfig, ...]) -> list[dict[str, Any]]:
    return [{"url": one.url, **({"caBundle": doc.base64_text(one.ca_bundle)} if one.ca_bundle else {})} for one in configs]


def check_report(report: StatusReport) -> None:
    """Raise InvalidError when a report exceeds the limits of the API."""
    of_namespaces = [condition for entries in report.namespaces.values() for condition in entries]
    if len(report.conditions) > MAX_CONDITIONS or len(report.claims) > MAX_CLAIMS or len(of_namespaces) > MAX_NAMESPACES:
        raise InvalidError(
            f"the report has too many entries: at most {MAX_CONDITIONS} conditions, {MAX_CLAIMS} claims "
            f"and {MAX_NAMESPACES} conditions of namespaces"
        )
    for condition in (*report.conditions, *of_namespaces):
        if condition.status not in (conditions.TRUE, conditions.FALSE, conditions.UNKNOWN) or not condition.type:
            raise InvalidError(
                f'condition "{condition.type[:80]}" has status "{condition.status[:80]}", not True, False or Unknown'
            )
        if len(condition.message) > MAX_MESSAGE:
            raise InvalidError(f'the message of condition "{condition.type[:80]}" is longer than {MAX_MESSAGE} characters')
    for claim in report.claims:
        if not 0 < len(claim.name) <= MAX_CLAIM_NAME or not 0 < len(claim.value) <= MAX_CLAIM_VALUE:
            raise InvalidError(
                f'cluster claim "{claim.name[:80]}" exceeds the limits: name 1 to {MAX_CLAIM_NAME}, '
                f"value 1 to {MAX_CLAIM_VALUE} characters"
            )


def automatically_accepted(cluster: Document, rule: str, now: datetime) -> dict[str, Any]:
    """Return the ManagedCluster after acceptance by a rule, with annotations that prevent a second automatic acceptance."""
    marked = doc.with_annotations(cluster, {ACCEPTED_ON: format_time(now), ACCEPTED_BY: rule})
    return doc.with_spec(marked, hubAcceptsClient=True)


def accepted_condition(cluster: Document) -> Condition:
    """Return the condition HubAcceptedManagedCluster of an accepted cluster: OCM's text, and the name of the accepting rule."""
    rule = doc.annotations(cluster).get(ACCEPTED_BY)
    return replace(ACCEPTED, message=f'{ACCEPTED.message} by the rule "{rule}"') if rule else ACCEPTED


def denial_of(cluster: Document | None) -> str | None:
    """Return the reason of an operator's denial, which may be empty; None if there is no denial."""
    return None if cluster is None else doc.annotations(cluster).get(DENIED_FOR)


def denied_condition(cluster: Document) -> Condition:
    """Return the condition HubAcceptedManagedCluster of a denied cluster: OCM's text, and the operator's reason, if any."""
    reason = (denial_of(cluster) or "")[:MAX_REASON]
    return replace(DENIED, message=f"{DENIED.message}: {reason}") if reason else DENIED


def is_denied(cluster: Document) -> bool:
    """Whether an operator has denied the cluster, before or after its acceptance."""
    return was_ever_accepted(cluster) and not is_accepted(cluster)


def is_denial(before: Document | None, after: Document) -> bool:
    """Whether a write denies the cluster: it sets a reason, or it ends an acceptance that no controller has recorded yet.

    If the second case were not a denial, an approval rule would accept the cluster again.
    """
    if is_accepted(after) or denial_of(after) is not None:
        return not is_accepted(after)
    return before is not None and is_accepted(before) and not was_ever_accepted(after)


def awaits_acceptance(cluster: Document) -> bool:
    """Whether the cluster was neither accepted nor denied, and is not being deleted."""
    return not is_accepted(cluster) and not was_ever_accepted(cluster) and not doc.is_deleting(cluster)


def was_ever_accepted(cluster: Document) -> bool:
    """Whether the cluster is or was accepted, or was denied, as recorded by the condition HubAccepted."""
    return conditions.find(doc.conditions(cluster), conditions.HUB_ACCEPTED) is not None
