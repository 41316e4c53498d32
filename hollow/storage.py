"""A hollow cluster's storage: in memory, with what a real cluster's controllers would see to."""

from collections import Counter

from hollow import kinds
from hollow.objects import Shape
from machinery.apiserver.memory import MemoryStorage
from machinery.apiserver.resource import selectable_fields
from machinery.apiserver.storage import Actor, Change, GroupResource, Key, Selection, Stored
from machinery.clock import Clock
from machinery.errors import NotFoundError

_NAMESPACED = tuple(resource.key for group in kinds.GROUPS for resource in group.resources if resource.namespaced)


class HollowStorage(MemoryStorage):
    """Gives the first object of a name the same uid in every life of the cluster; empties a namespace that is deleted."""

    def __init__(self, shape: Shape, clock: Clock) -> None:
        self._shape = shape
        self._lives: Counter[tuple[GroupResource, Key]] = Counter()
        super().__init__(selectable_fields(kinds.GROUPS), clock=clock, uid=self._uid_of)

    async def update(self, resource: GroupResource, key: Key, change: Change, actor: Actor, *, dry_run: bool = False) -> Stored:
        stored = await super().update(resource, key, change, actor, dry_run=dry_run)
        if resource == kinds.NAMESPACE.key and not await self._exists(resource, key):
            await self._empty(key.name, actor)
        return stored

    async def _exists(self, resource: GroupResource, key: Key) -> bool:
        try:
            await self.get(resource, key)
        except NotFoundError:
            return False
        return True

    async def _empty(self, namespace: str, actor: Actor) -> None:
        for resource in _NAMESPACED:
            for stored in (await self.list(resource, Selection(namespace=namespace))).items:
                await self.update(resource, stored.key, lambda _document: None, actor)

    def _uid_of(self, resource: GroupResource, key: Key) -> str:
        self._lives[resource, key] += 1
        life = self._lives[resource, key]
        name = f"{key.namespace}/{key.name}" if key.namespace else key.name
        return self._shape.uid(str(resource), name if life == 1 else f"{name}#{life}")
