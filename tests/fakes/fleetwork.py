"""The controllers of what lies around clusters, driven by hand: changes are followed and keys worked on until all rests."""

import asyncio
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Self

from hub.api.certificates import Lifetimes
from hub.api.certificatesigningrequests import Requester
from hub.api.events import EventRecord
from hub.api.managedclustersets import API_VERSION, BY_LABELS, EXCLUSIVE, KIND, LABEL
from hub.api.meta.change import Kind
from hub.api.namespaces import namespace
from hub.controllers.builder import ControllerBuilder, Since
from hub.controllers.clusters import addons, cluster_sets
from hub.extensions.settings import load
from hub.ports import Store, Transaction
from hub.registry import namespaces
from hub.registry.kinds import WRITE_PATHS
from machinery.meta.objects import Document, Key, StoredObject
from machinery.runtime.clock import Clock, ManualClock
from machinery.runtime.controller import Controller
from tests.fakes.authority import WordIssuer

ENOUGH = 50  # rounds after which controllers that still write are taken to write for ever
OPERATOR = Requester("admin")


class Fleetwork:
    """One hub's worth of them. `recorded`: the requested Events."""

    def __init__(self, store: Store, *, default_cluster_set: bool = False, with_profiles: bool = False) -> None:
        self.recorded: list[EventRecord] = []
        self.store = store
        self.builder = builder_of(store, default_cluster_set=default_cluster_set, cluster_profiles=with_profiles)
        self.builder.record_event = self.recorded.append  # type: ignore[method-assign,assignment]
        for register in (cluster_sets.register, addons.register):
            register(self.builder)
        self._revision = 0

    async def start(self) -> Self:
        """As a hub starts, or begins to lead."""
        self._revision = await self.builder.handlers.list_all(self.store)
        await self.settle()
        return self

    async def settle(self) -> None:
        """Until nothing changes and nobody waits. Raises AssertionError when that does not come."""
        for _ in range(ENOUGH):
            worked = await self._work()
            if not await self._follow() and not worked:
                return
        raise AssertionError("the controllers go on writing")

    async def _follow(self) -> bool:
        changes = await self.store.read(lambda tx: tx.changes.since(self._revision))
        await self.builder.handlers.change(changes)
        self._revision = changes[-1].revision if changes else self._revision
        return bool(changes)

    async def _work(self) -> bool:
        worked = False
        for controller in self.builder.controllers.values():
            for key in tuple(controller.queue._due):
                controller.queue.add(key)
            while len(controller.queue):
                await controller.step()
                worked = True
                await asyncio.sleep(0)
        return worked


def put(tx: Transaction, kind: Kind, document: Mapping[str, Any]) -> None:
    """Creates or replaces an object, as an operator does."""
    metadata = document["metadata"]
    old = tx.objects.get(kind, Key(metadata.get("namespace", ""), metadata["name"]))
    WRITE_PATHS[kind].put(tx, dict(document), old, OPERATOR)


def remove(tx: Transaction, kind: Kind, name: str, namespace: str = "") -> None:
    """Deletes an object, as an operator does."""
    old = tx.objects.get(kind, Key(namespace, name))
    assert old is not None
    WRITE_PATHS[kind].remove(tx, old, OPERATOR)


def open_namespace(tx: Transaction, name: str) -> None:
    """A Namespace as an operator makes one."""
    namespaces.put(tx, namespace(name), None, OPERATOR.user)


def find(tx: Transaction, kind: Kind, name: str, namespace: str = "") -> StoredObject | None:
    return tx.objects.get(kind, Key(namespace, name))


def cluster(name: str, *, into: str = "", accepted: bool = True, **labels: str) -> Document:
    """A ManagedCluster in the exclusive set `into`, if one is named."""
    metadata = {"name": name, "labels": {**labels, **({LABEL: into} if into else {})}}
    return {"metadata": metadata, "spec": {"hubAcceptsClient": accepted}}


def cluster_set(name: str, labels: Mapping[str, Any] | None = None, *, namespaces: tuple[str, ...] = ()) -> Document:
    """An exclusive set, or with a labelSelector one of that kind."""
    selector = {"selectorType": EXCLUSIVE} if labels is None else {"selectorType": BY_LABELS, "labelSelector": dict(labels)}
    spec = {"clusterSelector": selector, "managedNamespaces": [{"name": each} for each in namespaces]}
    return {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": name}, "spec": spec}


def binding(name: str, namespace: str) -> Document:
    """A ManagedClusterSetBinding of the set of that name."""
    metadata = {"name": name, "namespace": namespace}
    return {"apiVersion": API_VERSION, "kind": "ManagedClusterSetBinding", "metadata": metadata, "spec": {"clusterSet": name}}


def addon(name: str, cluster_name: str, available: str | None = None, **status: Any) -> Document:
    """A ManagedClusterAddOn whose agent says so of it."""
    reason = {"True": "ManagedClusterAddOnLeaseUpdated", "False": "ManagedClusterAddOnLeaseUpdateStopped"}
    reported = {
        "type": "Available",
        "status": available,
        "reason": reason.get(available or "", "ManagedClusterAddOnLeaseNotFound"),
        "message": f"{name} add-on is {available}.",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }
    conditions = {"conditions": [reported]} if available else {}
    return {"metadata": {"name": name, "namespace": cluster_name}, "status": {**conditions, **status}}


def builder_of(store: Store, clock: Clock | None = None, since: Since = lambda _tx: None, **settings: Any) -> ControllerBuilder:
    return ControllerBuilder(
        store, WordIssuer(), load(settings, None, {}), Lifetimes(), clock=clock or ManualClock(), since=since
    )


async def work(controller: Controller[Any], *keys: Any) -> timedelta | None:
    """Enqueues the keys and makes steps until no key is due. Returns the time until one is."""
    for key in keys:
        controller.enqueue(key)
    while (pause := controller.queue.pause()) == timedelta():
        await controller.step()
    return pause
