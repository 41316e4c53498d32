"""The initial objects of a hollow cluster. Pure: no clock and no randomness."""

import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from machinery.meta.timestamps import format_time

Document = dict[str, Any]

NAMESPACES = (
    "default",
    "kube-node-lease",
    "kube-public",
    "kube-system",
)
KUBERNETES_VERSION = "v1.34.2"
_IDENTITIES = uuid.UUID("6f1c7a52-8d0b-4c55-9c4e-0f6a4b1f7a10")
_KNOWN_CLAIMS = (
    ("id.k8s.io", "{uid}"),
    ("kubeversion.open-cluster-management.io", "{version}"),
    ("platform.open-cluster-management.io", "Hollow"),
    ("product.open-cluster-management.io", "Hollow"),
)


@dataclass(frozen=True, slots=True)
class ClusterShape:
    """Properties of a hollow cluster. The same name gives the same identities at every start."""

    name: str
    nodes: int = 3
    claims: int = 4
    version: str = KUBERNETES_VERSION

    def uid(self, resource: str, name: str) -> str:
        """Uid of the first object of that name, the same at every start of the cluster."""
        return str(uuid.uuid5(_IDENTITIES, f"{self.name}/{resource}/{name}"))

    @property
    def cluster_uid(self) -> str:
        """Uid of the namespace kube-system, the identity of the cluster."""
        return self.uid("namespaces", "kube-system")


def namespaces() -> Iterator[Document]:
    for name in NAMESPACES:
        yield {
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": {"name": name, "labels": {"kubernetes.io/metadata.name": name}},
            "spec": {"finalizers": ["kubernetes"]},
            "status": {"phase": "Active"},
        }


def service_account(namespace: str) -> Document:
    """The ServiceAccount that Kubernetes creates in every namespace."""
    metadata = {"name": "default", "namespace": namespace}
    return {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata}


def nodes(shape: ClusterShape, now: datetime) -> Iterator[Document]:
    for index in range(shape.nodes):
        yield node(shape, index, now)


def node(shape: ClusterShape, index: int, now: datetime) -> Document:
    """A node of 8 CPUs and 32 GiB; the first one is the control plane."""
    name = f"{shape.name}-node-{index}"
    role = {"node-role.kubernetes.io/control-plane": ""} if index == 0 else {}
    host = index + 2
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "labels": {"kubernetes.io/arch": "amd64", "kubernetes.io/hostname": name, "kubernetes.io/os": "linux", **role},
        },
        "spec": {"podCIDR": f"10.{host // 256}.{host % 256}.0/24", "providerID": f"hollow://{shape.name}/{name}"},
        "status": {
            "capacity": {"cpu": "8", "ephemeral-storage": "101430960Ki", "memory": "32893328Ki", "pods": "110"},
            "allocatable": {"cpu": "7910m", "ephemeral-storage": "93478772582", "memory": "31866256Ki", "pods": "110"},
            "conditions": [_node_condition(*condition, now) for condition in _NODE_CONDITIONS],
            "addresses": [
                {"type": "InternalIP", "address": f"172.18.{host // 256}.{host % 256}"},
                {"type": "Hostname", "address": name},
            ],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": 10250}},
            "nodeInfo": {
                "architecture": "amd64",
                "bootID": shape.uid("boot", name),
                "containerRuntimeVersion": "hollow://0",
                "kernelVersion": "6.12.0",
                "kubeProxyVersion": "",
                "kubeletVersion": shape.version,
                "machineID": shape.uid("machine", name).replace("-", ""),
                "operatingSystem": "linux",
                "osImage": "Hollow",
                "systemUUID": shape.uid("system", name),
            },
        },
    }


def claims(shape: ClusterShape) -> Iterator[Document]:
    """The well-known claims, then numbered ones."""
    values = {"uid": shape.cluster_uid, "version": shape.version}
    for index in range(shape.claims):
        if index < len(_KNOWN_CLAIMS):
            name, value = _KNOWN_CLAIMS[index]
        else:
            name, value = f"claim-{index}.hollow.example", str(index)
        yield claim(name, value.format(**values))


def claim(name: str, value: str) -> Document:
    return {
        "apiVersion": "cluster.open-cluster-management.io/v1alpha1",
        "kind": "ClusterClaim",
        "metadata": {"name": name},
        "spec": {"value": value},
    }


def version(shape: ClusterShape) -> Document:
    """Response of /version."""
    major, minor, *_ = shape.version.removeprefix("v").split(".")
    return {
        "major": major,
        "minor": minor,
        "gitVersion": shape.version,
        "gitCommit": "0000000000000000000000000000000000000000",
        "gitTreeState": "clean",
        "buildDate": "2026-01-01T00:00:00Z",
        "goVersion": "go1.24.9",
        "compiler": "gc",
        "platform": "linux/amd64",
    }


_NODE_CONDITIONS = (
    ("MemoryPressure", "False", "KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
    ("DiskPressure", "False", "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
    ("PIDPressure", "False", "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
    ("Ready", "True", "KubeletReady", "kubelet is posting ready status"),
)


def _node_condition(kind: str, status: str, reason: str, message: str, now: datetime) -> Document:
    moment = format_time(now)
    return {
        "type": kind,
        "status": status,
        "lastHeartbeatTime": moment,
        "lastTransitionTime": moment,
        "reason": reason,
        "message": message,
    }
