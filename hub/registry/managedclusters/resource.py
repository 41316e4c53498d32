"""ManagedCluster as OCM serves it. Columns beyond OCM's are wide; the last two come from the heartbeats."""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from hub.api.liveness import DEFAULT_LEASE_DURATION, LastBeat
from hub.api.managedclusters import admission, agent_annotations as reported
from hub.api.managedclusters.agent_annotations import AgentHubState
from hub.api.managedclusters.cluster import NODES
from hub.api.query.parsing import sort_of, where_of
from hub.api.query.selection import CLUSTER_ALIASES, CLUSTER_FIELDS, CLUSTER_LABELS, of_cluster
from hub.ports import Store, Transaction
from hub.registry.generic.definition import ResourceDefinition
from hub.registry.generic.schemas import (
    CONDITIONS_OF_TYPE,
    DNS_LABEL,
    MOMENT,
    NAME,
    QUALIFIED_NAME,
    TEXT,
    Schema,
    condition_column,
    described,
    listing,
    record,
)
from hub.registry.managedclusters import service as clusters
from hub.registry.managedclusters.actions import cluster_move, cluster_rotation
from machinery.apiserver.resource import STATUS, Column, Extras, Resource, TableRow, age_of
from machinery.apiserver.storage import Actor
from machinery.durations import human_duration
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
_TAINTS = listing(
    record(
        "",
        (
            "effect",
            "key",
        ),
        effect={
            **TEXT,
            "description": "effect on placements that do not tolerate the taint.",
            "enum": list(admission.TAINT_EFFECTS),
        },
        key={
            **TEXT,
            "description": "key of the taint, such as foo.example.com/bar.",
            "maxLength": 316,
            "pattern": QUALIFIED_NAME,
        },
        timeAdded={**MOMENT, "description": "when the taint was added.", "nullable": True},
        value={**TEXT, "description": "value that belongs to the key.", "maxLength": 1024},
    ),
    description="taints repel the cluster from placements that do not tolerate them.",
)
_SPEC = record(
    "Spec represents a desired configuration for the agent on the managed cluster.",
    hubAcceptsClient={
        "description": "hubAcceptsClient says whether the hub accepts that the agent of this cluster joins. The other "
        "half of the double opt-in is the approval of its certificate signing request.",
        "type": "boolean",
    },
    leaseDurationSeconds={
        "description": "leaseDurationSeconds is how often the agent shows that it lives; after five times as long "
        "without a sign it is unknown whether the cluster is available.",
        "type": "integer",
        "format": "int32",
        "default": round(DEFAULT_LEASE_DURATION.total_seconds()),
    },
    managedClusterClientConfigs=listing(
        record(
            "",
            ("url",),
            caBundle={**TEXT, "format": "byte", "description": "CA bundle of the API server."},
            url=described(TEXT, "URL of the API server of the managed cluster."),
        ),
        description="managedClusterClientConfigs are the addresses of the managed cluster's API server.",
    ),
    taints=_TAINTS,
)
_STATUS = record(
    "Status represents the current status of the joined managed cluster.",
    allocatable=described(_QUANTITIES, "what pods may use of the cluster's resources."),
    capacity=described(_QUANTITIES, "the resources of all nodes together."),
    clusterClaims=listing(
        record(name={**NAME, "maxLength": 253}, value={**NAME, "maxLength": 1024}),
        description="facts that the managed cluster tells about itself.",
    ),
    conditions=listing(
        record(
            "",
            (
                "lastTransitionTime",
                "message",
                "reason",
                "status",
                "type",
            ),
            lastTransitionTime=MOMENT,
            message={**TEXT, "maxLength": 32768},
            observedGeneration={"type": "integer", "format": "int64", "minimum": 0},
            reason={**NAME, "maxLength": 1024, "pattern": "^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$"},
            status={**TEXT, "enum": ["True", "False", "Unknown"]},
            type={**TEXT, "maxLength": 316, "pattern": QUALIFIED_NAME},
        ),
        "type",
        description="conditions: accepted, joined, available, clock synced.",
    ),
    managedNamespaces=listing(
        record(
            "",
            (
                "clusterSet",
                "name",
            ),
            clusterSet=TEXT,
            name=DNS_LABEL,
            conditions=CONDITIONS_OF_TYPE,
        ),
        "clusterSet",
        "name",
        description="namespaces managed by the cluster sets that the cluster belongs to.",
    ),
    version=record("version of the managed cluster.", kubernetes=described(TEXT, "its Kubernetes version.")),
)
SCHEMA: Schema = record(
    "ManagedCluster represents the desired state and current status of a managed cluster. Joining is "
    "a double opt-in: the hub accepts the cluster (spec.hubAcceptsClient) and approves its "
    "certificate signing request.",
    spec=_SPEC,
    status=_STATUS,
)


