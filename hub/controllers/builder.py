"""Builder that the `register` functions of controllers use: dependencies, event handlers, periodic work, batch reconcilers."""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Hashable, Mapping, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from hub.api.certificates import Lifetimes
from hub.api.events import EventRecord
from hub.api.liveness import BrakeLimits
from hub.api.meta import document as doc
from hub.api.meta.change import ADDONS, APPROVAL_RULES, CLUSTER_SETS, NAMESPACES, Change, Kind
from hub.audit.recording import DecisionAudit
from hub.controllers import ACTOR, event_recorder
from hub.controllers.event_recorder import Recorder
from hub.controllers.observers.fleet_index import FleetIndex
from hub.ports import Store, Transaction
from hub.ports.identities import Issuer
from hub.settings import HubSettings
from machinery.errors import NotFoundError
from machinery.meta.objects import ChangeType, Document, Key, Query, StoredObject
from machinery.meta.selectors import Requirement
from machinery.runtime.clock import Clock
from machinery.runtime.controller import Batch, BatchReconciler, Controller, Reconciler
from machinery.runtime.informer import Informer
from machinery.runtime.scheduler import Scheduler

K = TypeVar("K", bound=Hashable)
Since = Callable[[Transaction], datetime | None]
"""Returns the time since which the hub could store beats without a gap. None: it cannot store beats now."""
PERIODIC = "*"
"""The key of periodic work. No object has this name."""
PAGE = 500
LISTED_FIRST = (NAMESPACES, APPROVAL_RULES, CLUSTER_SETS, ADDONS)
"""Kinds that are listed first, because the event handlers of clusters and requests depend on them."""


class Observer(Protocol):
    """Receives every object of the followed kinds, including deleted objects, before the event handlers."""

    def relisting(self) -> None:
        """Called before all objects are listed. An object that is not listed afterwards no longer exists."""

    def listed(self, kind: Kind, key: Key, document: Document) -> None: ...
    def changed(self, kind: Kind, key: Key, document: Document, change: ChangeType, actor: str) -> None: ...


class ChangeFilter:
    """Callable: returns whether an object is new, or the result of `of` for it has changed since the last call."""

    def __init__(self, of: Callable[[Document], object]) -> None:
        self.known: dict[str, object] = {}
        self._of = of

    def __call__(self, document: Document) -> bool:
        name, found = doc.name(document), self._of(document)
        known, self.known[name] = self.known.get(name), found
        return known != found


def generation_of(document: Document) -> object:
    metadata = doc.mapping(document, "metadata")
    return metadata.get("uid"), metadata.get("generation")


@dataclass(frozen=True, slots=True)
class EventHandler:
    """Sends the keys of objects of one kind to one controller. `wanted`: whether the controller reconciles an object.

    `deleted`: also send keys of deleted objects, for controllers that recreate objects or clean up.
    """

    enqueue: Callable[[Key], None]
    wanted: Callable[[Document], bool]
    deleted: bool


@dataclass
class EventHandlers:
    """Dispatches objects and changes to observers and event handlers.

    `on_relist` is called before all objects are listed, at the start and after a compaction. Deletions since the last
    processed change are not sent. So in `on_relist`, a controller that remembers objects must forget them, and a controller
    that creates objects must check for missing objects.
    """

    observers: list[Observer] = field(default_factory=list)
    on_relist: list[Callable[[], None]] = field(default_factory=list)
    by_kind: dict[Kind, list[EventHandler]] = field(default_factory=dict)

    @property
    def kinds(self) -> Collection[Kind]:
        return sorted(self.by_kind, key=lambda kind: kind not in LISTED_FIRST)

    async def list_all(self, store: Store) -> int:
        """Send all objects to the observers and event handlers. Returns the revision after which the changes follow."""
        revision = await store.read(lambda tx: tx.changes.newest())
        for begin in (*(observer.relisting for observer in self.observers), *self.on_relist):
            begin()
        for kind in self.kinds:
            async for stored in all_of(store, kind):
                for observer in self.observers:
                    observer.listed(kind, stored.key, stored.document)
                self._enqueue(kind, stored.key, stored.document, is_gone=False)
        return revision

    async def change(self, changes: Sequence[Change]) -> None:
        for change in changes:
            document = msgspec.json.decode(change.encoded)
            for observer in self.observers:
                observer.changed(change.kind, change.key, document, change.type, change.actor)
            self._enqueue(change.kind, change.key, document, is_gone=change.type is ChangeType.DELETED)

    def _enqueue(self, kind: Kind, key: Key, document: Document, *, is_gone: bool) -> None:
        for handler in self.by_kind.get(kind, ()):
            if (handler.deleted or not is_gone) and handler.wanted(document):
                handler.enqueue(key)


