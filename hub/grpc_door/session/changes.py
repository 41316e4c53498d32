"""Follows the change log once for all streams of this door and notifies those that wait for an object.

Sessions get a notification without the change and read the store, so that they miss nothing after an interruption. Followers of
a certificate request get the change itself, a recent change immediately, and a notification if changes may have been missed.
Otherwise hundreds of clusters that join together would read each request three times.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import partial
from itertools import chain
from typing import TypeVar

from hub.api.meta.change import ADDONS, MANAGED_CLUSTERS, REQUESTS, Change
from hub.ports import Store
from machinery.identity import ClusterName
from machinery.meta.objects import ChangeType
from machinery.runtime.informer import Informer

MAX_RECENT = 500
"""Requests whose newest change is kept, because agents usually follow a request right after they have submitted it."""
Wake = Callable[[], None]
T = TypeVar("T")


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
        """Records that the reader has read this revision. Changes up to this revision that arrive later are ignored."""
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
        """Returns when there is a change to take, or after this time."""
        with suppress(TimeoutError):
            async with asyncio.timeout(at_most.total_seconds()):
                await self._woken.wait()


class ChangeSubscriptions:
    """Subscriptions to objects. `run` must be running."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._sessions: dict[str, set[Wake]] = {}
        """By cluster."""
        self._followers: dict[str, set[Followed]] = {}
        """By certificate request."""
        self._recent: dict[str, Change] = {}

    @contextmanager
    def subscribe_to_cluster(self, cluster: ClusterName, wake: Wake) -> Iterator[None]:
        """Calls `wake` after every change of the cluster or its add-ons in the block. Read the cluster after entering it."""
        with _added(self._sessions, cluster, wake):
            yield

    @contextmanager
    def followed(self, request: str) -> Iterator[Followed]:
        """Yields the changes of a certificate request while the block runs, a recent one at once.

        If there is no change to take, read the request after entering the block.
        """
        followed = Followed()
        if recent := self._recent.get(request):
            followed.changed(recent)
        with _added(self._followers, request, followed):
            yield followed

    async def run(self) -> None:
        """Follows the change log until cancelled."""
        follow = partial(self._store.follow, kinds=(MANAGED_CLUSTERS, ADDONS, REQUESTS))
        await Informer("sessions", follow, self._sync, self._take).run()

    async def _sync(self) -> int:
        newest = await self._store.read(lambda tx: tx.changes.newest())
        self._recent.clear()
        wakes = [each.wake for followers in self._followers.values() for each in followers]
        for wake in (*wakes, *chain.from_iterable(self._sessions.values())):
            wake()
        return newest

    async def _take(self, changes: Sequence[Change]) -> None:
        for change in changes:
            name = change.key.namespace if change.kind == ADDONS else change.key.name
            if change.kind != REQUESTS:
                for wake in tuple(self._sessions.get(name, ())):
                    wake()
                continue
            self._recent.pop(name, None)
            if change.type is not ChangeType.DELETED:
                self._recent[name] = change
                if len(self._recent) > MAX_RECENT:
                    del self._recent[next(iter(self._recent))]
            for followed in self._followers.get(name, ()):
                followed.changed(change)


@contextmanager
def _added(sets: dict[str, set[T]], key: str, member: T) -> Iterator[None]:
    """Adds a member to the key's set while the block runs."""
    members = sets.setdefault(key, set())
    members.add(member)
    try:
        yield
    finally:
        members.discard(member)
        if not members and sets.get(key) is members:
            del sets[key]
