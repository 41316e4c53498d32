"""Owns the end of a silence's patience: ManagedClusterConditionAvailable becomes Unknown exactly when a grace is over.

A silent cluster is unknown, not down. The end of a silence is not this controller's: the beat that ends it commits that.

Clusters that are due together are looked at together, in one reading transaction, and those that have fallen silent are told so
in a few writing ones: thousands that fall silent at once cost dozens of commits.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial

from hub.controllers import ACTOR
from hub.controllers.agenda import Agenda
from hub.domain.lease import Expiry
from hub.ports import Store, Transaction
from hub.services import heartbeats
from machinery.clock import Clock
from machinery.controller import Reconciler
from machinery.identity import ClusterName

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


class Availability(Reconciler[str]):
    """Judges in database time. Its queue holds one key; the clusters wait here, each for the end of its grace.

    `since`: asked inside a transaction, answers from when on beats could be stored without a gap; None: not at the moment.
    """

    def __init__(self, store: Store, clock: Clock, *, window: timedelta, since: Since) -> None:
        self._store = store
        self._agenda = Agenda(clock)
        self._window = window
        self._since = since

    def wants(self, cluster: ClusterName) -> None:
        """Has the cluster looked at in the next step, which the caller enqueues."""
        self._agenda.news((cluster,))

    async def reconcile(self, key: str) -> timedelta | None:  # noqa: ARG002 - there is only one
        """Returns how long the next grace to end still lasts.

        Nearly every look finds a beat, so it only reads. What it would write is judged once more where it is written.
        """
        found = await self._all(self._agenda.take(LOOKED_AT, ahead=AHEAD))
        for cluster, expiry in found.items():
            self._agenda.wait(cluster, expiry.look_again)
        return self._agenda.pause()

    async def _all(self, clusters: Sequence[ClusterName]) -> Mapping[ClusterName, Expiry]:
        """Those that could not be looked at wait again."""
        try:
            found = dict(await self._store.read(self._look, clusters, heartbeats.silence))
            due = [cluster for cluster, expiry in found.items() if expiry.is_due]
            for start in range(0, len(due), WRITTEN):
                found |= await self._expire(due[start : start + WRITTEN])
        except Exception:
            self._agenda.news(clusters)
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