@dataclass(eq=False)
class TransactionReconciler(BatchReconciler[str]):
    """Calls the idempotent `step` for many names in one transaction. A NotFoundError ends a step: the object no longer exists.

    `read_ahead`: reads the data that the steps of these names share; each step gets this data. `record`: called in the
    transaction with each result that is not None; writes records about the result, and returns it. `committed`: called with
    each returned result after the commit.
    """

    store: Store
    step: Callable[[Transaction, str, Any], object]
    read_ahead: Callable[[Transaction, Sequence[str]], object] = lambda _tx, _names: None
    committed: Callable[[Any], None] = lambda _result: None
    record: Callable[[Transaction, Any], object] = lambda _tx, result: result

    async def reconcile_all(self, keys: Sequence[str]) -> Batch[str]:
        batch = Batch[str]()

        async def commit(names: Sequence[str]) -> Mapping[str, timedelta | None]:
            for result in await self.store.run(self._steps, names):
                self.committed(result)
            return dict.fromkeys(names)

        await batch.run(keys, commit)
        return batch

    def shared(self, tx: Transaction, names: Sequence[str]) -> object:
        return self.read_ahead(tx, names)

    def _steps(self, tx: Transaction, names: Sequence[str]) -> Sequence[object]:
        shared, results = self.shared(tx, names), []
        for name in names:
            with suppress(NotFoundError):
                if (result := self.step(tx, name, shared)) is not None:
                    results.append(self.record(tx, result))
        return results


@dataclass(frozen=True, slots=True)
class Step(Generic[K]):
    reconcile: Callable[[K], Coroutine[Any, Any, timedelta | None]]


@dataclass(eq=False)
class ControllerBuilder:
    """Collects the controllers of one term. `since`: see Since. `decisions`: audits decisions of rules; None: no audit."""

    store: Store
    issuer: Issuer
    settings: HubSettings
    lifetimes: Lifetimes
    _: KW_ONLY
    clock: Clock
    since: Since
    decisions: DecisionAudit | None = None

    def __post_init__(self) -> None:
        self.controllers: dict[str, Controller[Any]] = {}
        self.handlers = EventHandlers()
        self._periodic: list[tuple[Controller[str], timedelta, float, bool]] = []
        self._recorder = Recorder(self.store)
        self._events = self.add(event_recorder.NAME, self._recorder)
        self.fleet = FleetIndex()
        self.handlers.observers.append(self.fleet)

    @property
    def brake_limits(self) -> BrakeLimits:
        settings = self.settings
        return BrakeLimits(share=settings.brake_share, at_least=settings.brake_clusters, window=settings.brake_window)

    def record_event(self, record: EventRecord) -> None:
        self._recorder.add(record)
        self._events.queue.add_after(PERIODIC, event_recorder.GATHER)

    def add(
        self, name: str, reconciler: Reconciler[K] | BatchReconciler[K], *, workers: int = 1, grace: timedelta | None = None
    ) -> Controller[K]:
        controller = self.controllers[name] = Controller(name, reconciler, workers=workers, grace=grace)
        return controller

    def add_step(self, name: str, step: Callable[[K], Coroutine[Any, Any, timedelta | None]]) -> Controller[K]:
        """Add a controller whose reconciler is one function; see Reconciler."""
        return self.add(name, Step(step))

    def add_use_case(self, name: str, use_case: Callable[..., object]) -> Controller[str]:
        """Add a controller that calls a use case for each name. The controller is the actor; see TransactionReconciler."""
        actor = f"{ACTOR}:{name}"
        return self.add(name, TransactionReconciler(self.store, lambda tx, key, _: use_case(tx, key, actor=actor)))

    def watch(
        self,
        kind: Kind,
        enqueue: Callable[[Key], None],
        wanted: Callable[[Document], bool] = lambda _document: True,
        *,
        deleted: bool = False,
    ) -> None:
        """Call `enqueue` with the key of each object of `kind` at the start and after each change; see EventHandler."""
        self.handlers.by_kind.setdefault(kind, []).append(EventHandler(enqueue, wanted, deleted))

    def watch_names(
        self,
        kind: Kind,
        controller: Controller[str],
        wanted: Callable[[Document], bool] = lambda _document: True,
        *,
        deleted: bool = False,
        delay: timedelta = timedelta(),
    ) -> None:
        self.watch(kind, lambda key: controller.queue.add_after(key.name, delay), wanted, deleted=deleted)

    def every(self, period: timedelta, controller: Controller[str], *, jitter: float = 0.25, at_once: bool = False) -> None:
        """Enqueue the key PERIODIC every `period` while the leader runs; see Scheduler.every."""
        self._periodic.append((controller, period, jitter, at_once))

    def start_periodic(self, scheduler: Scheduler) -> None:
        for controller, period, jitter, at_once in self._periodic:
            work = partial(controller.enqueue, PERIODIC)
            scheduler.every(period, work, name=controller.name, jitter=jitter, at_once=at_once)

    def stop_periodic(self, scheduler: Scheduler) -> None:
        for controller, *_ in self._periodic:
            scheduler.drop(controller.name)

    def informer(self, synced: asyncio.Event) -> Informer[Change]:
        """Returns the informer of all controllers. `synced` is set when it has sent all objects once."""

        async def list_all() -> int:
            revision = await self.handlers.list_all(self.store)
            synced.set()
            return revision

        follow = partial(self.store.follow, kinds=self.handlers.kinds)
        return Informer("controllers", follow, list_all, self.handlers.change, resyncs_after_errors=True)


async def all_of(store: Store, kind: Kind, *fields: Requirement) -> AsyncIterator[StoredObject]:
    """Yields all objects of `kind` that meet `fields`. Each page is read in its own transaction."""
    query: Query | None = Query(fields=fields, limit=PAGE)
    while query is not None:
        page = await store.read(lambda tx, query: tx.objects.find(kind, query), query)
        for stored in page.items:
            yield stored
        query = None if page.after is None else replace(query, after=page.after)
