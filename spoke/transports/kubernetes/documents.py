"""Kubernetes API documents as OCM's agent writes and reads them; pure functions.

The agent owns some fields of its ManagedCluster: the conditions that it reports, capacity, allocatable, version and claims, the
client configs with its own URLs, and the annotations with its prefix. It leaves all other fields unchanged.
"""

from base64 import b64decode, b64encode
from binascii import Error as Base64Error
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from machinery.client.rest import Object, RestResource
from machinery.identity import ClusterName
from machinery.meta.conditions import FALSE, HUB_ACCEPTED, TRUE, Condition, find, with_condition
from machinery.meta.timestamps import format_micro_time
from spoke.domain.addon import AddOn
from spoke.domain.report import NORMAL, WARNING, AgentEvent, ClusterReport, ExternalEndpoint, ManagedNamespace
from spoke.ports.hub import CSRState, Desired

CLUSTER_LABEL = "open-cluster-management.io/cluster-name"
ADDON_LABEL = "open-cluster-management.io/addon-name"
AGENT_ANNOTATIONS = "agent.open-cluster-management.io"
CLUSTER_UID = "hub.open-cluster-management.io/cluster-uid"
"""Annotation with the UID of the managed cluster's kube-system namespace. It distinguishes two clusters with the same name."""
RECOVERY = "hub.open-cluster-management.io/recovery-certificate"
LEASE_NAME = "managed-cluster-lease"
NODES = "nodes"
USAGES = ("digital signature", "key encipherment", "client auth")
REPORTER = "registration-agent"
DEFAULT_LEASE = timedelta(seconds=60)

REQUESTS = RestResource("certificates.k8s.io", "v1", "certificatesigningrequests")
LEASES = RestResource("coordination.k8s.io", "v1", "leases")
EVENTS = RestResource("events.k8s.io", "v1", "events")


def section(document: Mapping[str, Any] | None, *path: str) -> Mapping[str, Any]:
    """Return the mapping at `path`; empty if there is none."""
    for step in path:
        inner = (document or {}).get(step)
        document = inner if isinstance(inner, Mapping) else {}
    return document or {}


