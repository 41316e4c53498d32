"""The resources of a hollow cluster, with the rules and table columns of a real API server.

No container runs. A Deployment gets its pods immediately; a StatefulSet gets none. Services, policies and routes are stored but
have no effect. RBAC roles have an effect.
"""

from dataclasses import replace
from functools import partial
from typing import Any

from machinery.apiserver.kinds import core
from machinery.apiserver.kinds.core import CONFIG_MAP, LEASE, SECRET, SERVICE_ACCOUNT
from machinery.apiserver.kinds.declaration import OPEN, TEXT, listing, record, value_at
from machinery.apiserver.kinds.events import EVENT
from machinery.apiserver.kinds.rbac import ROLES_AND_BINDINGS
from machinery.apiserver.resource import AGE, STATUS, ApiGroup, Column, Resource, TableRow

UNKNOWN = "<unknown>"
NONE = "<none>"


def _property(group: str, version: str, name: str, kind: str, *, longest: int) -> Resource:
    value = {"type": "string", "minLength": 1, "maxLength": longest}
    spec = {"type": "object", "properties": {"value": value}}
    return Resource(group=group, version=version, name=name, kind=kind, schema={"type": "object", "properties": {"spec": spec}})


def _stored(group: str, version: str, name: str, kind: str, *, custom: bool = False, **options: Any) -> Resource:
    named = {"group": group, "version": version, "name": name, "kind": kind}
    chosen: dict[str, Any] = {**named, "namespaced": True, "counts_generations": True, **options}
    return Resource(schema=OPEN, subresources=(STATUS,), custom=custom, **chosen)


_POD_FIELDS = (
    *("spec.nodeName", "spec.restartPolicy", "spec.schedulerName", "spec.serviceAccountName"),
    *("status.phase", "status.podIP"),
)
CLUSTER_CLAIM = _property("cluster.open-cluster-management.io", "v1alpha1", "clusterclaims", "ClusterClaim", longest=1024)
CLUSTER_PROPERTY = _property("about.k8s.io", "v1alpha1", "clusterproperties", "ClusterProperty", longest=128_000)
DEPLOYMENT = _stored("apps", "v1", "deployments", "Deployment", short_names=("deploy",), categories=("all",))
POD = _stored(
    "",
    "v1",
    "pods",
    "Pod",
    short_names=("po",),
    categories=("all",),
    counts_generations=False,
    selectable=lambda document: {field: str(value_at(document, *field.split(".")) or "") for field in _POD_FIELDS},
    selectable_names=_POD_FIELDS,
)
_WITHOUT_EFFECT = (
    _stored("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim"),
    _stored("", "v1", "services", "Service"),
    _stored("apiregistration.k8s.io", "v1", "apiservices", "APIService", namespaced=False),
    _stored("apps", "v1", "statefulsets", "StatefulSet"),
    _stored("batch", "v1", "cronjobs", "CronJob"),
    _stored("batch", "v1", "jobs", "Job"),
    _stored("gateway.networking.k8s.io", "v1", "gateways", "Gateway", custom=True),
    _stored("gateway.networking.k8s.io", "v1", "tlsroutes", "TLSRoute", custom=True),
    _stored("monitoring.coreos.com", "v1", "prometheusrules", "PrometheusRule", custom=True),
    _stored("monitoring.coreos.com", "v1", "servicemonitors", "ServiceMonitor", custom=True),
    _stored("monitoring.coreos.com", "v1", "podmonitors", "PodMonitor", custom=True),
    _stored("networking.k8s.io", "v1", "ingresses", "Ingress"),
    _stored("networking.k8s.io", "v1", "networkpolicies", "NetworkPolicy"),
    _stored("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget"),
)


_BY_TYPE = listing({**OPEN, "properties": {"type": TEXT}}, "type")
_ROLE = "node-role.kubernetes.io/"


def _status(row: TableRow) -> str:
    conditions = value_at(row.document, "status", "conditions") or ()
    ready = next((condition for condition in conditions if condition.get("type") == "Ready"), None)
    words = ["Unknown"] if ready is None else ["Ready" if ready.get("status") == "True" else "NotReady"]
    if value_at(row.document, "spec", "unschedulable"):
        words.append("SchedulingDisabled")
    return ",".join(words)


def _roles(row: TableRow) -> str:
    labels = value_at(row.document, "metadata", "labels") or {}
    return ",".join(sorted(label.removeprefix(_ROLE) for label in labels if label.startswith(_ROLE))) or NONE


def _address(row: TableRow, kind: str) -> str:
    addresses = value_at(row.document, "status", "addresses") or ()
    return next((str(address.get("address")) for address in addresses if address.get("type") == kind), NONE)


def _node_fact(row: TableRow, name: str, absent: str = UNKNOWN) -> str:
    return str(value_at(row.document, "status", "nodeInfo", name) or absent)


NODE = Resource(
    group="",
    version="v1",
    name="nodes",
    kind="Node",
    short_names=("no",),
    schema=record(
        "Node is a worker node in Kubernetes.",
        spec={**OPEN, "description": "Its desired state.", "properties": {"podCIDRs": listing(TEXT, kind="set")}},
        status={**OPEN, "description": "Its state.", "properties": {"addresses": _BY_TYPE, "conditions": _BY_TYPE}},
    ),
    subresources=(STATUS,),
    columns=(
        Column("Status", _status, description="The status of the node"),
        Column("Roles", _roles, description="The roles of the node"),
        AGE,
        Column(
            "Version",
            partial(_node_fact, name="kubeletVersion", absent=""),
            description="Kubelet Version reported by the node.",
        ),
        *(
            Column(name, cell, priority=1, description=description)
            for name, cell, description in (
                ("Internal-IP", partial(_address, kind="InternalIP"), "List of addresses reachable to the node."),
                ("External-IP", partial(_address, kind="ExternalIP"), "List of addresses reachable to the node."),
                ("OS-Image", partial(_node_fact, name="osImage"), "OS Image reported by the node."),
                ("Kernel-Version", partial(_node_fact, name="kernelVersion"), "Kernel Version reported by the node."),
                (
                    "Container-Runtime",
                    partial(_node_fact, name="containerRuntimeVersion"),
                    "ContainerRuntime Version reported by the node.",
                ),
            )
        ),
    ),
    selectable=lambda document: {"spec.unschedulable": str(bool(value_at(document, "spec", "unschedulable"))).lower()},
    selectable_names=("spec.unschedulable",),
    custom=False,
)


NAMESPACE = replace(core.NAMESPACE, held=lambda _document: False, prepare_delete=None)
"""A deleted namespace is removed immediately. The storage then deletes its content."""

_ALL: tuple[Resource, ...] = (
    *(CONFIG_MAP, EVENT, NAMESPACE, NODE, POD, SECRET, SERVICE_ACCOUNT),
    *(CLUSTER_PROPERTY, CLUSTER_CLAIM, DEPLOYMENT, LEASE),
    *_WITHOUT_EFFECT,
    *ROLES_AND_BINDINGS,
)
GROUPS = tuple(
    ApiGroup(name, tuple(resource for resource in _ALL if resource.group == name))
    for name in dict.fromkeys(resource.group for resource in _ALL)
)
