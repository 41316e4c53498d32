"""Conversion between protobuf messages and the hub's values. Unknown fields and message kinds are ignored."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from hub.api.managedclusteraddons.addon import ready_uid
from hub.api.managedclusteraddons.versions import CUSTOM_SIGNER, KUBE_CLIENT
from hub.api.managedclusters import agent_annotations, cluster as clusters, duplicates
from hub.api.managedclusters.agent_annotations import AgentHubState, RenewalOrder, ReportedHub, renewal_order
from hub.api.managedclusters.cluster import ClientConfig, ClusterClaim, StatusReport
from hub.api.meta import document as doc
from hub.api.meta.change import ADDONS, MANAGED_CLUSTERS
from hub.ports import Transaction
from machinery.errors import BadRequestError, DenialCause, InvalidError, NotFoundError
from machinery.identity import SIGNER, AddOnName, ClusterName, addon_subject
from machinery.meta import conditions
from machinery.meta.conditions import Condition
from machinery.meta.objects import Key, Query, StoredObject
from machinery.product import GROUP_SUFFIX
from machinery.wire.session.v1 import session_pb2 as wire

HOSTING_CLUSTER = f"addon.{GROUP_SUFFIX}/hosting-cluster-name"
DEFAULT_HEALTH_CHECK = "Lease"
_STATES: Mapping[int, AgentHubState] = {
    wire.Hub.STATE_READY: AgentHubState.READY,
    wire.Hub.STATE_NOT_ACCEPTED: AgentHubState.NOT_ACCEPTED,
    wire.Hub.STATE_REGISTERING: AgentHubState.REGISTERING,
    wire.Hub.STATE_DENIED: AgentHubState.DENIED,
    wire.Hub.STATE_UNREACHABLE: AgentHubState.UNREACHABLE,
    wire.Hub.STATE_LOST: AgentHubState.LOST,
}
MAX_SECONDS, NANOS_PER_SECOND = 10**13, 10**9
"""Bounds of seconds and nanoseconds of a Duration. The bound of Python's timedelta is not much higher."""
AVAILABLE: Mapping[int, bool] = {wire.VERDICT_AVAILABLE: True, wire.VERDICT_UNAVAILABLE: False}
"""Availability by the agent's verdict. An absent verdict, or one that this version does not know, has no entry."""


def decoded_duration(duration: Duration) -> timedelta:
    """Converts a requested duration. Raises InvalidError if it is out of bounds."""
    if abs(duration.seconds) > MAX_SECONDS or abs(duration.nanos) >= NANOS_PER_SECOND:
        raise InvalidError("the requested duration is out of bounds")
    return duration.ToTimedelta()


def instant_of(stamp: Timestamp, name: str) -> datetime:
    """Converts a Timestamp of the field `name`. Raises BadRequestError if it is out of range."""
    try:
        return stamp.ToDatetime(UTC)
    except (ValueError, OverflowError):
        raise BadRequestError(f"{name} is out of range") from None


@dataclass(frozen=True, slots=True)
class SessionClusterView:
    """State of a cluster for its session, read in one transaction. `desired`: encoded message Desired without a revision."""

    accepted: bool
    denied: bool
    """An operator has denied the cluster."""
    denial: str | None
    """The operator's reason for the denial; None: no reason is recorded."""
    silent: bool
    """Availability is Unknown, or no beat was ever stored. In both cases the next beat changes the availability."""
    lease_duration: timedelta
    uid: str
    """The recorded uid of the managed cluster (of its namespace kube-system); "": none yet."""
    move_to: str
    """The id of the hub to which an operator moves the cluster; "": none."""
    renewal: RenewalOrder | None
    """An operator's order to renew certificates early."""
    hubs: str
    """The hubs that the agent has reported, in the stored encoding."""
    desired: bytes
    revision: int


def read_view(tx: Transaction, cluster: ClusterName) -> SessionClusterView:
    """Reads the SessionClusterView of a cluster. Raises NotFoundError if the cluster does not exist."""
    stored = tx.objects.get(MANAGED_CLUSTERS, Key("", cluster))
    if stored is None:
        message = f'ManagedCluster "{cluster}" does not exist: it was deleted; register again'
        raise NotFoundError(message, causes=DenialCause.CLUSTER_DELETED.because(message))
    addons = tx.objects.find(ADDONS, Query(namespace=cluster)).items
    last = tx.heartbeats.of(cluster)
    available = clusters.availability(stored.document)
    desired = _desired(stored, addons)
    return SessionClusterView(
        accepted=desired.accepted,
        denied=clusters.is_denied(stored.document),
        denial=clusters.denial_of(stored.document),
        silent=last is None or last.at is None or (available is not None and available.status == conditions.UNKNOWN),
        lease_duration=clusters.lease_duration(stored.document),
        uid=doc.annotations(stored.document).get(clusters.CLUSTER_UID, ""),
        move_to=agent_annotations.move_to(stored.document),
        renewal=renewal_order(stored.document),
        hubs=doc.annotations(stored.document).get(agent_annotations.HUBS, ""),
        desired=desired.SerializeToString(deterministic=True),
        revision=max([stored.revision, *(addon.revision for addon in addons)]),
    )


