"""A Kubernetes cluster in memory as the cert agent sees it, and the agent's book: each call can be made to fail."""

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hub.api.credentialissuers import Strategy
from hub.extensions.kube_cert_agent.cluster_client import ClusterClient, is_outdated
from hub.extensions.kube_cert_agent.controller import Book
from hub.extensions.kube_cert_agent.deployment import AgentDeploymentShape
from machinery.errors import MusterError, NotLeaderError
from machinery.meta.objects import Document

SHAPE = AgentDeploymentShape(
    namespace="muster",
    name="hub-kube-cert-agent",
    image="muster/hub:test",
    service_account="hub-kube-cert-agent",
    labels={"extra": "yes", "app": "hub"},
)
MOMENT = "2026-11-22T07:00:{:02d}Z"
FLAGS = ("--cluster-signing-cert-file=/pki/ca.crt", "--cluster-signing-key-file", "/pki/ca.key")


def pod(name: str, *, made: int = 0, phase: str = "Running", node: str = "", labels: Mapping[str, str] | None = None) -> Any:
    """`made`: seconds after a moment."""
    metadata = {"name": name, "uid": f"uid-of-{name}", "resourceVersion": "7", "labels": dict(labels or {})}
    metadata["creationTimestamp"] = MOMENT.format(made)
    spec: dict[str, Any] = {"nodeName": node} if node else {}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec, "status": {"phase": phase}}


def manager(name: str = "kcm", *, flags: Sequence[str] = FLAGS, **how: Any) -> Any:
    """A controller-manager's pod as kubeadm makes it."""
    found = pod(name, labels={"component": "kube-controller-manager"}, **how)
    mounts = [{"name": "pki", "mountPath": "/pki", "readOnly": True}, {"name": "flex", "mountPath": "/flex"}]
    container = {"name": "kcm", "command": ["kube-controller-manager", "--v=2"], "args": list(flags), "volumeMounts": mounts}
    volumes = [
        {"name": "pki", "hostPath": {"path": "/etc/kubernetes/pki", "type": "DirectoryOrCreate"}},
        {"name": "flex", "hostPath": {"path": "/usr/libexec", "type": ""}},
    ]
    shape = {"hostNetwork": True, "tolerations": [{"operator": "Exists"}], "nodeSelector": {"role": "control-plane"}}
    found["spec"] |= {"containers": [container], "volumes": volumes, **shape}
    return found


def node(name: str, *, takes_pods: bool = True) -> Any:
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name},
        "spec": {} if takes_pods else {"unschedulable": True},
    }


def info(kubeconfig: str | None = None) -> Any:
    """cluster-info, as kubeadm writes it."""
    cluster = {"server": "https://kube.example:6443", "certificate-authority-data": base64.b64encode(b"CA").decode()}
    text = json.dumps({"clusters": [{"name": "", "cluster": cluster}]}) if kubeconfig is None else kubeconfig
    return {"apiVersion": "v1", "kind": "ConfigMap", "data": {"kubeconfig": text}}


def printed(certificate: bytes, key: bytes) -> bytes:
    """What the agent prints."""
    return json.dumps({"tls.crt": base64.b64encode(certificate).decode(), "tls.key": base64.b64encode(key).decode()}).encode()


@dataclass
class HostInMemory(ClusterClient):
    """`failures`: what a call raises, by its name. `done`: writes, in their order, with the object that they were for."""

    managing: list[Any] = field(default_factory=lambda: [manager()])
    there: list[Any] = field(default_factory=list)
    deployed: Document | None = None
    owned_by: Document | None = None
    agents_pods: list[Any] = field(default_factory=lambda: [pod("agent", labels=SHAPE.pod_labels)])
    info: Any = field(default_factory=info)
    output: bytes = b""
    failures: dict[str, MusterError] = field(default_factory=dict)
    done: list[tuple[str, Any]] = field(default_factory=list)
    executed: list[str] = field(default_factory=list)

    def _called(self, name: str, written: Any = None) -> None:
        if written is not None:
            self.done.append((name, written))
        if name in self.failures:
            raise self.failures[name]

    async def managers(self) -> Sequence[Document]:
        self._called("managers")
        return self.managing

    async def nodes(self) -> Sequence[Document]:
        self._called("nodes")
        return self.there

    async def deployment(self) -> Document | None:
        self._called("deployment")
        return self.deployed

    async def owner(self) -> Document | None:
        self._called("owner")
        return self.owned_by

    async def create(self, deployment: dict[str, Any]) -> None:
        self._called("create", deployment)
        self.deployed = {**deployment, "metadata": {**deployment["metadata"], "uid": "new", "resourceVersion": "1"}}

    async def replace(self, deployment: dict[str, Any]) -> None:
        self._called("replace", deployment)
        self.deployed = deployment

    async def remove(self, deployment: Document) -> None:
        self._called("remove", deployment)
        self.deployed = None

    async def agents(self) -> Sequence[Document]:
        self._called("agents")
        return self.agents_pods

    async def cluster_info(self) -> Document:
        self._called("cluster_info")
        found: Document = self.info
        return found

    async def printed(self, pod: str) -> bytes:
        self.executed.append(pod)
        self._called("printed")
        return self.output

    async def pod(self, name: str) -> Document | None:
        self._called("pod")
        return next((each for each in self.agents_pods if each["metadata"]["name"] == name), None)

    async def remove_pod(self, pod: Document) -> None:
        self._called("remove_pod", pod)
        self.agents_pods = [each for each in self.agents_pods if each is not pod]

    def outdated(self) -> list[str]:
        return [each["metadata"]["name"] for each in self.agents_pods if is_outdated(each, SHAPE)]


@dataclass
class BookInMemory(Book):
    """What was told, the newest last."""

    leading: bool = True
    told: list[Strategy] = field(default_factory=list)
    failure: MusterError | None = None
    unreadable: MusterError | None = None

    def leads(self) -> bool:
        return self.leading

    async def look(self) -> None:
        if self.unreadable is not None:
            raise self.unreadable

    async def tell(self, strategy: Strategy) -> None:
        if self.failure is not None:
            raise self.failure
        if not self.leading:
            raise NotLeaderError("another replica leads")
        self.told.append(strategy)