def entries(holder: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    """Return the mappings in the list `name` of `holder`; empty if there is no such list."""
    listed = holder.get(name)
    return [entry for entry in listed if isinstance(entry, Mapping)] if isinstance(listed, list) else []


def own_annotations(annotations: Mapping[str, str], cluster_uid: str) -> dict[str, str]:
    """Return those `annotations` that an agent may set, and the annotation with the UID of its cluster."""
    kept = {name: value for name, value in annotations.items() if name.startswith(AGENT_ANNOTATIONS)}
    return {**kept, CLUSTER_UID: cluster_uid} if cluster_uid else kept


def new_cluster(
    group: str,
    name: ClusterName,
    annotations: Mapping[str, str],
    endpoints: Sequence[ExternalEndpoint],
    labels: Mapping[str, str],
) -> Object:
    """Return the ManagedCluster that a registration creates. The hub later sets acceptance and lease duration."""
    configs = {"managedClusterClientConfigs": _configs([], endpoints)} if endpoints else {}
    return {
        "apiVersion": f"{group}/v1",
        "kind": "ManagedCluster",
        "metadata": {"name": name, "annotations": dict(annotations), **({"labels": dict(labels)} if labels else {})},
        "spec": {"hubAcceptsClient": False, **configs},
    }


def maintained_cluster(present: Object, annotations: Mapping[str, str], endpoints: Sequence[ExternalEndpoint]) -> Object:
    """Return `present` with the agent's fields of metadata and spec updated. Equal to `present` if no write is needed."""
    metadata, spec = dict(present["metadata"]), dict(section(present, "spec"))
    notes = {**section(metadata, "annotations"), **annotations}
    if notes:
        metadata["annotations"] = notes
    if endpoints:
        spec["managedClusterClientConfigs"] = _configs(entries(spec, "managedClusterClientConfigs"), endpoints)
    return {**present, "metadata": metadata, "spec": spec}


def _configs(present: Sequence[Mapping[str, Any]], endpoints: Sequence[ExternalEndpoint]) -> list[dict[str, Any]]:
    """Return the client configs. Other URLs stay; the agent's URLs get their CA bundle."""
    ours = {endpoint.url: _config(endpoint) for endpoint in endpoints}
    kept = [ours.pop(str(entry.get("url")), dict(entry)) for entry in present]
    return [*kept, *ours.values()]


def _config(endpoint: ExternalEndpoint) -> dict[str, Any]:
    bundle = {"caBundle": b64encode(endpoint.ca_bundle).decode()} if endpoint.ca_bundle else {}
    return {"url": endpoint.url, **bundle}


def is_another(cluster: Object, cluster_uid: str) -> bool:
    """Whether the ManagedCluster states another UID than `cluster_uid`."""
    return str(section(cluster, "metadata", "annotations").get(CLUSTER_UID) or cluster_uid) != cluster_uid


def desired_of(cluster: Object | None, add_ons: Iterable[AddOn] | None) -> Desired:
    """Return the state that the hub wants. `cluster` None: unreadable, so not accepted. `add_ons` None: unreadable now."""
    spec, metadata = section(cluster, "spec"), section(cluster, "metadata")
    reported = find(entries(section(cluster, "status"), "conditions"), HUB_ACCEPTED)
    seconds = spec.get("leaseDurationSeconds")
    return Desired(
        accepted=spec.get("hubAcceptsClient") is True and (reported is None or reported.status != FALSE),
        lease_duration=timedelta(seconds=seconds) if isinstance(seconds, int) and seconds > 0 else DEFAULT_LEASE,
        addons=tuple(sorted(add_ons or (), key=lambda addon: addon.name)),
        deleting="deletionTimestamp" in metadata,
        addons_known=add_ons is not None,
        namespaces=tuple(managed_namespace(entry) for entry in entries(section(cluster, "status"), "managedNamespaces")),
    )


def status_patch(present: Object, report: ClusterReport, now: datetime) -> Object:
    """Return the merge patch from `present` to `report`; empty: they agree.

    The patch contains the resourceVersion of `present` as a precondition.
    """
    status = section(present, "status")
    changes = changed_conditions(status, report.conditions, now)
    if report.complete:
        changes |= _resources(status, report)
    if report.namespaces:
        changes |= _namespaces(status, report, now)
    return patch_of(present, changes)


def changed_conditions(status: Mapping[str, Any], conditions: Iterable[Condition], now: datetime) -> Object:
    before = entries(status, "conditions")
    after: Sequence[Mapping[str, Any]] = before
    for condition in conditions:
        after = with_condition(after, condition, now)
    return {} if after == before else {"conditions": list(after)}


def patch_of(present: Object, changes: Object) -> Object:
    metadata = {key: present["metadata"][key] for key in ("uid", "resourceVersion")}
    return {"metadata": metadata, "status": changes} if changes else {}


def _resources(status: Mapping[str, Any], report: ClusterReport) -> Object:
    capacity = {**report.capacity, NODES: str(report.node_count)}
    claims = [{"name": claim.name, "value": claim.value} for claim in report.claims]
    before, allocatable = section(status, "capacity"), section(status, "allocatable")
    # The agent wrote the entries that are in both capacity and allocatable. Other writers add entries only to capacity.
    vanished = {name: None for name in before if name in allocatable and name not in capacity}
    wanted: Object = {
        "capacity": {**_differing(before, capacity), **vanished},
        "allocatable": {
            **_differing(allocatable, report.allocatable),
            **{name: None for name in allocatable if name not in report.allocatable},
        },
        "version": _differing(section(status, "version"), {"kubernetes": report.kubernetes_version}),
    }
    changes = {field: value for field, value in wanted.items() if value}
    return changes if claims == status.get("clusterClaims", []) else {**changes, "clusterClaims": claims}


def _namespaces(status: Mapping[str, Any], report: ClusterReport, now: datetime) -> Object:
    """Return the managed namespaces with the reported conditions. Entries that the report does not contain stay unchanged."""
    before, reported = entries(status, "managedNamespaces"), {each.namespace: each.condition for each in report.namespaces}
    after = []
    for entry in before:
        condition = reported.get(managed_namespace(entry))
        known = entries(entry, "conditions")
        after.append({**entry, "conditions": with_condition(known, condition, now)} if condition else dict(entry))
    return {} if after == before else {"managedNamespaces": after}


def managed_namespace(entry: Mapping[str, Any]) -> ManagedNamespace:
    """Parse one entry of a ManagedCluster's `status.managedNamespaces`."""
    return ManagedNamespace(str(entry.get("name") or ""), str(entry.get("clusterSet") or ""))


def _differing(present: Mapping[str, Any], wanted: Mapping[str, str]) -> Object:
    return {name: value for name, value in wanted.items() if present.get(name) != value}


def renewed(lease: Object, now: datetime) -> Object:
    """Return the Lease with a new renewTime."""
    return {**lease, "spec": {**section(lease, "spec"), "renewTime": format_micro_time(now)}}


def availability_event(cluster: Object, available: Condition, agent: str, now: datetime) -> Object:
    """Return the Event about the changed condition `available` of a ManagedCluster, with OCM's text."""
    name = str(cluster["metadata"]["name"])
    good = available.status == TRUE
    how = "successfully imported, and it is managed by the hub cluster. Its apiserver is available"
    note = f"The {name} is {how}." if good else f"The {name} is not available: {available.message}"
    news = AgentEvent("Available" if good else "Unavailable", note, NORMAL if good else WARNING)
    return event(cluster, "ManagedCluster", news, agent, now)


def event(about: Object, kind: str, news: AgentEvent, agent: str, now: datetime) -> Object:
    """Return the Event `news` about `about`, a ManagedCluster or an add-on (`kind`), in the namespace of the cluster."""
    metadata = section(about, "metadata")
    name = str(metadata.get("name") or "")
    namespace = str(metadata.get("namespace") or name)
    regarding = {"apiVersion": about.get("apiVersion"), "kind": kind, "name": name, "namespace": namespace}
    return {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"generateName": f"{name}-", "namespace": namespace},
        "eventTime": format_micro_time(now),
        "reportingController": REPORTER,
        "reportingInstance": f"{REPORTER}-{agent}"[:128],
        "action": news.reason,
        "reason": news.reason,
        "type": news.type,
        "note": news.message[:1024],
        "regarding": {**regarding, "uid": metadata.get("uid")},
    }