def _desired(cluster: StoredObject, addons: Iterable[StoredObject]) -> wire.Desired:
    desired = wire.Desired(
        accepted=clusters.is_accepted(cluster.document),
        deleting=doc.is_deleting(cluster.document),
        taints=[
            wire.Taint(key=str(taint.get("key", "")), value=str(taint.get("value", "")), effect=str(taint.get("effect", "")))
            for taint in doc.sequence(cluster.document, "spec", "taints")
        ],
        addons=[_addon(addon.document, ClusterName(cluster.key.name)) for addon in addons],
        managed_namespaces=[
            wire.ManagedNamespace(name=str(entry.get("name", "")), cluster_set=str(entry.get("clusterSet", "")))
            for entry in doc.sequence(cluster.document, "status", "managedNamespaces")
        ],
        second_agent=duplicates.second_agent(cluster.document),
    )
    desired.lease_duration.FromTimedelta(clusters.lease_duration(cluster.document))
    return desired


def _addon(addon: Mapping[str, Any], cluster: ClusterName) -> wire.AddOn:
    name = AddOnName(doc.name(addon))
    return wire.AddOn(
        name=name,
        install_namespace=str(doc.mapping(addon, "status").get("namespace") or ""),
        hosting_cluster_name=doc.annotations(addon).get(HOSTING_CLUSTER, ""),
        health_check_mode=str(doc.mapping(addon, "status", "healthCheck").get("mode") or DEFAULT_HEALTH_CHECK),
        registrations=list(_registrations(addon, cluster, name)),
        deleting=doc.is_deleting(addon),
        token_account_uid=ready_uid(addon),
    )


def _registrations(addon: Mapping[str, Any], cluster: ClusterName, name: AddOnName) -> Iterator[wire.AddOnRegistration]:
    default = addon_subject(cluster, name, name)
    for entry in doc.sequence(addon, "status", "registrations"):
        if entry.get("type") == KUBE_CLIENT:
            subject, signer, groups = doc.mapping(entry, "kubeClient", "subject"), SIGNER, sorted(default.organizations)
        elif entry.get("type") == CUSTOM_SIGNER:
            custom = doc.mapping(entry, "customSigner")
            subject, signer, groups = doc.mapping(custom, "subject"), str(custom.get("signerName", "")), []
        else:
            continue
        yield wire.AddOnRegistration(
            signer_name=signer,
            driver=str(doc.mapping(entry, "kubeClient").get("driver") or ""),
            user=str(subject.get("user") or default.common_name),
            groups=[str(group) for group in subject.get("groups") or groups],
            organization_units=[str(unit) for unit in subject.get("organizationUnits") or ()],
        )


def decode_report(message: wire.StatusReport, agent_version: str = "") -> StatusReport:
    return StatusReport(
        agent_version=agent_version,
        conditions=conditions_of(message.conditions),
        complete=message.complete,
        capacity=dict(message.capacity),
        allocatable=dict(message.allocatable),
        kubernetes_version=message.kubernetes_version,
        claims=tuple(ClusterClaim(claim.name, claim.value) for claim in message.claims),
        client_configs=tuple(ClientConfig(config.url, config.ca_bundle) for config in message.client_configs),
        node_count=message.node_count if message.complete else None,
        namespaces={(one.cluster_set, one.name): conditions_of(one.conditions) for one in message.managed_namespaces},
    )


def hubs_of(message: wire.Hubs) -> str:
    """Returns the agent's hub list in the stored encoding. Raises BadRequestError if a time is out of range."""
    return agent_annotations.encoded(_hub(hub) for hub in message.hubs)


def _hub(hub: wire.Hub) -> ReportedHub:
    ends = instant_of(hub.credential_ends_at, "credential_ends_at") if hub.HasField("credential_ends_at") else None
    return ReportedHub(hub.hub_id, hub.name, hub.url, _STATES.get(hub.state, AgentHubState.UNKNOWN), ends)


def conditions_of(messages: Iterable[wire.Condition]) -> tuple[Condition, ...]:
    return tuple(Condition(one.type, one.status, one.reason, one.message) for one in messages)
