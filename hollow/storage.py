"""Storage of a hollow cluster in memory. It does some work of the controllers of a real cluster."""

from collections import Counter

from hollow import kinds, objects
from hollow.objects import ClusterShape, service_account
from machinery.apiserver.kinds.core import SERVICE_ACCOUNT
from machinery.apiserver.resource import selectable_fields
from machinery.apiserver.storage import Actor, GroupResource, UpdateFunc
from machinery.apiserver.storages.memory import MemoryStorage
from machinery.errors import NotFoundError
from machinery.meta.objects import Document, Key, Query, StoredObject
from machinery.runtime.clock import Clock

_NAMESPACED = tuple(resource.key for group in kinds.GROUPS for resource in group.resources if resource.namespaced)


class HollowStorage(MemoryStorage):
    """Creates the pods of Deployments and the ServiceAccount `default` of namespaces. Empties deleted namespaces.

    The first object that is created with a certain name gets the same uid at every start.
    """

    def __init__(self, shape: ClusterShape, clock: Clock) -> None:
        self._shape = shape
        self._lives: Counter[tuple[GroupResource, Key]] = Counter()
        super().__init__(selectable_fields(kinds.GROUPS), clock=clock, uid=self._uid_of)

    async def create(
        self, resource: GroupResource, key: Key, document: Document, actor: Actor, *, dry_run: bool = False
    ) -> StoredObject:
        if resource == kinds.DEPLOYMENT.key:
            objects.pods_of({**document, "metadata": {"uid": "", **document["metadata"]}}, ())
        stored = await super().create(resource, key, document, actor, dry_run=dry_run)
        if resource == kinds.DEPLOYMENT.key and not dry_run:
            await self._roll_out(key, actor)
        if resource == kinds.NAMESPACE.key and not dry_run:
            account = service_account(key.name)
            await super().create(SERVICE_ACCOUNT.key, Key(key.name, account["metadata"]["name"]), account, actor)
        return stored

    async def update(
        self, resource: GroupResource, key: Key, change: UpdateFunc, actor: Actor, *, dry_run: bool = False
    ) -> StoredObject:
        stored = await super().update(resource, key, change, actor, dry_run=dry_run)
        if resource == kinds.NAMESPACE.key and await self._find(resource, key) is None:
            await self._empty(key.name, actor)
        if resource == kinds.DEPLOYMENT.key and not dry_run:
            await self._roll_out(key, actor)
        if resource == kinds.POD.key and not dry_run and await self._find(resource, key) is None:
            for owner in stored.document["metadata"].get("ownerReferences") or ():
                if owner["kind"] == kinds.DEPLOYMENT.kind:
                    await self._roll_out(Key(key.namespace, owner["name"]), actor)
        return stored

    async def _roll_out(self, key: Key, actor: Actor) -> None:
        """Create missing pods of a Deployment, and delete outdated ones. If the Deployment is deleted, delete all its pods."""
        deployment = await self._find(kinds.DEPLOYMENT.key, key)
        nodes = [each.document for each in (await self.list(kinds.NODE.key, Query())).items]
        wanted = {pod["metadata"]["name"]: pod for pod in (objects.pods_of(deployment, nodes) if deployment else ())}
        for stored in (await self.list(kinds.POD.key, Query(namespace=key.namespace))).items:
            owners = stored.document["metadata"].get("ownerReferences") or ()
            uids = [each["uid"] for each in owners if (each["kind"], each["name"]) == (kinds.DEPLOYMENT.kind, key.name)]
            if uids and deployment and deployment["metadata"]["uid"] in uids and stored.key.name in wanted:
                del wanted[stored.key.name]
            elif uids:
                await super().update(kinds.POD.key, stored.key, lambda _document: None, actor)
        for name, pod in wanted.items():
            await super().create(kinds.POD.key, Key(key.namespace, name), pod, actor)

    async def _find(self, resource: GroupResource, key: Key) -> Document | None:
        try:
            return (await self.get(resource, key)).document
        except NotFoundError:
            return None

    async def _empty(self, namespace: str, actor: Actor) -> None:
        for resource in _NAMESPACED:
            for stored in (await self.list(resource, Query(namespace=namespace))).items:
                await self.update(resource, stored.key, lambda _document: None, actor)

    def _uid_of(self, resource: GroupResource, key: Key) -> str:
        self._lives[resource, key] += 1
        life = self._lives[resource, key]
        name = f"{key.namespace}/{key.name}" if key.namespace else key.name
        return self._shape.uid(str(resource), name if life == 1 else f"{name}#{life}")
