"""What a pod belongs to in the end, so that what its program creates goes when that goes."""

import structlog

from machinery.client.rest import KubeClient, Object, RestResource
from machinery.errors import ForbiddenError, NotFoundError

LONGEST_CHAIN = 3
"""Pod, ReplicaSet, Deployment."""

log = structlog.get_logger(__name__)


async def owner_of(client: KubeClient, namespace: str, pod: str) -> Object | None:
    """An owner reference to the last one of the pod's chain, its Deployment or StatefulSet; None: it belongs to nothing.

    Raises MusterError when a link cannot be read: what is known by then would be the wrong owner, a ReplicaSet that goes with
    the next release.
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
    """The same, for what is made whether or not there is an owner to be found; None also where a link may not be read.

    `of`: the kind that is made, for the log. Raises MusterError where a link cannot be read for now: then it is not made yet.
    """
    try:
        owner = await owner_of(client, namespace, pod)
    except (NotFoundError, ForbiddenError) as error:
        log.warning("what this pod belongs to is not known: what it makes gets no owner", pod=pod, kind=of, error=error.message)
        return None
    if owner is None:
        log.info("this pod belongs to nothing: what it makes gets no owner", pod=pod, kind=of)
    return owner
