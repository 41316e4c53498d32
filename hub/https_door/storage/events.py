"""Storage of Events: ordinary objects, written at a limited rate so that no source of events overloads the hub.

Each Event costs a row and each change of one a line of the change log. So both are limited, per namespace and in total, as by
Kubernetes' EventRateLimit admission, which does not count dry runs either. Clients above the rate get a retry delay, and
Kubernetes' clients drop what they cannot send. Reads and watches are not limited.
"""

from threading import Lock

from hub.https_door.storage.feed import ChangeFeed
from hub.https_door.storage.storage import ServiceStorage
from hub.ports import Store
from machinery.apiserver.http.limits import Rates
from machinery.apiserver.storage import Actor, GroupResource, UpdateFunc
from machinery.errors import TooManyRequestsError
from machinery.meta.objects import Document, Key, StoredObject
from machinery.runtime.clock import Clock

PER_NAMESPACE = (10, 100)
"""Events per second on average, and as a burst."""
TOTAL = (100, 1000)


class EventStorage(ServiceStorage):
    """`ServiceStorage` of Events with rate limits for create and update."""

    def __init__(
        self,
        store: Store,
        feed: ChangeFeed,
        group_suffix: str,
        clock: Clock,
        *,
        per_namespace: tuple[float, int] = PER_NAMESPACE,
        together: tuple[float, int] = TOTAL,
    ) -> None:
        super().__init__(store, feed, group_suffix)
        self._rates, self._total = Rates(*per_namespace, clock), Rates(*together, clock)
        self._lock = Lock()  # updates count on the store's threads

    async def create(
        self, resource: GroupResource, key: Key, document: Document, actor: Actor, *, dry_run: bool = False
    ) -> StoredObject:
        """Also raises TooManyRequestsError."""
        if not dry_run:
            self._count(key.namespace)
        return await super().create(resource, key, document, actor, dry_run=dry_run)

    async def update(
        self, resource: GroupResource, key: Key, change: UpdateFunc, actor: Actor, *, dry_run: bool = False
    ) -> StoredObject:
        """Also raises TooManyRequestsError. Deletions are not limited."""

        def paced(old: Document) -> Document | None:
            new = change(old)
            if new is not None and new is not old and not dry_run:
                self._count(key.namespace)
            return new

        return await super().update(resource, key, paced, actor, dry_run=dry_run)

    def _count(self, namespace: str) -> None:
        try:
            with self._lock:
                self._rates.check(namespace)
                self._total.check("")
        except TooManyRequestsError as error:
            why = f'too many events in namespace "{namespace}": send fewer'
            raise TooManyRequestsError(why, retry_after=error.retry_after) from None
