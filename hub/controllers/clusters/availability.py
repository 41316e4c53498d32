"""Sets ManagedClusterConditionAvailable to Unknown when the grace of a silent cluster ends.

A silent cluster is Unknown, not False. The transaction that stores its next beat ends the silence, not this controller.

Clusters that are due together are read in one transaction, and the silent ones are written in a few: thousands of clusters that
become silent at once cost dozens of commits.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial

from hub.api.liveness import Expiry
from hub.controllers import ACTOR
from hub.controllers.delaying_queue import BatchRunner, DelayingQueue
from hub.ports import Store, Transaction
from hub.registry.liveness import heartbeats
from machinery.identity import ClusterName
from machinery.runtime.clock import Clock
from machinery.runtime.controller import Reconciler

NAME = "availability"

UNSURE = timedelta(seconds=1)
"""Interval between checks while beats cannot be stored, so that no cluster counts as silent."""
AHEAD = timedelta(seconds=5)
"""Clusters due within this time are checked with those due now: most have sent a beat and are next due a grace later. With
1,000 clusters, the hub wakes up every five seconds instead of three times a second."""
LOOKED_AT, WRITTEN = 500, 100
"""Clusters per reading and per writing transaction."""

Since = Callable[[Transaction], datetime | None]
_Judge = Callable[..., Expiry]


class AvailabilityController(Reconciler[str]):
    """Judges in database time. The queue holds one key; clusters wait here for the end of their grace.

    `since`: returns, in a transaction, since when beats could be stored without a gap; None: they cannot be stored now.
    """

    def __init__(self, store: Store, clock: Clock, *, window: timedelta, since: Since) -> None:
        self._store = store
        self._agenda = DelayingQueue(clock)
        self._window = window
        self._since = since

    def wants(self, cluster: ClusterName) -> None:
        """Check the cluster in the next step, which the caller enqueues."""
        self._agenda.news((cluster,))

    async def reconcile(self, key: str) -> timedelta | None:  # noqa: ARG002 - there is only one
        """Return the time until the next grace ends. A failing cluster does not block others; see `BatchRunner.ended`.

        Nearly every check finds a beat, so it only reads. The writing transaction judges again.
        """
        attempts: BatchRunner[Expiry] = BatchRunner()
        await attempts.make(self._agenda.take(LOOKED_AT, ahead=AHEAD), self._silence)
        due = [cluster for cluster, expiry in attempts.done.items() if expiry.is_due]
        for cluster in due:
            del attempts.done[cluster]
        for start in range(0, len(due), WRITTEN):
            await attempts.make(due[start : start + WRITTEN], self._expire)
        attempts.settle(self._agenda, lambda expiry: expiry.look_again)
        return attempts.ended(self._agenda.pause())

    async def _silence(self, clusters: Sequence[ClusterName]) -> Mapping[ClusterName, Expiry]:
        return await self._store.read(self._look, clusters, heartbeats.silence)

    async def _expire(self, clusters: Sequence[ClusterName]) -> Mapping[ClusterName, Expiry]:
        return await self._store.run(self._look, clusters, partial(heartbeats.expire, actor=f"{ACTOR}:{NAME}"))

    def _look(self, tx: Transaction, clusters: Sequence[ClusterName], judge: _Judge) -> Mapping[ClusterName, Expiry]:
        since = self._since(tx)
        if since is None:
            return dict.fromkeys(clusters, Expiry(expired=False, look_again=UNSURE))
        return {cluster: judge(tx, cluster, window=self._window, since=since) for cluster in clusters}
