"""Kinds of which the hub has no object, because kubectl lists them.

`kubectl cluster-info` lists Services of kube-system, `kubectl get all` those of a namespace. `kubectl create -f` lists
CustomResourceDefinitions where a kind has no PATCH, to learn how to validate.
"""

from machinery.apiserver.memory import MemoryStorage
from machinery.apiserver.resource import Resource


def service() -> Resource:
    """The resource: readable, always empty."""
    return Resource(
        group="",
        version="v1",
        name="services",
        kind="Service",
        short_names=("svc",),
        categories=("all",),
        namespaced=True,
        custom=False,
        verbs=("get", "list", "watch"),
        schema={
            "description": "Service is a named abstraction of software service. This server runs none and lists none.",
            "type": "object",
            "properties": {"spec": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
        },
        storage=MemoryStorage(),
    )


def custom_resource_definition() -> Resource:
    """The resource: readable, always empty."""
    return Resource(
        group="apiextensions.k8s.io",
        version="v1",
        name="customresourcedefinitions",
        kind="CustomResourceDefinition",
        short_names=("crd", "crds"),
        namespaced=False,
        custom=False,
        verbs=("get", "list", "watch"),
        schema={
            "description": "CustomResourceDefinition is a kind that users add. This server takes none and lists none.",
            "type": "object",
            "properties": {"spec": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
        },
        storage=MemoryStorage(),
    )
