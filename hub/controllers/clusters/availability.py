"""Owns the end of a silence's patience: ManagedClusterConditionAvailable becomes Unknown exactly when a grace is over.

A silent cluster is unknown, not down. The end of a silence is not this controller's: the beat that ends it commits that.

Clusters that are due together are looked at together, in one reading transaction, and those that have fallen silent are told so
in a few writing ones: thousands that fall silent at once cost dozens of commits.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial

from hub.api.liveness.lease import Expiry
from hub.controllers import ACTOR
from hub.controllers.delaying_queue import BatchRunner, DelayingQueue
from hub.ports import Store, Transaction
from hub.registry.liveness import heartbeats
from machinery.identity import ClusterName
from machinery.runtime.clock import Clock
from machinery.runtime.controller import Reconciler

NAME = "availability"

UNSURE = timedelta(seconds=1)
"""When to look again while beats cannot be stored, so that nobody can be called silent."""
AHEAD = timedelta(seconds=5)
"""Who is due so soon is looked at with who is due now. Nearly always a beat has come, and the next look is a grace away: with
1,000 clusters the hub is woken every five seconds for that, in place of three times a second."""
LOOKED_AT, WRITTEN = 500, 100
"""Clusters in one reading and in one writing transaction."""

Since = Callable[[Transaction], datetime | None]
_Judge = Callable[..., Expiry]


class AvailabilityController(Reconciler[str]):
    """Judges in database time. Its queue holds one key; the clusters wait here, each for the end of its grace.

    `since`: asked inside a transaction, answers from when on beats could be stored without a gap; None: not at the moment.
    """

    def __init__(self, store: Store, clock: Clock, *, window: timedelta, since: Since) -> None:
        self._store = store
        self._agenda = DelayingQueue(clock)
        self._window = window
        self._since = since

    def wants(self, cluster: ClusterName) -> None:
        """Has the cluster looked at in the next step, which the caller enqueues."""
        self._agenda.news((cluster,))

    async def reconcile(self, key: str) -> timedelta | None:  # noqa: ARG002 - there is only one
        """Returns how long the next grace to end still lasts. A cluster that fails holds up no other; see `BatchRunner.ended`.

        Nearly every look finds a beat, so it only reads. What it would write is judged once more where it is written.
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
