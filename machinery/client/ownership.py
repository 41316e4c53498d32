"""The namespace and the owner of objects that a program creates."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

import structlog

from machinery.client.rest import KubeClient, Object, RestResource
from machinery.errors import AlreadyExistsError, ForbiddenError, NotFoundError

log = structlog.get_logger(__name__)


NAMESPACES = RestResource("", "v1", "namespaces")
T = TypeVar("T")


class Namespace:
    """The namespace `name`. It is created at most once; if it is deleted later, it is not created again."""

    def __init__(self, client: KubeClient, name: str) -> None:
        self._client = client
        self._name = name
        self._existed = False

    def seen(self) -> None:
        """Record that the namespace exists or has existed, so that it is not created."""
        self._existed = True

    async def holding(self, create: Callable[[], Awaitable[T]]) -> T:
        """Return the result of `create`, which creates an object here. On NotFoundError, create the namespace and retry once.

        Raises errors of `create`, and ForbiddenError with the remedy if the program may not create the namespace.
        """
        try:
            created = await create()
        except NotFoundError:
            if self._existed:
                raise
            await self._create()
            created = await create()
        self._existed = True
        return created

    async def _create(self) -> None:
        document = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": self._name}}
        try:
            await self._client.create(NAMESPACES.path(), document)
        except AlreadyExistsError:
            return
        except ForbiddenError as error:
            raise ForbiddenError(
                f'namespace "{self._name}" does not exist and may not be created: '
                f"run `kubectl create namespace {self._name}` with this kubeconfig's cluster as an administrator"
            ) from error
        log.info("namespace.created", namespace=self._name)


LONGEST_CHAIN = 3


async def owner_of(client: KubeClient, namespace: str, pod: str) -> Object | None:
    """Return an owner reference to the pod's top-level controller, such as its Deployment; None if the pod has no controller.

    Raises MusterError if the pod or a controller above it cannot be read. The last readable controller may be a ReplicaSet. It
    is not a usable owner, because the next rollout deletes it.
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
    """Like `owner_of`, for objects that may exist without an owner. Also return None if reading the chain is forbidden.

    `of`: kind of the new object, for the log. Raises MusterError if the chain is temporarily unreadable; the caller retries.
    """
    try:
        owner = await owner_of(client, namespace, pod)
    except (NotFoundError, ForbiddenError) as error:
        log.warning("the controller of this pod is not known: its objects get no owner", pod=pod, kind=of, error=error.message)
        return None
    if owner is None:
        log.info("this pod has no controller: its objects get no owner", pod=pod, kind=of)
    return owner
