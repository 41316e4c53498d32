"""ManagedCluster as OCM serves it, with additional wide columns."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from hub.api.bootstrapcredentials import CredentialRecord
from hub.api.liveness import DEFAULT_LEASE_DURATION, LastBeat
from hub.api.managedclusters import admission, agent_annotations
from hub.api.managedclusters.agent_annotations import AgentHubState
from hub.api.managedclusters.availability import FLAPS_WITHIN
from hub.api.managedclusters.cluster import NODES
from hub.api.query.parsing import sort_of, where_of
from hub.api.query.selection import CLUSTER_ALIASES, CLUSTER_FIELDS, CLUSTER_LABELS, of_cluster
from hub.ports import Store, Transaction
from hub.registry.certificatesigningrequests import credential_uses
from hub.registry.generic.definition import ResourceDefinition
from hub.registry.generic.schemas import (
    CONDITION,
    DNS_LABEL,
    FLAG,
    INT32,
    MOMENT,
    NAME,
    QUALIFIED_NAME,
    TEXT,
    cell,
    condition_column,
    crd_path,
    described,
    listing,
    record,
)
from hub.registry.managedclusters import service as clusters
from hub.registry.managedclusters.actions import cluster_move, cluster_rotation
from machinery.apiserver.resource import AGE, STATUS, Column, DeletionWarnings, Extras, Resource, TableRow
from machinery.apiserver.storage import Actor
from machinery.durations import human_duration
from machinery.errors import UnavailableError
from machinery.identity import ClusterName
from machinery.meta import conditions
from machinery.meta.objects import Document, Key

_NUMBER = r"(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))"
_QUANTITIES: dict[str, Any] = {
    "type": "object",
    "additionalProperties": {
        "anyOf": [{"type": "integer"}, {"type": "string"}],
        "pattern": rf"^(\+|-)?{_NUMBER}(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?{_NUMBER}))?$",
        "x-kubernetes-int-or-string": True,
    },
}
_EFFECT, _TAINT_KEY = {**TEXT, "enum": list(admission.TAINT_EFFECTS)}, {**TEXT, "maxLength": 316, "pattern": QUALIFIED_NAME}
_TAINT = record(
    "A taint.",
    ("effect", "key"),
    effect=described(_EFFECT, "effect on placements that do not tolerate the taint."),
    key=described(_TAINT_KEY, "key of the taint, such as foo.example.com/bar."),
    timeAdded=described({**MOMENT, "nullable": True}, "when the taint was added."),
    value=described({**TEXT, "maxLength": 1024}, "value that belongs to the key."),
)
_CLIENT_CONFIG = record(
    "An address of the API server.",
    ("url",),
    caBundle=described({**TEXT, "format": "byte"}, "CA bundle of the API server."),
    url=described(TEXT, "URL of the API server of the managed cluster."),
)
_SPEC = record(
    "Spec represents a desired configuration for the agent on the managed cluster.",
    hubAcceptsClient=described(
        FLAG,
        "hubAcceptsClient accepts the cluster. The other half of the double opt-in is the approval of its certificate "
        "signing request.",
    ),
    leaseDurationSeconds=described(
        {**INT32, "default": round(DEFAULT_LEASE_DURATION.total_seconds())},
        "leaseDurationSeconds is the period of the agent's heartbeats. After five periods without one the condition "
        "Available is Unknown.",
    ),
    managedClusterClientConfigs=listing(
        _CLIENT_CONFIG, description="managedClusterClientConfigs are the addresses of the managed cluster's API server."
    ),
    taints=listing(_TAINT, description="taints repel the cluster from placements that do not tolerate them."),
)
_MANAGED_NAMESPACE = record(
    "A managed namespace and its state on the cluster.",
    ("clusterSet", "name"),
    clusterSet=described(TEXT, "The cluster set that requires the namespace."),
    name=described(DNS_LABEL, "Name of the namespace."),
    conditions=listing(CONDITION, "type", description="conditions: NamespaceAvailable."),
)
_STATUS = record(
    "Status represents the current status of the joined managed cluster.",
    allocatable=described(_QUANTITIES, "resources of the cluster that pods may use."),
    capacity=described(_QUANTITIES, "resources of all nodes together."),
    clusterClaims=listing(
        record(
            "A claim.",
            name=described({**NAME, "maxLength": 253}, "Name of the ClusterClaim."),
            value=described({**NAME, "maxLength": 1024}, "Its value."),
        ),
        description="facts that the managed cluster reports about itself.",
    ),
    conditions=listing(
        CONDITION,
        "type",
        description="conditions: HubAcceptedManagedCluster, ManagedClusterJoined, "
        "ManagedClusterConditionAvailable, ManagedClusterConditionClockSynced, ClusterCertificateRotated.",
    ),
    managedNamespaces=listing(
        _MANAGED_NAMESPACE,
        "clusterSet",
        "name",
        description="namespaces managed by the cluster sets that the cluster belongs to.",
    ),
    version=record("version of the managed cluster.", kubernetes=described(TEXT, "its Kubernetes version.")),
)
SCHEMA = record(
    "ManagedCluster represents the desired state and current status of a managed cluster. Joining is "
    "a double opt-in: the hub accepts the cluster (spec.hubAcceptsClient) and approves its "
    "certificate signing request.",
    spec=_SPEC,
    status=_STATUS,
)


def _urls(row: TableRow) -> str | None:
    configs = row.document.get("spec", {}).get("managedClusterClientConfigs") or []
    return ",".join(config.get("url", "") for config in configs) or None


def _flaps(row: TableRow) -> int:
    return int(row.extras.get("flaps") or 0)


def _last_beat(row: TableRow) -> str:
    moment = row.extras.get("last_beat")
    return human_duration((row.now - moment).total_seconds()) if moment is not None else "<none>"


def _hubs(row: TableRow) -> str:
    hubs = agent_annotations.hubs_of(row.document)
    return f"{sum(hub.get('state') == AgentHubState.READY for hub in hubs)}/{len(hubs)}" if hubs else "<none>"


def _agent(row: TableRow) -> str:
    """Only sessions record the version of the agent, so a cluster with beats and without a version uses the Kubernetes API."""
    version = row.extras.get("agent")
    if row.extras.get("session"):
        return str(version or "<unknown>")
    return "(driver csr)" if row.extras.get("last_beat") is not None and version is None else "(no session)"


_VERSION = cell("status", "version", "kubernetes")
_COLUMNS = (
    Column("Hub Accepted", cell("spec", "hubAcceptsClient"), type="boolean", description=crd_path(".spec.hubAcceptsClient")),
    Column("Managed Cluster URLs", _urls, description=crd_path(".spec.managedClusterClientConfigs[*].url")),
    condition_column("Joined", conditions.JOINED),
    condition_column("Available", conditions.AVAILABLE),
    replace(AGE, type="date", description=crd_path(".metadata.creationTimestamp")),
    Column("Version", _VERSION, description="Kubernetes version of the managed cluster.", priority=1),
    Column("Nodes", cell("status", "capacity", NODES), description="Number of its nodes.", priority=1),
    Column("Hubs", _hubs, description="Number of hubs of the agent's list that are ready for it.", priority=1),
    Column(
        "Flaps",
        lambda row: int(row.extras.get("flaps") or 0),
        type="integer",
        description="How often it ceased to be Available within a day.",
        priority=1,
    ),
    Column("Last Beat", _last_beat, description="Time since the last heartbeat.", priority=1),
    Column("Agent", _agent, description="Version of the agent whose session is open.", priority=1),
)


def leased(resource: Resource, duration: timedelta) -> Resource:
    """Returns the resource with another default of `leaseDurationSeconds`."""
    seconds = round(duration.total_seconds())
    schema = deepcopy(dict(resource.schema))
    schema["properties"]["spec"]["properties"]["leaseDurationSeconds"]["default"] = seconds

    def with_default(new: Document, _actor: Actor, _now: datetime) -> Document:
        """Adds the default even without a spec, where the default of a schema does not apply."""
        return {**new, "spec": {"leaseDurationSeconds": seconds, **(new.get("spec") or {})}}

    return replace(resource, schema=schema, prepare_create=with_default)


MAX_SINGLE_READS = 8
"""Beats of up to this number of clusters are read one by one."""


def heartbeat_columns(store: Store) -> Extras:
    """Returns per cluster `last_beat` (instant or None), `session` (one is open), `agent` (version or None), `flaps`."""

    async def look(keys: Sequence[Key]) -> Mapping[Key, Mapping[str, Any]]:
        beats, falls = await store.read(_heartbeats_and_falls, [ClusterName(key.name) for key in keys])
        return {
            Key("", beat.cluster): {
                "last_beat": beat.at,
                "session": beat.session is not None,
                "agent": beat.agent_version,
                "flaps": len(falls.get(beat.cluster, ())),
            }
            for beat in beats
        }

    return look


def _heartbeats_and_falls(
    tx: Transaction, clusters: Sequence[ClusterName]
) -> tuple[Sequence[LastBeat], Mapping[ClusterName, Sequence[datetime]]]:
    if len(clusters) > MAX_SINGLE_READS:
        beats = tx.heartbeats.all()
    else:
        beats = [beat for beat in map(tx.heartbeats.of, clusters) if beat is not None]
    return beats, tx.transitions.falls(tx.now - FLAPS_WITHIN, clusters)


def deletion_warnings(store: Store) -> DeletionWarnings:
    """Warnings about bootstrap credentials with which deleted clusters can return: those for several names stay valid.

    The text does not depend on the cluster, so that clients print it once. No warnings if the database is unavailable.
    """

    def read(tx: Transaction, names: Sequence[ClusterName]) -> Sequence[CredentialRecord]:
        return list({each.id: each for name in names for each in credential_uses.left_for(tx, name)}.values())

    async def look(keys: Sequence[Key], dry_run: bool) -> Sequence[str]:  # noqa: FBT001 - DeletionWarnings
        left: Sequence[CredentialRecord] = ()
        with suppress(UnavailableError):  # the deletion is committed, and its answer must say so
            left = await store.read(read, [ClusterName(key.name) for key in keys])
        return [
            f"a deleted cluster can return with bootstrap credential {each.id} ({each.scope}): "
            f"hubctl revoke bootstrap-credential {each.id}"
            for each in left
            if not (dry_run and each.cluster)  # a dry run has not revoked those of one name
        ]

    return look


def _bound(shown: Resource, store: Store, own: str) -> Resource:
    actions = (STATUS, cluster_move(store, own), cluster_rotation(store, own))
    warnings = deletion_warnings(store)
    return replace(shown, extras=heartbeat_columns(store), subresources=actions, deletion_warnings=warnings)


MANAGED_CLUSTER = ResourceDefinition(
    Resource(
        group="cluster",
        version="v1",
        name="managedclusters",
        kind="ManagedCluster",
        short_names=("mcl", "mcls"),
        schema=SCHEMA,
        subresources=(STATUS,),
        counts_generations=True,
        columns=_COLUMNS,
        selectable=of_cluster,
        selectable_names=CLUSTER_FIELDS,
        field_aliases=CLUSTER_ALIASES,
        selectable_labels=CLUSTER_LABELS,
        where=where_of,
        order=sort_of,
    ),
    put=clusters.put,
    remove=clusters.remove,
    bind=_bound,
)
