"""The top-level owner of a pod, to which objects of its program refer so that garbage collection deletes them with it."""

import structlog

from machinery.client.rest import KubeClient, Object, RestResource
from machinery.errors import ForbiddenError, NotFoundError

LONGEST_CHAIN = 3
"""Pod, ReplicaSet and Deployment."""

log = structlog.get_logger(__name__)


async def owner_of(client: KubeClient, namespace: str, pod: str) -> Object | None:
    """Owner reference to the end of the pod's controller chain, its Deployment or StatefulSet; None: the pod has no controller.

    Raises MusterError when a link cannot be read: the owner known so far would be a ReplicaSet, which the next release
    deletes.
    """
    resource, name, owner = RestResource("", "v1", "pods"), pod, None
    for _ in range(LONGEST_CHAIN):
        document = await client.get(resource.path(name, namespace=namespace))
        above = next((each for each in document["metadata"].get("ownerReferences") or () if each.get("controller")), None)
        if above is None:
            break
        owner = {key: above[key] for key in ("apiVersion", "kind", "name", "uid")}
        group, _, version = str(above["apiVersion"]).rpartition("/")
        resource, name = RestResource(group, version, str(above["kind"]).lower() + "s"), str(above["name"])
    return owner


async def owner_if_known(client: KubeClient, namespace: str, pod: str, *, of: str) -> Object | None:
    """As `owner_of`, for objects that are created with or without an owner; None also when a link may not be read.

    `of`: kind of the new object, for the log. Raises MusterError when a link is temporarily unreadable; the caller retries.
    """
    try:
        owner = await owner_of(client, namespace, pod)
    except (NotFoundError, ForbiddenError) as error:
        log.warning("what this pod belongs to is not known: what it makes gets no owner", pod=pod, kind=of, error=error.message)
        return None
    if owner is None:
        log.info("this pod belongs to nothing: what it makes gets no owner", pod=pod, kind=of)
    return owner