def new_request(name: str, labels: Mapping[str, str], request: bytes, signer: str, duration: timedelta | None) -> Object:
    """Return a CertificateSigningRequest for the CSR `request` (PEM), as OCM's agent creates it."""
    seconds = {"expirationSeconds": round(duration.total_seconds())} if duration is not None else {}
    return {
        "apiVersion": "certificates.k8s.io/v1",
        "kind": "CertificateSigningRequest",
        "metadata": {"name": name, "labels": dict(labels)},
        "spec": {"request": b64encode(request).decode(), "signerName": signer, "usages": list(USAGES), **seconds},
    }


def decoded(text: object) -> bytes:
    """Decode base64. Return empty bytes if it is invalid."""
    try:
        return b64decode(text, validate=True) if isinstance(text, str) else b""
    except Base64Error:
        return b""


def request_state(document: Object, certificate: bytes, now: datetime) -> CSRState:
    """Return the state of a request. `certificate`: its decoded certificate; `now`: the hub's time."""
    conditions = entries(section(document, "status"), "conditions")
    for kind, state in (("Denied", "denied"), ("Failed", "failed")):
        if (found := find(conditions, kind)) is not None:
            return CSRState(state, found.reason, found.message)
    if find(conditions, "Approved") is None:
        return CSRState("pending")
    if not certificate:
        return CSRState("approved")
    recovery = str(section(document, "metadata", "annotations").get(RECOVERY) or "")
    return CSRState("issued", certificate=certificate, recovery_certificate=recovery.encode(), hub_time=now)
