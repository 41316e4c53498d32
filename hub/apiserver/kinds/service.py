"""Services, of which the hub has none: `kubectl cluster-info` lists those of kube-system before it says anything."""

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
