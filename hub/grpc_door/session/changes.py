"""Follows the change log once for all streams of this door and notifies those that wait for an object.

Sessions get a notification without the change and read the store, so that nothing is missed after an interruption. Followers of
a certificate request get the change itself, a recent one at once, and a notification if changes may have been missed: otherwise
hundreds of clusters that join at once would read each of their requests three times.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from datetime import timedelta
from functools import partial

from hub.api.meta.change import ADDONS, MANAGED_CLUSTERS, REQUESTS, Change, Kind
from hub.ports import Store, Transaction
from machinery.identity import ClusterName
from machinery.meta.objects import ChangeType
from machinery.runtime.informer import Informer

REMEMBERED = 500
"""Requests whose newest change is kept, because agents usually follow a request right after they have submitted it."""
Wake = Callable[[], None]
Topic = tuple[Kind, str]
"""MANAGED_CLUSTERS and a cluster's name; changes of its add-ons are included."""


class Followed:
    """Changes of one object for one reader; only the newest is kept."""

    def __init__(self) -> None:
        self._woken = asyncio.Event()
        self._newest: Change | None = None
        self._in_doubt = False
        self._known = 0

    def changed(self, change: Change) -> None:
        """Delivers a change, unless the reader has read a revision at least as new."""
        if change.revision > self._known:
            self._newest = change
            self._woken.set()

    def read(self, revision: int) -> None:
        """Records that the reader has read this revision; changes up to it that arrive later are ignored."""
        self._known = revision
        if self._newest is not None and self._newest.revision <= revision:
            self._newest = None
            if not self._in_doubt:
                self._woken.clear()

    def wake(self) -> None:
        """Wakes the reader to read the store: changes may have been missed, or another condition has changed."""
        self._in_doubt = True
        self._woken.set()

    def take(self) -> Change | None:
        """Returns the newest change since the last call; None: read the store."""
        newest, in_doubt = self._newest, self._in_doubt
        self._newest, self._in_doubt = None, False
        self._woken.clear()
        return None if in_doubt else newest

    async def wait(self, at_most: timedelta) -> None:
        """Returns when there is something to take, or after this time."""
        with suppress(TimeoutError):
            async with asyncio.timeout(at_most.total_seconds()):
                await self._woken.wait()


class ChangeSubscriptions:
    """Subscriptions to objects. `run` must be running."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._waiting: dict[Topic, set[Wake]] = {}
        self._following: dict[str, set[Followed]] = {}
        self._recent: dict[str, Change] = {}

    @contextmanager
    def told(self, kind: Kind, name: str, wake: Wake) -> Iterator[None]:
        """Calls `wake` after every change of the object while the block runs. Read the object after entering the block."""
        listeners = self._waiting.setdefault((kind, name), set())
        listeners.add(wake)
        try:
            yield
        finally:
            listeners.discard(wake)
            if not listeners and self._waiting.get((kind, name)) is listeners:
                del self._waiting[kind, name]

    def subscribe_to_cluster(self, cluster: ClusterName, wake: Wake) -> AbstractContextManager[None]:
        return self.told(MANAGED_CLUSTERS, cluster, wake)

    @contextmanager
    def followed(self, request: str) -> Iterator[Followed]:
        """Yields the changes of a certificate request while the block runs, a recent one at once.

        If there is no change to take, read the request after entering the block.
        """
        followed = Followed()
        if recent := self._recent.get(request):
            followed.changed(recent)
        followers = self._following.setdefault(request, set())
        followers.add(followed)
        try:
            yield followed
        finally:
            followers.discard(followed)
            if not followers and self._following.get(request) is followers:
                del self._following[request]

    async def run(self) -> None:
        """Follows the change log until cancelled."""
        follow = partial(self._store.follow, kinds=(MANAGED_CLUSTERS, ADDONS, REQUESTS))
        await Informer("sessions", follow, self._sync, self._take).run()

    async def _sync(self) -> int:
        newest = await self._store.read(_newest)
        self._wake_all()
        return newest

    async def _take(self, changes: Sequence[Change]) -> None:
        for change in changes:
            self._wake(change)

    def _wake(self, change: Change) -> None:
        if change.kind == REQUESTS:
            self._remember(change)
            for followed in self._following.get(change.key.name, ()):
                followed.changed(change)
            return
        topic = (MANAGED_CLUSTERS, change.key.namespace) if change.kind == ADDONS else (change.kind, change.key.name)
        for wake in tuple(self._waiting.get(topic, ())):
            wake()

    def _remember(self, change: Change) -> None:
        self._recent.pop(change.key.name, None)
        if change.type is not ChangeType.DELETED:
            self._recent[change.key.name] = change
            if len(self._recent) > REMEMBERED:
                del self._recent[next(iter(self._recent))]

    def _wake_all(self) -> None:
        self._recent.clear()
        for followers in self._following.values():
            for followed in followers:
                followed.wake()
        for listeners in tuple(self._waiting.values()):
            for wake in tuple(listeners):
                wake()


def _newest(tx: Transaction) -> int:
    return tx.changes.newest()
