"""Declaration of a resource of the hub: its API and the write path of its objects."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from hub.api.certificatesigningrequests import Requester
from hub.api.meta.change import Kind
from hub.ports import Store, Transaction, Written
from hub.registry.generic import declared, objects
from hub.registry.generic.virtual import Compute, ComputedStorage
from machinery.apiserver.resource import Answers, Resource, Subresource, Validation
from machinery.apiserver.storage import GroupResource
from machinery.meta.objects import StoredObject
from machinery.product import GROUP_SUFFIX

Put = Callable[[Transaction, dict[str, Any], StoredObject | None, str], Written]
"""Creates an object (old object None) or updates the old object. Raises InvalidError, AlreadyExistsError and other errors."""
Remove = Callable[[Transaction, StoredObject, str], Written]
RequestPut = Callable[[Transaction, dict[str, Any], StoredObject | None, Requester], Written]
Bind = Callable[[Resource, Store, str], Resource]
"""Adds the parts that read the store: storage, subresources, columns. The last argument is the hub's own API group."""


@dataclass(frozen=True, slots=True)
class WritePath:
    """Functions that write and delete the objects of one kind. Default: `put` and `remove` of `hub.registry.generic.objects`.

    `generations`: metadata.generation counts changes outside of metadata and status. `requested` replaces `put` for a kind that
    records the requester.
    """

    kind: Kind
    namespaced: bool = False
    generations: bool = False
    custom_put: Put | None = None
    custom_remove: Remove | None = None
    requested: RequestPut | None = None

    def put(self, tx: Transaction, new: dict[str, Any], old: StoredObject | None, who: Requester) -> Written:
        if self.requested is not None:
            return self.requested(tx, new, old, who)
        if self.custom_put is not None:
            return self.custom_put(tx, new, old, who.user)
        return objects.put(tx, self.kind, new, old, who.user, generations=self.generations)

    def remove(self, tx: Transaction, old: StoredObject, who: Requester) -> Written:
        if self.custom_remove is not None:
            return self.custom_remove(tx, old, who.user)
        return objects.remove(tx, self.kind, old, who.user, generations=self.generations)

    def resource(self, suffix: str) -> GroupResource:
        name, _, group = self.kind.partition(".")
        return GroupResource(objects.group_of(group, suffix), name)


@dataclass(frozen=True, slots=True)
class ResourceDefinition:
    """Declaration of one resource. The group of `resource` has no suffix: `hub`, `cluster`.

    `stored` False: the objects are computed on read.
    """

    resource: Resource
    put: Put | None = None
    remove: Remove | None = None
    bind: Bind | None = None
    stored: bool = True

    @property
    def write_path(self) -> WritePath:
        shown = self.resource
        kind = Kind(f"{shown.name}.{shown.group}")
        return WritePath(kind, shown.namespaced, shown.counts_generations, self.put, self.remove)

    def named(self, suffix: str = GROUP_SUFFIX) -> Resource:
        """Return the resource with `suffix` in its API group, without the parts that read the store."""
        return replace(self.resource, group=objects.group_of(self.resource.group, suffix))

    def served(self, store: Store, suffix: str) -> Resource:
        shown = self.named(suffix)
        return shown if self.bind is None else self.bind(shown, store, objects.group_of("hub", suffix))


def computed(
    resource: Resource, compute: Compute = lambda _tx: (), storage: type[ComputedStorage] = ComputedStorage
) -> ResourceDefinition:
    """Declare a resource whose objects `storage` computes on read. The default storage calls `compute`."""

    def bind(shown: Resource, store: Store, _own: str) -> Resource:
        return replace(shown, storage=storage(store, shown, compute))

    return ResourceDefinition(resource, bind=bind, stored=False)


def action(own_group: str, name: str, answers: Answers, posted: str, validate: Validation | None = None) -> Subresource:
    """Return a subresource to which operators post documents. `name`: its name in the path; `posted`: kind of the documents."""
    verbs = ("create",)
    question = declared(posted, group=own_group, verbs=verbs, columns=(), validate=validate, answers=answers)
    return Subresource(name, verbs=verbs, question=question)
