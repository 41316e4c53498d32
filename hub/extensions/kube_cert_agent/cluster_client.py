"""The cert agent's calls to the Kubernetes cluster; the chart grants exactly these permissions.

The output of `print` in the agent's pod contains the CA's key, so no error may contain a part of this output.
"""

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from hub.api.meta import document as doc
from hub.extensions.kube_cert_agent.__main__ import CERTIFICATE, KEY
from hub.extensions.kube_cert_agent.deployment import CONTAINER, PROGRAM, SCHEMA, AgentDeploymentShape
from machinery.client.exec import Container, execute
from machinery.client.kubeconfig_documents import decoded
from machinery.client.ownership import owner_if_known
from machinery.client.reflector import ObjectKey, Reflector
from machinery.client.rest import KubeClient, Object, RestResource
from machinery.errors import InvalidError
from machinery.meta import bounded_yaml as boundedyaml
from machinery.meta.bounded_yaml import YamlError
from machinery.meta.objects import Document
from machinery.meta.timestamps import parse_time

INFO_NAMESPACE, INFO_NAME, INFO_KEY = "kube-public", "cluster-info", "kubeconfig"
PODS, NODES = RestResource("", "v1", "pods"), RestResource("", "v1", "nodes")
CONFIG_MAPS, DEPLOYMENTS = RestResource("", "v1", "configmaps"), RestResource("apps", "v1", "deployments")
KUBE_SYSTEM, OUTDATED = "kube-system", "outdated pods"
MANAGERS = {"labelSelector": "component=kube-controller-manager"}
PRINT_WITHIN, MAX_PRINTED = timedelta(seconds=20), 1 << 20


def collections_of(shape: AgentDeploymentShape) -> Mapping[str, tuple[str, Mapping[str, str]]]:
    """Return API path and query parameters of each collection that the hub watches in the cluster, by the collection's name."""
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


class ClusterClient:
    """The calls to the cluster. All may raise MusterError. `pod`: name of the hub's pod if in the Deployment's namespace."""

    def __init__(self, client: KubeClient, shape: AgentDeploymentShape, pod: str | None = None) -> None:
        self._client = client
        self._namespace = shape.namespace
        self._pod = pod
        self._owner: Document | None = None
        self._watched = collections_of(shape)
        self._path = DEPLOYMENTS.path(shape.name, namespace=shape.namespace)

    async def managers(self) -> Sequence[Document]:
        return await self._client.list(*self._watched["managers"])

    async def nodes(self) -> Sequence[Document]:
        return await self._client.list(NODES.path())

    async def deployment(self) -> Document | None:
        return await self._client.find(self._path)

    async def owner(self) -> Document | None:
        """Return an owner reference to the owner of the hub's pod; None if `pod` is None or the pod has no owner."""
        if self._pod is not None and self._owner is None:
            self._owner = await owner_if_known(self._client, self._namespace, self._pod, of="Deployment")
            if self._owner is None:
                self._pod = None
        return self._owner

    async def create(self, deployment: dict[str, Any]) -> None:
        await self._client.create(DEPLOYMENTS.path(namespace=self._namespace), deployment)

    async def replace(self, deployment: dict[str, Any]) -> None:
        """Update the Deployment. Raises ConflictError if its resourceVersion has changed."""
        await self._client.update(self._path, deployment)

    async def remove(self, deployment: Document) -> None:
        """Delete the Deployment, unless it was changed or recreated after it was read."""
        await self._client.delete(self._path, _only(deployment))

    async def agents(self) -> Sequence[Document]:
        return await self._client.list(*self._watched["agents"])

    async def cluster_info(self) -> Document:
        return await self._client.get(CONFIG_MAPS.path(INFO_NAME, namespace=INFO_NAMESPACE))

    async def printed(self, pod: str) -> bytes:
        container = Container(self._namespace, pod, CONTAINER)
        return await execute(self._client, container, (*PROGRAM, "print"), within=PRINT_WITHIN, limit=MAX_PRINTED)

    async def pod(self, name: str) -> Document | None:
        return await self._client.find(PODS.path(name, namespace=self._namespace))

    async def remove_pod(self, pod: Document) -> None:
        """Delete the pod, unless it was changed or recreated after it was read."""
        await self._client.delete(PODS.path(doc.name(pod), namespace=self._namespace), _only(pod))


