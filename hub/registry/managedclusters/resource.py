"""ManagedCluster as OCM serves it, with additional wide columns."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from hub.api.bootstrapcredentials import CredentialRecord
from hub.api.liveness import LastBeat
from hub.api.managedclusters import agent_annotations
from hub.api.managedclusters.agent_annotations import AgentHubState
from hub.api.managedclusters.availability import FLAPS_WITHIN
from hub.api.meta.change import MANAGED_CLUSTERS
from hub.api.query.parsing import sort_of, where_of
from hub.api.query.selection import CLUSTER_ALIASES, CLUSTER_FIELDS, CLUSTER_LABELS, of_cluster
from hub.ports import Store, Transaction
from hub.registry.certificatesigningrequests import credential_uses
from hub.registry.generic import declared
from hub.registry.generic.definition import ResourceDefinition
from hub.registry.managedclusters import service as clusters
from hub.registry.managedclusters.actions import cluster_move, cluster_rotation
from machinery.apiserver.resource import STATUS, Extras, Resource, TableRow
from machinery.apiserver.storage import Actor, DeletionWarnings
from machinery.durations import human_duration
from machinery.errors import UnavailableError
from machinery.identity import ClusterName
from machinery.meta.objects import Document, Key


def _urls(row: TableRow) -> str | None:
    configs = row.document.get("spec", {}).get("managedClusterClientConfigs") or []
    return ",".join(config.get("url", "") for config in configs) or None


def _flaps(row: TableRow) -> int:
    return int(row.extras.get("flaps") or 0)


def _last_beat(row: TableRow) -> str:
    moment = row.extras.get("last_beat")
    return human_duration((row.now - moment).total_seconds()) if moment is not None else "<none>"


def _certificate(row: TableRow) -> str:
    end = row.extras.get("certificate_end")
    if end is None:
        return "<none>"
    return human_duration((end - row.now).total_seconds()) if end > row.now else "expired"


def _hubs(row: TableRow) -> str:
    hubs = agent_annotations.hubs_of(row.document)
    return f"{sum(hub.get('state') == AgentHubState.READY for hub in hubs)}/{len(hubs)}" if hubs else "<none>"


def _agent(row: TableRow) -> str:
    """Return the agent's version. Only sessions record it: an agent with beats and no version uses the Kubernetes API."""
    version = row.extras.get("agent")
    if row.extras.get("session"):
        return str(version or "<unknown>")
    return "(driver csr)" if row.extras.get("last_beat") is not None and version is None else "(no session)"


def leased(resource: Resource, duration: timedelta) -> Resource:
    """Returns the resource with another default of `leaseDurationSeconds`."""
    seconds = round(duration.total_seconds())
    schema = deepcopy(dict(resource.schema))
    schema["properties"]["spec"]["properties"]["leaseDurationSeconds"]["default"] = seconds

    def with_default(new: Document, _actor: Actor, _now: datetime) -> Document:
        """Adds the default even without a spec, where the default of a schema does not apply."""
        return {**new, "spec": {"leaseDurationSeconds": seconds, **(new.get("spec") or {})}}

    return replace(resource, schema=schema, prepare_create=with_default)


def agent_columns(store: Store) -> Extras:
    """Return a function that reads, per cluster, last_beat, session (is open), agent (version), flaps and certificate_end."""

    async def look(keys: Sequence[Key]) -> Mapping[Key, Mapping[str, Any]]:
        return await store.read(_agent_facts, [ClusterName(key.name) for key in keys])

    return look


def _agent_facts(tx: Transaction, clusters: Sequence[ClusterName]) -> Mapping[Key, Mapping[str, Any]]:
    beats = {beat.cluster: beat for beat in tx.heartbeats.all(clusters)}
    falls, ends = tx.transitions.falls(tx.now - FLAPS_WITHIN, clusters), tx.certificates.ends(clusters)
    return {
        Key("", name): {
            "last_beat": (beat := beats.get(name, LastBeat(name, None, None, None))).at,
            "session": beat.session is not None,
            "agent": beat.agent_version,
            "flaps": len(falls.get(name, ())),
            "certificate_end": ends.get(name),
        }
        for name in clusters
    }


def deletion_warnings(store: Store) -> DeletionWarnings:
    """Return a function that warns of bootstrap credentials for several names: deleted clusters can register with them again.

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
            if not (dry_run and each.cluster)  # a deletion without dry run revokes these
        ]

    return look


def _bound(shown: Resource, store: Store, own: str) -> Resource:
    actions = (STATUS, cluster_move(store, own), cluster_rotation(store, own))
    warnings = deletion_warnings(store)
    return replace(shown, extras=agent_columns(store), subresources=actions, deletion_warnings=warnings)


MANAGED_CLUSTER = ResourceDefinition(
    declared(
        MANAGED_CLUSTERS,
        {
            "Managed Cluster URLs": _urls,
            "Hubs": _hubs,
            "Flaps": _flaps,
            "Last Beat": _last_beat,
            "Agent": _agent,
            "Certificate": _certificate,
        },
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
