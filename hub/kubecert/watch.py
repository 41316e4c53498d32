"""Wakes the cert agent's controllers on changes of pods, the Deployment and the ConfigMap."""

from collections.abc import Callable
from typing import Any, NamedTuple

from hub.api.meta import document as doc
from hub.kubecert.cluster_client import Collections
from hub.kubecert.deployment import AgentDeploymentShape
from hub.kubecert.pod_selection import instance
from machinery.client.reflector import ObjectKey, Reflector
from machinery.client.rest import KubeClient
from machinery.meta.objects import Document


class Mirrors(NamedTuple):
    """A mirror for each collection."""

    managers: Reflector[Any]
    deployments: Reflector[Any]
    agents: Reflector[Any]
    outdated: Reflector[Any]
    cluster_info: Reflector[Any]


def mirrors(client: KubeClient, shape: AgentDeploymentShape, look: Callable[[], None], clean: Callable[[str], None]) -> Mirrors:
    """`look` is called on every relevant change, `clean` with the name of each pod of an older form."""
    watched = Collections.of(shape)

    def changed(_key: ObjectKey, _value: object) -> None:
        look()

    def outdated(key: ObjectKey, value: object) -> None:
        if value is not None:
            clean(key.name)

    def mirror(
        place: tuple[str, Any], keep: Callable[[Document], object], on_change: Callable[[ObjectKey, Any], None] = changed
    ) -> Reflector[Any]:
        return Reflector(client, place[0], keep, query=place[1], on_change=on_change)

    return Mirrors(
        mirror(watched.managers, _life),
        mirror(watched.deployments, _written),
        mirror(watched.agents, _life),
        mirror(watched.outdated, _life, outdated),
        mirror(watched.cluster_info, lambda document: dict(doc.mapping(document, "data"))),
    )


def _life(pod: Document) -> object:
    """Identity and state of a pod."""
    where = doc.mapping(pod, "spec").get("nodeName")
    return instance(pod), doc.mapping(pod, "status").get("phase"), doc.is_deleting(pod), where


def _written(deployment: Document) -> object:
    """The Deployment without its status, which changes often and is irrelevant here."""
    return {"labels": doc.labels(deployment), "spec": dict(doc.mapping(deployment, "spec"))}
