"""The cert agent's calls to the Kubernetes cluster; the chart grants exactly these permissions."""

import base64
import binascii
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol

from hub.api.meta import document as doc
from hub.extensions.kube_cert_agent.deployment import CONTAINER, PROGRAM, SCHEMA, AgentDeploymentShape
from hub.extensions.kube_cert_agent.pods import LONGEST, instance
from machinery.client.exec import Container, execute
from machinery.client.ownership import owner_if_known
from machinery.client.reflector import ObjectKey, Reflector
from machinery.client.rest import KubeClient, Object, RestResource
from machinery.errors import InvalidError, NotFoundError
from machinery.meta import bounded_yaml as boundedyaml
from machinery.meta.bounded_yaml import YamlError
from machinery.meta.objects import Document

INFO_NAMESPACE, INFO_NAME, INFO_KEY = "kube-public", "cluster-info", "kubeconfig"


@dataclass(frozen=True, slots=True)
class ClusterInfo:
    """`authority`: PEM in base64, as in the ConfigMap."""

    server: str
    authority: str


def cluster_info(config_map: Document, server: str = "") -> ClusterInfo:
    """The first cluster entry; `server` overrides its server.

    Raises InvalidError; its message does not repeat the content, which may be long.
    """
    text = doc.mapping(config_map, "data").get(INFO_KEY)
    if not text:
        raise InvalidError(f'ConfigMap {INFO_NAMESPACE}/{INFO_NAME} has no key "{INFO_KEY}"')
    try:
        document = boundedyaml.load(str(text))
    except YamlError:
        document = None
    if not isinstance(document, dict):
        raise InvalidError(f'key "{INFO_KEY}" of ConfigMap {INFO_NAMESPACE}/{INFO_NAME} holds no kubeconfig')
    clusters = [entry.get("cluster") for entry in doc.sequence(document, "clusters") if isinstance(entry, dict)]
    found = next((cluster for cluster in clusters if isinstance(cluster, dict)), None)
    if found is None:
        raise InvalidError(f"the kubeconfig in ConfigMap {INFO_NAMESPACE}/{INFO_NAME} has no clusters")
    return ClusterInfo(server or str(found.get("server") or ""), _checked(str(found.get("certificate-authority-data") or "")))


def _checked(authority: str) -> str:
    try:
        base64.b64decode(authority, validate=True)
    except (binascii.Error, ValueError):
        raise InvalidError(f"certificate-authority-data in ConfigMap {INFO_NAMESPACE}/{INFO_NAME} is not base64") from None
    return authority


PODS, NODES = RestResource("", "v1", "pods"), RestResource("", "v1", "nodes")
CONFIG_MAPS, DEPLOYMENTS = RestResource("", "v1", "configmaps"), RestResource("apps", "v1", "deployments")
KUBE_SYSTEM, OUTDATED = "kube-system", "outdated pods"
MANAGERS = {"labelSelector": "component=kube-controller-manager"}
PRINT_WITHIN = timedelta(seconds=20)


class ClusterClient(Protocol):
    """All methods raise MusterError."""

    async def managers(self) -> Sequence[Document]:
        """The controller-manager pods."""

    async def nodes(self) -> Sequence[Document]: ...

    async def deployment(self) -> Document | None: ...

    async def owner(self) -> Document | None:
        """Owner reference to the hub's owner; None: there is none in the Deployment's namespace."""

    async def create(self, deployment: dict[str, Any]) -> None: ...

    async def replace(self, deployment: dict[str, Any]) -> None:
        """Update guarded by resourceVersion."""

    async def remove(self, deployment: Document) -> None:
        """Delete exactly the object that was read."""

    async def agents(self) -> Sequence[Document]:
        """The pods of the Deployment's current form."""

    async def cluster_info(self) -> Document: ...

    async def printed(self, pod: str) -> bytes:
        """The output of `print` in a pod."""

    async def pod(self, name: str) -> Document | None:
        """A pod in the Deployment's namespace."""

    async def remove_pod(self, pod: Document) -> None:
        """Delete exactly the object that was read."""


def collections_of(shape: AgentDeploymentShape) -> Mapping[str, tuple[str, Mapping[str, str]]]:
    """Path and query of each watched collection, by name."""
    [(label, _)] = shape.selector.items()
    kept = [f"{key}={value}" for key, value in sorted(shape.labels.items())]
    pods, deployments = PODS.path(namespace=shape.namespace), DEPLOYMENTS.path(namespace=shape.namespace)
    return {
        "managers": (PODS.path(namespace=KUBE_SYSTEM), MANAGERS),
        "deployments": (deployments, {"fieldSelector": f"metadata.name={shape.name}"}),
        "agents": (pods, {"labelSelector": f"{label}={SCHEMA}"}),
        OUTDATED: (pods, {"labelSelector": ",".join((label, f"{label}!={SCHEMA}", *kept))}),
        "cluster info": (CONFIG_MAPS.path(namespace=INFO_NAMESPACE), {"fieldSelector": f"metadata.name={INFO_NAME}"}),
    }


