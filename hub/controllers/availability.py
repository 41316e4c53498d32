"""Owns the end of a silence's patience: ManagedClusterConditionAvailable becomes Unknown exactly when a grace is over.

A silent cluster is unknown, not down. The end of a silence is not this controller's: the beat that ends it commits that.

Clusters that are due together are looked at together, in one reading transaction, and those that have fallen silent are told so
in a few writing ones: thousands that fall silent at once cost dozens of commits.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from heapq import heappop, heappush

from hub.controllers import ACTOR
from hub.domain.lease import Expiry
from hub.ports import Store, Transaction
from hub.services import heartbeats
from machinery.clock import Clock
from machinery.controller import Reconciler
from machinery.identity import ClusterName

NAME = "availability"

UNSURE = timedelta(seconds=1)
"""When to look again while beats cannot be stored, so that nobody can be called silent."""
LOOKED_AT, WRITTEN = 500, 100
"""Clusters in one reading and in one writing transaction."""

Since = Callable[[Transaction], datetime | None]
_Judge = Callable[..., Expiry]


class Availability(Reconciler[str]):
    """Judges in database time. Its queue holds one key; the clusters wait here, each for the end of its grace.

    `since`: asked inside a transaction, answers from when on beats could be stored without a gap; None: not at the moment.
    """

    def __init__(self, store: Store, clock: Clock, *, window: timedelta, since: Since) -> None:
        self._store = store
        self._clock = clock
        self._window = window
        self._since = since
        self._news: dict[ClusterName, None] = {}
        self._due: dict[ClusterName, float] = {}
        self._order: list[tuple[float, ClusterName]] = []

    def wants(self, cluster: ClusterName) -> None:
        """Has the cluster looked at in the next step, which the caller enqueues."""
        self._news[cluster] = None

    async def reconcile(self, key: str) -> timedelta | None:  # noqa: ARG002 - there is only one
        """Returns how long the next grace to end still lasts.

        Nearly every look finds a beat, so it only reads. What it would write is judged once more where it is written.
        """
        clusters = self._next()
        found = await self._all(clusters)
        now = self._clock.monotonic()
        for cluster, expiry in found.items():
            self._wait(cluster, expiry.look_again, now)
        return timedelta() if self._news else self._pause(now)

    async def _all(self, clusters: Sequence[ClusterName]) -> Mapping[ClusterName, Expiry]:
        """Those that could not be looked at wait again."""
        try:
            found = dict(await self._store.read(self._look, clusters, heartbeats.silence))
            due = [cluster for cluster, expiry in found.items() if expiry.is_due]
            for start in range(0, len(due), WRITTEN):
                found |= await self._expire(due[start : start + WRITTEN])
        except Exception:
            self._news |= dict.fromkeys(clusters)
            raise
        return found

    async def _expire(self, clusters: Sequence[ClusterName]) -> Mapping[ClusterName, Expiry]:
        """In one transaction; if that fails each alone, so that none suffers for another."""
        expire = partial(heartbeats.expire, actor=f"{ACTOR}:{NAME}")
        try:
            return await self._store.run(self._look, clusters, expire)
        except Exception:
            if len(clusters) == 1:
                raise
        found: dict[ClusterName, Expiry] = {}
        for cluster in clusters:
            found |= await self._expire([cluster])
        return found

    def _look(self, tx: Transaction, clusters: Sequence[ClusterName], judge: _Judge) -> Mapping[ClusterName, Expiry]:
        since = self._since(tx)
        if since is None:
            return dict.fromkeys(clusters, Expiry(expired=False, look_again=UNSURE))
        return {cluster: judge(tx, cluster, window=self._window, since=since) for cluster in clusters}

    def _next(self) -> Sequence[ClusterName]:
        """What is news, then what is due by now."""
        chosen = dict.fromkeys(tuple(self._news)[:LOOKED_AT])
        for cluster in chosen:
            del self._news[cluster]
        now = self._clock.monotonic()
        while self._order and self._order[0][0] <= now and len(chosen) < LOOKED_AT:
            due, cluster = heappop(self._order)
            if self._due.get(cluster) == due:
                chosen[cluster] = None
        return tuple(chosen)

    def _wait(self, cluster: ClusterName, delay: timedelta | None, now: float) -> None:
        if delay is None:
            self._due.pop(cluster, None)
            return
        due = now + delay.total_seconds()
        self._due[cluster] = due
        heappush(self._order, (due, cluster))

    def _pause(self, now: float) -> timedelta | None:
        while self._order and self._due.get(self._order[0][1]) != self._order[0][0]:
            heappop(self._order)
        return timedelta(seconds=max(0.0, self._order[0][0] - now)) if self._order else None
