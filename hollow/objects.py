"""Objects of a hollow cluster: those that a new cluster and its control plane have, and the pods of a Deployment."""

import base64
import hashlib
import json
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from machinery.errors import InvalidError
from machinery.meta.timestamps import format_time

Document = dict[str, Any]

NAMESPACES = ("default", "kube-node-lease", "kube-public", "kube-system")
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
    """Properties of a hollow cluster. A cluster with the same name has the same uids at every start."""

    name: str
    nodes: int = 3
    claims: int = 4
    version: str = KUBERNETES_VERSION

    def uid(self, resource: str, name: str) -> str:
        """Return the uid for the first object that gets this name. The uid is the same at every start of the cluster."""
        return str(uuid.uuid5(_IDENTITIES, f"{self.name}/{resource}/{name}"))

    @property
    def cluster_uid(self) -> str:
        """The uid of the namespace kube-system, which identifies the cluster."""
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


def cluster_admin() -> Document:
    """Return the ClusterRole that every cluster has for administrators."""
    rules = [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}, {"nonResourceURLs": ["*"], "verbs": ["*"]}]
    metadata = {"name": "cluster-admin"}
    return {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": metadata, "rules": rules}


def service_account(namespace: str) -> Document:
    """Return the ServiceAccount `default`, which Kubernetes creates in every namespace."""
    metadata = {"name": "default", "namespace": namespace}
    return {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata}


def node(shape: ClusterShape, index: int, now: datetime) -> Document:
    """Return a node with 8 CPUs and 32 GiB. The first node is the control plane."""
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
    """Yield the ClusterClaims of a new cluster: the well-known claims, then claims with numbered names."""
    values = {"uid": shape.cluster_uid, "version": shape.version}
    for index in range(shape.claims):
        if index < len(_KNOWN_CLAIMS):
            name, value = _KNOWN_CLAIMS[index]
        else:
            name, value = f"claim-{index}.hollow.example", str(index)
        yield {
            "apiVersion": "cluster.open-cluster-management.io/v1alpha1",
            "kind": "ClusterClaim",
            "metadata": {"name": name},
            "spec": {"value": value.format(**values)},
        }


def version(shape: ClusterShape) -> Document:
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


PKI = "/etc/kubernetes/pki"
CA_CERTIFICATE, CA_KEY = f"{PKI}/ca.crt", f"{PKI}/ca.key"
MANAGER = "kube-controller-manager"
MANAGER_NAMESPACE, INFO_NAMESPACE, INFO = "kube-system", "kube-public", "cluster-info"


def manager_name(shape: ClusterShape) -> str:
    """Return the name of the controller-manager's pod, as kubelets name static pods."""
    return f"{MANAGER}-{shape.name}-node-0"


def manager_pod(shape: ClusterShape) -> Document:
    """Return the controller-manager's pod on the first node, with kubeadm's flags and mounts."""
    flags = ("--use-service-account-credentials=true", f"--cluster-signing-cert-file={CA_CERTIFICATE}")
    container = {
        "name": MANAGER,
        "image": f"registry.k8s.io/{MANAGER}:{shape.version}",
        "command": [MANAGER, *flags, f"--cluster-signing-key-file={CA_KEY}"],
        "volumeMounts": [{"name": "k8s-certs", "mountPath": PKI, "readOnly": True}],
    }
    spec = {
        "containers": [container],
        "volumes": [{"name": "k8s-certs", "hostPath": {"path": PKI, "type": "DirectoryOrCreate"}}],
        "hostNetwork": True,
        "nodeName": f"{shape.name}-node-0",
        "priorityClassName": "system-node-critical",
        "tolerations": [{"effect": "NoExecute", "operator": "Exists"}],
    }
    metadata = {
        "name": manager_name(shape),
        "namespace": MANAGER_NAMESPACE,
        "labels": {"component": MANAGER, "tier": "control-plane"},
    }
    status = {"phase": "Running", "containerStatuses": [_container_status(container)]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec, "status": status}


def _container_status(container: Mapping[str, Any]) -> Document:
    return {"name": container["name"], "image": container.get("image", ""), "imageID": "", "ready": True, "restartCount": 0}


def restarted(pod: Mapping[str, Any]) -> Document:
    """Return the pod as it is after one more restart of its only container."""
    [status] = pod["status"]["containerStatuses"]
    again = {**status, "restartCount": int(status["restartCount"]) + 1}
    return {**pod, "status": {**pod["status"], "containerStatuses": [again]}}


def cluster_info(server: str, authority: bytes) -> Document:
    """Return the ConfigMap cluster-info as kubeadm publishes it: a kubeconfig without a user, in JSON, which is valid YAML."""
    cluster: dict[str, Any] = {"server": server, "certificate-authority-data": base64.b64encode(authority).decode()}
    kubeconfig = {"apiVersion": "v1", "kind": "Config", "clusters": [{"name": "", "cluster": cluster}]}
    metadata = {"name": INFO, "namespace": INFO_NAMESPACE}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"kubeconfig": json.dumps(kubeconfig)}}


HASH_LENGTH = 10


def pods_of(deployment: Mapping[str, Any], nodes: Sequence[Mapping[str, Any]]) -> list[Document]:
    """Return a Deployment's pods. Their names depend on the template. Raises InvalidError if selector and labels do not match.

    The pods run on the node that the template names, or on the first schedulable node. Without a node they are Pending.
    """
    metadata, spec = deployment["metadata"], deployment["spec"]
    template = spec.get("template") or {}
    labels = (template.get("metadata") or {}).get("labels") or {}
    selected = (spec.get("selector") or {}).get("matchLabels") or {}
    if not selected or not selected.items() <= labels.items():
        raise InvalidError("spec.template.metadata.labels: `selector` does not match template `labels`")
    free = (node["metadata"]["name"] for node in nodes if not (node.get("spec") or {}).get("unschedulable"))
    node = str((template.get("spec") or {}).get("nodeName") or next(free, ""))
    digest = hashlib.sha256(json.dumps(template, sort_keys=True).encode()).hexdigest()[:HASH_LENGTH]
    names = (f"{metadata['name']}-{digest}-{number}" for number in range(int(spec.get("replicas", 1))))
    return [_pod(deployment, name, labels, node) for name in names]


def _pod(deployment: Mapping[str, Any], name: str, labels: Document, node: str) -> Document:
    metadata, template = deployment["metadata"], deployment["spec"]["template"]
    owner = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "name": metadata["name"],
        "uid": metadata["uid"],
        "controller": True,
    }
    statuses = [_container_status(container) for container in template["spec"].get("containers") or ()]
    status = {"phase": "Running", "containerStatuses": statuses} if node else {"phase": "Pending"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": metadata["namespace"], "labels": labels, "ownerReferences": [owner]},
        "spec": {**template["spec"], "nodeName": node},
        "status": status,
    }