class HostCluster(ClusterClient):
    """Client over the cluster's API. `pod`: the hub's own, if it runs in the Deployment's namespace."""

    def __init__(self, client: KubeClient, shape: AgentDeploymentShape, pod: str | None = None) -> None:
        self._client = client
        self._shape = shape
        self._pod = pod
        self._owner: Document | None = None
        self._watched = collections_of(shape)

    async def managers(self) -> Sequence[Document]:
        return await self._client.list(*self._watched["managers"])

    async def nodes(self) -> Sequence[Document]:
        return await self._client.list(NODES.path())

    async def deployment(self) -> Document | None:
        return await self._found(self._path())

    async def owner(self) -> Document | None:
        if self._pod is not None and self._owner is None:
            self._owner = await owner_if_known(self._client, self._shape.namespace, self._pod, of="Deployment")
            if self._owner is None:
                self._pod = None
        return self._owner

    async def create(self, deployment: dict[str, Any]) -> None:
        await self._client.create(DEPLOYMENTS.path(namespace=self._shape.namespace), deployment)

    async def replace(self, deployment: dict[str, Any]) -> None:
        await self._client.update(self._path(), deployment)

    async def remove(self, deployment: Document) -> None:
        await self._client.delete(self._path(), _only(deployment))

    async def agents(self) -> Sequence[Document]:
        return await self._client.list(*self._watched["agents"])

    async def cluster_info(self) -> Document:
        return await self._client.get(CONFIG_MAPS.path(INFO_NAME, namespace=INFO_NAMESPACE))

    async def printed(self, pod: str) -> bytes:
        container = Container(self._shape.namespace, pod, CONTAINER)
        return await execute(self._client, container, (*PROGRAM, "print"), within=PRINT_WITHIN, limit=LONGEST)

    async def pod(self, name: str) -> Document | None:
        return await self._found(PODS.path(name, namespace=self._shape.namespace))

    async def remove_pod(self, pod: Document) -> None:
        await self._client.delete(PODS.path(doc.name(pod), namespace=self._shape.namespace), _only(pod))

    def _path(self) -> str:
        return DEPLOYMENTS.path(self._shape.name, namespace=self._shape.namespace)

    async def _found(self, path: str) -> Document | None:
        try:
            return await self._client.get(path)
        except NotFoundError:
            return None


def _only(existing: Document) -> Object:
    """DeleteOptions with preconditions: a changed or recreated object is not deleted."""
    metadata = doc.mapping(existing, "metadata")
    conditions = {"uid": metadata.get("uid"), "resourceVersion": metadata.get("resourceVersion")}
    return {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": conditions}


def is_outdated(pod: Document, shape: AgentDeploymentShape) -> bool:
    """Whether a pod is of an older form of this Deployment and has all its labels."""
    [(label, value)] = shape.selector.items()
    found = doc.labels(pod)
    return found.get(label, value) != value and shape.labels.items() <= found.items()


def mirrors(
    client: KubeClient, shape: AgentDeploymentShape, look: Callable[[], None], clean: Callable[[str], None]
) -> Mapping[str, Reflector[Any]]:
    """A mirror of each watched collection, by its name.

    `look` is called on every relevant change, `clean` with the name of each pod of an older form.
    """
    kept = {"deployments": _written, "cluster info": lambda config_map: dict(doc.mapping(config_map, "data"))}

    def changed(_key: ObjectKey, _value: object) -> None:
        look()

    def outdated(key: ObjectKey, value: object) -> None:
        if value is not None:
            clean(key.name)

    return {
        name: Reflector(client, path, kept.get(name, _life), query=query, on_change=outdated if name == OUTDATED else changed)
        for name, (path, query) in collections_of(shape).items()
    }


def _life(pod: Document) -> object:
    """Identity and state of a pod."""
    where = doc.mapping(pod, "spec").get("nodeName")
    return instance(pod), doc.mapping(pod, "status").get("phase"), doc.is_deleting(pod), where


def _written(deployment: Document) -> object:
    """The Deployment without its status, which changes often and is irrelevant here."""
    return {"labels": doc.labels(deployment), "spec": dict(doc.mapping(deployment, "spec"))}
