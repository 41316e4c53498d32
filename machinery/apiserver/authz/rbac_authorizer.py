"""RBAC authorizer, and the port that supplies its roles."""

import asyncio
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Protocol

import msgspec

from machinery.apiserver.access import Attributes, Authorizer, Decision
from machinery.apiserver.authz.rbac_resources import ROLES_AND_BINDINGS
from machinery.apiserver.authz.role_index import HeldRules, RoleIndex
from machinery.apiserver.authz.rules import EVERYTHING, PolicyRule
from machinery.apiserver.resource import Resource
from machinery.apiserver.storage import Actor, EventType, GroupResource, Key, Selection, Storage
from machinery.identity import OPERATOR_GROUP

ALLOWED = Decision(allowed=True)
SEEN_WITHIN = timedelta(seconds=2)
"""How long the response to a write of a role waits until the authorizer uses it."""


class Roles(Protocol):
    """An index of roles that is kept current."""

    @property
    def index(self) -> RoleIndex: ...

    def check(self) -> None:
        """Raises UnavailableError when the index may be too old for decisions."""

    async def seen(self, resource: GroupResource, revision: int) -> None:
        """Wait until the index has all changes of the resource up to `revision`. The caller bounds the wait."""


class RbacAuthorizer(Authorizer):
    """RBAC. `system:masters` may do everything."""

    def __init__(self, roles: Roles) -> None:
        self._roles = roles

    async def authorize(self, actor: Actor, attributes: Attributes) -> Decision:
        return self.decide(actor, attributes)

    async def rules(self, actor: Actor, namespace: str) -> HeldRules:
        """All rules of the actor in a namespace, for a rules review."""
        return self.held(actor, namespace)

    def decide(self, actor: Actor, asked: Attributes) -> Decision:
        """Raises UnavailableError when the roles may be too old."""
        if OPERATOR_GROUP in actor.groups:
            return ALLOWED
        self._roles.check()
        return self._roles.index.decide(actor, asked)

    def held(self, actor: Actor, namespace: str) -> HeldRules:
        """All rules of the actor in a namespace. Raises UnavailableError."""
        self._roles.check()
        held = self._roles.index.held(actor, namespace)
        if OPERATOR_GROUP in actor.groups:
            return HeldRules((*held.rules, *(rule for rule in EVERYTHING if rule not in held.rules)), ())
        return held

    def rules_of_role(self, kind: str, key: Key) -> tuple[PolicyRule, ...] | None:
        """The rules of one role; None: no such role. Raises UnavailableError."""
        self._roles.check()
        return self._roles.index.rules(kind, key)


class WatchedRoles(Roles):
    """Roles of a storage that only this process writes, followed by watches. `check` never raises: memory has no outages."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._index = RoleIndex()
        self._seen: dict[GroupResource, int] = {}
        self._moved = asyncio.Condition()

    @property
    def index(self) -> RoleIndex:
        return self._index

    def check(self) -> None:
        return

    async def seen(self, resource: GroupResource, revision: int) -> None:
        async with self._moved:
            await self._moved.wait_for(lambda: self._seen.get(resource, -1) >= revision)

    async def run(self) -> None:
        """Follow the storage until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for resource in ROLES_AND_BINDINGS:
                tasks.create_task(self._follow(resource), name=f"follow {resource.name}")

    async def _follow(self, resource: Resource) -> None:
        page = await self._storage.list(resource.key, Selection())
        for item in page.items:
            self._index.put(resource.name, item.key, msgspec.json.decode(item.document))
        await self._moved_to(resource.key, page.revision)
        async with AsyncExitStack() as stack:
            events = await stack.enter_async_context(self._storage.watch(resource.key, Selection(), after=page.revision))
            async for event in events:
                if isinstance(event, int):
                    continue
                gone = event.type is EventType.DELETED
                document = None if gone else msgspec.json.decode(event.stored.document)
                self._index.put(resource.name, Key(event.stored.key.namespace, event.stored.key.name), document)
                await self._moved_to(resource.key, event.stored.revision)

    async def _moved_to(self, resource: GroupResource, revision: int) -> None:
        async with self._moved:
            self._seen[resource] = revision
            self._moved.notify_all()
