"""Creation of a namespace together with the first object in it."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

import structlog

from machinery.client.rest import KubeClient, RestResource
from machinery.errors import AlreadyExistsError, ForbiddenError, NotFoundError

NAMESPACES = RestResource("", "v1", "namespaces")
T = TypeVar("T")

log = structlog.get_logger(__name__)


class Namespace:
    """Namespace `name`. It is created at most once: a namespace that is deleted later is not created again."""

    def __init__(self, client: KubeClient, name: str) -> None:
        self._client = client
        self._name = name
        self._existed = False

    def seen(self) -> None:
        """Record that the namespace exists or existed, so that it is not created."""
        self._existed = True

    async def holding(self, create: Callable[[], Awaitable[T]]) -> T:
        """Return the result of `create`, an object in this namespace. On NotFoundError, create the namespace and retry.

        Raises what `create` raises, and ForbiddenError with a remedy when the namespace may not be created.
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
