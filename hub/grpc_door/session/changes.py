"""Follows the change log once for all streams of the gRPC door. Wakes the streams that wait for a change of an object.

Sessions read the store when they wake up, so that they miss nothing after an interruption. Streams that follow a certificate
request take its newest change from here. Otherwise, when hundreds of clusters join at the same time, the hub would read each
request three times.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain

from hub.api.meta.change import ADDONS, MANAGED_CLUSTERS, REQUESTS, Change, Kind
from hub.ports import Store
from machinery.meta.objects import ChangeType
from machinery.runtime.informer import Informer

MAX_RECENT = 1_000
"""Largest number of certificate requests whose newest change is in memory. Agents follow a request soon after they send it."""
Wake = Callable[[], None]


class ChangeSubscriptions:
    """Wakes streams after changes of the objects to which they subscribe. `run` must be running."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._waiting: dict[tuple[Kind, str], set[Wake]] = {}
        """The callbacks of streams that wait for a change, by kind and name of the object."""
        self._recent: dict[str, Change] = {}

    @contextmanager
    def subscribe(self, kind: Kind, name: str, wake: Wake) -> Iterator[None]:
        """While the block runs, calls `wake` after every change of the object `name`; for a cluster, also of its add-ons.

        Also calls `wake` when it may have missed changes. Read the object after entering the block.
        """
        waiting = self._waiting.setdefault((kind, name), set())
        waiting.add(wake)
        try:
            yield
        finally:
            waiting.discard(wake)
            if not waiting and self._waiting.get((kind, name)) is waiting:
                del self._waiting[kind, name]

    def newest(self, request: str) -> Change | None:
        """Returns the newest change of the certificate request with this name; None: it is not in memory, so read the store."""
        return self._recent.get(request)

    async def run(self) -> None:
        """Follows the change log until cancelled."""
        follow = partial(self._store.follow, kinds=(MANAGED_CLUSTERS, ADDONS, REQUESTS))
        await Informer("sessions", follow, self._sync, self._take).run()

    async def _sync(self) -> int:
        newest = await self._store.read(lambda tx: tx.changes.newest())
        self._recent.clear()
        for wake in tuple(chain.from_iterable(self._waiting.values())):
            wake()
        return newest

    async def _take(self, changes: Sequence[Change]) -> None:
        for change in changes:
            kind, name = (MANAGED_CLUSTERS, change.key.namespace) if change.kind == ADDONS else (change.kind, change.key.name)
            if kind == REQUESTS:
                self._recent.pop(name, None)
                if change.type is not ChangeType.DELETED:
                    self._recent[name] = change
                    if len(self._recent) > MAX_RECENT:
                        del self._recent[next(iter(self._recent))]
            for wake in tuple(self._waiting.get((kind, name), ())):
                wake()
