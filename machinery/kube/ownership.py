"""What a pod belongs to in the end, so that what its program creates goes when that goes."""

from machinery.kube.client import KubeClient, Object, Resource

LONGEST_CHAIN = 3
"""Pod, ReplicaSet, Deployment."""


async def owner_of(client: KubeClient, namespace: str, pod: str) -> Object | None:
    """An owner reference to the last one of the pod's chain, its Deployment or StatefulSet; None: it belongs to nothing.

    Raises MusterError when a link cannot be read: what is known by then would be the wrong owner, a ReplicaSet that goes with
    the next release.
    """
    resource, name, owner = Resource("", "v1", "pods"), pod, None
    for _ in range(LONGEST_CHAIN):
        document = await client.get(resource.path(name, namespace=namespace))
        above = next((each for each in document["metadata"].get("ownerReferences") or () if each.get("controller")), None)
        if above is None:
            break
        owner = {key: above[key] for key in ("apiVersion", "kind", "name", "uid")}
        group, _, version = str(above["apiVersion"]).rpartition("/")
        resource, name = Resource(group, version, str(above["kind"]).lower() + "s"), str(above["name"])
    return owner