def _urls(row: TableRow) -> str | None:
    configs = row.document.get("spec", {}).get("managedClusterClientConfigs") or []
    return ",".join(config.get("url", "") for config in configs) or None


def _path(path: str) -> str:
    return f"Custom resource definition column (in JSONPath format): {path}"


def _last_beat(row: TableRow) -> str:
    moment = row.extras.get("last_beat")
    return human_duration((row.now - moment).total_seconds()) if moment is not None else "<none>"


def _hubs(row: TableRow) -> str:
    hubs = reported.hubs_of(row.document)
    return f"{sum(hub.get('state') == AgentHubState.READY for hub in hubs)}/{len(hubs)}" if hubs else "<none>"


def _flaps(row: TableRow) -> int:
    return int(row.extras.get("flaps") or 0)


def _agent(row: TableRow) -> str:
    return str(row.extras.get("agent") or "<unknown>") if row.extras.get("session") else "(no session)"


_COLUMNS = (
    Column(
        "Hub Accepted",
        lambda row: row.document.get("spec", {}).get("hubAcceptsClient"),
        type="boolean",
        description=_path(".spec.hubAcceptsClient"),
    ),
    Column("Managed Cluster URLs", _urls, description=_path(".spec.managedClusterClientConfigs[*].url")),
    condition_column("Joined", conditions.JOINED),
    condition_column("Available", conditions.AVAILABLE),
    Column(
        "Age",
        lambda row: age_of(row.document["metadata"].get("creationTimestamp"), row.now),
        type="date",
        description=_path(".metadata.creationTimestamp"),
    ),
    Column(
        "Version",
        lambda row: row.document.get("status", {}).get("version", {}).get("kubernetes"),
        description="Kubernetes version of the managed cluster.",
        priority=1,
    ),
    Column(
        "Nodes",
        lambda row: row.document.get("status", {}).get("capacity", {}).get(NODES),
        description="How many nodes the managed cluster has.",
        priority=1,
    ),
    Column("Hubs", _hubs, description="How many of the hubs that the agent may go to are ready for it.", priority=1),
    Column("Flaps", _flaps, type="integer", description="How often it ceased to be Available within a day.", priority=1),
    Column("Last Beat", _last_beat, description="How long ago the agent was heard.", priority=1),
    Column("Agent", _agent, description="Version of the agent whose session is open.", priority=1),
)


def leased(resource: Resource, duration: timedelta) -> Resource:
    """Returns the resource with another default of `leaseDurationSeconds`."""
    seconds = round(duration.total_seconds())
    schema = deepcopy(dict(resource.schema))
    schema["properties"]["spec"]["properties"]["leaseDurationSeconds"]["default"] = seconds

    def with_default(new: Document, _actor: Actor, _now: datetime) -> Document:
        """Adds the default even if there is no spec, which a schema's default does not do."""
        return {**new, "spec": {"leaseDurationSeconds": seconds, **(new.get("spec") or {})}}

    return replace(resource, schema=schema, prepare_create=with_default)


FEW = 8
FLAPS_OF = timedelta(days=1)


def heartbeat_columns(store: Store) -> Extras:
    """Returns per cluster `last_beat` (an instant, or None), `session` (whether one is open), `agent` (its version, or None).

    `flaps`: how often Available was lost within a day.
    """

    async def look(keys: Sequence[Key]) -> Mapping[Key, Mapping[str, Any]]:
        beats, falls = await store.read(_look, [ClusterName(key.name) for key in keys])
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


def _look(
    tx: Transaction, clusters: Sequence[ClusterName]
) -> tuple[Sequence[LastBeat], Mapping[ClusterName, Sequence[datetime]]]:
    return _beats(tx, clusters), tx.transitions.falls(tx.now - FLAPS_OF, clusters)


def _beats(tx: Transaction, clusters: Sequence[ClusterName]) -> Sequence[LastBeat]:
    if len(clusters) > FEW:
        return tx.heartbeats.all()
    found = (tx.heartbeats.of(cluster) for cluster in clusters)
    return [beat for beat in found if beat is not None]


def _bound(shown: Resource, store: Store, own: str) -> Resource:
    actions = (STATUS, cluster_move(store, own), cluster_rotation(store, own))
    return replace(shown, extras=heartbeat_columns(store), subresources=actions)


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