def _only(existing: Document) -> Object:
    """Return DeleteOptions with preconditions, so that a changed or recreated object is not deleted."""
    metadata = doc.mapping(existing, "metadata")
    conditions = {"uid": metadata.get("uid"), "resourceVersion": metadata.get("resourceVersion")}
    return {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": conditions}


def mirrors(
    client: KubeClient, shape: AgentDeploymentShape, look: Callable[[], None], clean: Callable[[str], None]
) -> Mapping[str, Reflector[Any]]:
    """Return a mirror of each watched collection, by its name.

    `look` is called on every relevant change, `clean` with the name of each outdated pod. The mirrors keep Deployments without
    their status, which changes often, and only identity and state of pods.
    """

    def state(pod: Document) -> object:
        where = doc.mapping(pod, "spec").get("nodeName")
        return instance(pod), doc.mapping(pod, "status").get("phase"), doc.is_deleting(pod), where

    def changed(_key: ObjectKey, _value: object) -> None:
        look()

    def outdated(key: ObjectKey, value: object) -> None:
        if value is not None:
            clean(key.name)

    kept: dict[str, Callable[[Document], object]] = {
        "deployments": lambda found: {"labels": doc.labels(found), "spec": dict(doc.mapping(found, "spec"))},
        "cluster info": lambda config_map: dict(doc.mapping(config_map, "data")),
    }
    return {
        name: Reflector(client, path, kept.get(name, state), query=query, on_change=outdated if name == OUTDATED else changed)
        for name, (path, query) in collections_of(shape).items()
    }


def running(pods: Iterable[Document]) -> list[Document]:
    """Return running pods that are not being deleted, newest first, and by name if times are equal."""

    def made(pod: Document) -> datetime:
        try:
            return parse_time(str(doc.mapping(pod, "metadata").get("creationTimestamp") or ""))
        except ValueError:
            return datetime.min.replace(tzinfo=UTC)

    found = [pod for pod in pods if doc.mapping(pod, "status").get("phase") == "Running" and not doc.is_deleting(pod)]
    return sorted(sorted(found, key=doc.name), key=made, reverse=True)


def preferred(pods: Sequence[Document], nodes: Iterable[Document]) -> Document | None:
    """Return the first pod on a schedulable node, else the first pod. Ignores nodes without a name."""
    schedulable = {doc.name(node) for node in nodes if not doc.mapping(node, "spec").get("unschedulable")} - {""}
    return next((pod for pod in pods if doc.mapping(pod, "spec").get("nodeName") in schedulable), pods[0] if pods else None)


def instance(pod: Document) -> str:
    """Return a value that changes with the pod and with restarts of its containers."""
    statuses = doc.sequence(pod, "status", "containerStatuses")
    restarts = sum(int(status.get("restartCount") or 0) for status in statuses)
    return f"{doc.mapping(pod, 'metadata').get('uid', '')}/{restarts}"


def candidates(pods: Collection[Any]) -> str:
    return f"{len(pods)} candidate{'' if len(pods) == 1 else 's'}"


def is_outdated(pod: Document, shape: AgentDeploymentShape) -> bool:
    """Whether a pod has all labels of this Deployment, but an earlier value of the label that its selector uses."""
    [(label, value)] = shape.selector.items()
    found = doc.labels(pod)
    return found.get(label, value) != value and shape.labels.items() <= found.items()


def parse_cluster_info(config_map: Document) -> tuple[str, str]:
    """Return the URL of the first cluster in the kubeconfig of cluster-info, and the CA of this cluster (PEM in base64).

    Raises InvalidError; its message does not repeat the content, which may be long.
    """
    where = f"ConfigMap {INFO_NAMESPACE}/{INFO_NAME}"
    text = doc.mapping(config_map, "data").get(INFO_KEY)
    if not text:
        raise InvalidError(f'{where} has no key "{INFO_KEY}"')
    try:
        document = boundedyaml.load(str(text))
    except YamlError:
        document = None
    if not isinstance(document, dict):
        raise InvalidError(f'key "{INFO_KEY}" of {where} holds no kubeconfig')
    clusters = [entry.get("cluster") for entry in doc.sequence(document, "clusters") if isinstance(entry, dict)]
    found = next((cluster for cluster in clusters if isinstance(cluster, dict)), None)
    if found is None:
        raise InvalidError(f"the kubeconfig in {where} has no clusters")
    authority = str(found.get("certificate-authority-data") or "")
    decoded(authority, f"certificate-authority-data in {where}")
    return str(found.get("server") or ""), authority


def parse_printed(output: bytes, pod: str) -> tuple[bytes, bytes]:
    """Return the CA's certificate and key from the output of `print`. `pod`: for error messages. Raises InvalidError."""
    try:
        document = json.loads(output)
    except ValueError:
        document = None
    if not isinstance(document, dict):
        raise InvalidError(f'agent pod "{pod}" did not print a JSON object')
    certificate, key = (
        decoded(document.get(name) or "\0", f'agent pod "{pod}" printed a {what} ({name}) that')
        for name, what in ((CERTIFICATE, "certificate"), (KEY, "key"))
    )
    return certificate, key
