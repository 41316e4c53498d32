"""Feeds controllers with keys: all objects once, then every change in order without a gap."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol

import msgspec
import structlog

from hub.api.meta.change import Change, Kind
from hub.ports import Store, Transaction
from machinery.errors import ExpiredError, MusterError
from machinery.meta.objects import ChangeType, Document, Key, Query, StoredObject
from machinery.runtime.backoff import Backoff

log = structlog.get_logger(__name__)

Wanted = Callable[[Document], bool]
PAGE = 500


@dataclass(frozen=True, slots=True)
class EventHandler:
    """Sends the keys of one kind to one controller; `wanted` filters objects that need no step.

    `deleted`: also send keys of deleted objects, for controllers that recreate them or clean up.
    """

    kind: Kind
    enqueue: Callable[[Key], None]
    wanted: Wanted = lambda _document: True
    deleted: bool = False


class Observer(Protocol):
    """Receives every object of the feed's kinds, including deleted ones, before the event handlers."""

    def relisting(self) -> None:
        """All objects are about to be listed; those not listed no longer exist."""

    def listed(self, kind: Kind, key: Key, document: Document) -> None: ...
    def changed(self, kind: Kind, key: Key, document: Document, change: ChangeType, actor: str) -> None: ...


class Feed:
    """Follows the store for several event handlers.

    `relisting`: called before all objects are listed, at the start and after an error. Deletions in between are not sent: a
    controller that remembers objects forgets them then, and one that creates objects checks for missing ones.
    """

    def __init__(
        self, store: Store, routes: Sequence[EventHandler], *observers: Observer, relisting: Sequence[Callable[[], None]] = ()
    ) -> None:
        self._store = store
        self._observers = observers
        self._relisting = (*(observer.relisting for observer in observers), *relisting)
        self._routes: Mapping[Kind, Sequence[EventHandler]] = {
            route.kind: [each for each in routes if each.kind == route.kind] for route in routes
        }
        self.synced = asyncio.Event()
        """Set when all objects that existed at the start have been sent."""
        self._backoff = Backoff(cap=timedelta(seconds=5))
        self._trouble = ""

    async def run(self) -> None:
        """Run until cancelled. Starts again after a read error or when the log was compacted."""
        while True:
            try:
                await self._follow(await self.resync())
            except ExpiredError:
                log.warning("change log was compacted under the controllers: reading all objects again")
            except MusterError as error:
                delay = self._backoff.next()
                if error.message != self._trouble:
                    log.warning("controllers cannot read the store", error=error.message, attempt=self._backoff.failures)
                self._trouble = error.message
                await asyncio.sleep(delay.total_seconds())

    async def _follow(self, revision: int) -> None:
        self.synced.set()
        async for changes in self._store.follow(revision, self._routes.keys()):
            self._backoff.reset()
            self._trouble = ""
            for change in changes:
                self._send_change(change)

    async def resync(self) -> int:
        """Send all objects. Returns the revision from which changes follow."""
        revision = await self._store.read(lambda tx: tx.changes.newest())
        for begin in self._relisting:
            begin()
        for kind in self._routes:
            after: Key | None = None
            while True:
                items, more = await self._store.read(_page, kind, after)
                for stored in items:
                    for observer in self._observers:
                        observer.listed(kind, stored.key, stored.document)
                    self._send(kind, stored.key, stored.document)
                if not more:
                    break
                after = items[-1].key
        return revision

    def _send_change(self, change: Change) -> None:
        document = msgspec.json.decode(change.encoded)
        for observer in self._observers:
            observer.changed(change.kind, change.key, document, change.type, change.actor)
        self._send(change.kind, change.key, document, is_gone=change.type is ChangeType.DELETED)

    def _send(self, kind: Kind, key: Key, document: Document, *, is_gone: bool = False) -> None:
        for route in self._routes.get(kind, ()):
            if (route.deleted or not is_gone) and route.wanted(document):
                route.enqueue(key)


def _page(tx: Transaction, kind: Kind, after: Key | None) -> tuple[tuple[StoredObject, ...], bool]:
    page = tx.objects.find(kind, Query(limit=PAGE, after=after))
    return page.items, page.after is not None
