"""Storage of Events: ordinary objects, written at a limited rate so that no source of events overloads the hub.

Each Event costs a row and each change of one a line of the change log. So both are limited, per namespace and in total, as by
Kubernetes' EventRateLimit admission, which does not count dry runs either. Clients above the rate get a retry delay, and
Kubernetes' clients drop what they cannot send. Reads and watches are not limited.
"""

from dataclasses import dataclass, field
from datetime import timedelta
from threading import Lock

from hub.https_door.storage.feed import ChangeFeed
from hub.https_door.storage.storage import ServiceStorage
from hub.ports import Store
from machinery.apiserver.storage import Actor, GroupResource, UpdateFunc
from machinery.errors import TooManyRequestsError
from machinery.meta.objects import Document, Key, StoredObject
from machinery.runtime.clock import Clock

MANY_NAMESPACES = 10_000
EVERYWHERE = ""


@dataclass(frozen=True, slots=True)
class Rate:
    """Events per second on average, and as a burst."""

    per_second: float
    burst: int


@dataclass(slots=True)
class Pace:
    """Rate limiter. For each key it keeps the time at which all admitted events would be due at the even rate."""

    rate: Rate
    _due: dict[str, float] = field(default_factory=dict)
    _lock: Lock = field(default_factory=Lock)

    def wait(self, key: str, now: float) -> float:
        """Returns the seconds that `key` has to wait; 0: it may proceed, and is counted. Thread-safe."""
        with self._lock:
            return self._wait(key, now)

    def _wait(self, key: str, now: float) -> float:
        due = max(self._due.get(key, now), now)
        slack = (self.rate.burst - 1) / self.rate.per_second
        if due > now + slack:
            return due - slack - now
        if len(self._due) > MANY_NAMESPACES:
            self._due = {known: moment for known, moment in self._due.items() if moment > now}
        self._due[key] = due + 1 / self.rate.per_second
        return 0.0


PER_NAMESPACE = Rate(per_second=10, burst=100)
TOGETHER = Rate(per_second=100, burst=1000)


class EventStorage(ServiceStorage):
    """`ServiceStorage` of Events with rate limits for create and update."""

    def __init__(
        self,
        store: Store,
        feed: ChangeFeed,
        group_suffix: str,
        clock: Clock,
        *,
        per_namespace: Rate = PER_NAMESPACE,
        together: Rate = TOGETHER,
    ) -> None:
        super().__init__(store, feed, group_suffix)
        self._clock = clock
        self._paces = (Pace(per_namespace), Pace(together))

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
        now = self._clock.monotonic()
        own, all_together = self._paces
        seconds = own.wait(namespace, now) or all_together.wait(EVERYWHERE, now)
        if seconds:
            whose = f'namespace "{namespace}"'
            raise TooManyRequestsError(f"too many events in {whose}: send fewer", retry_after=timedelta(seconds=seconds))
