"""Kinds without objects, served because kubectl lists them.

`kubectl cluster-info` lists Services of kube-system, `kubectl get all` those of a namespace. `kubectl create -f` lists
CustomResourceDefinitions for kinds without PATCH, to find out how to validate.
"""

from typing import Any

from machinery.apiserver.resource import Resource
from machinery.apiserver.storages.memory import MemoryStorage


def service() -> Resource:
    """Returns a readable resource that is always empty."""
    said = "Service is a named abstraction of software service. This server runs none and lists none."
    return _empty("services", "Service", said, short_names=("svc",), categories=("all",), namespaced=True)


def custom_resource_definition() -> Resource:
    """Returns a readable resource that is always empty."""
    said = "CustomResourceDefinition is a kind that users add. This server takes none and lists none."
    names = ("crd", "crds")
    return _empty(
        "customresourcedefinitions", "CustomResourceDefinition", said, group="apiextensions.k8s.io", short_names=names
    )


def _empty(name: str, kind: str, description: str, *, group: str = "", **others: Any) -> Resource:
    schema = {
        "description": description,
        "type": "object",
        "properties": {"spec": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
    }
    verbs, storage = ("get", "list", "watch"), MemoryStorage()
    return Resource(
        group=group, version="v1", name=name, kind=kind, custom=False, verbs=verbs, schema=schema, storage=storage, **others
    )
