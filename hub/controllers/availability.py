"""Owns the end of a silence's patience: ManagedClusterConditionAvailable becomes Unknown exactly when a grace is over.

A silent cluster is unknown, not down. The end of a silence is not this controller's: the beat that ends it commits that.
"""

from collections.abc import Callable
from datetime import datetime, timedelta
from functools import partial

from hub.controllers import ACTOR
from hub.domain.lease import Expiry
from hub.ports import Store, Transaction
from hub.services import heartbeats
from machinery.controller import Reconciler
from machinery.identity import ClusterName

NAME = "availability"


UNSURE = timedelta(seconds=1)
"""When to look again while beats cannot be stored, so that nobody can be called silent."""

Since = Callable[[datetime], datetime | None]


class Availability(Reconciler[ClusterName]):
    """Judges in database time.

    `since`: told the database's time, answers from when on beats could be stored without a gap; None: not at the moment.
    It is asked inside the transaction, on a thread of the store: a transaction may wait for the same database that the
    beats wait for.
    """

    def __init__(self, store: Store, *, window: timedelta, since: Since) -> None:
        self._store = store
        self._window = window
        self._since = since

    async def reconcile(self, key: ClusterName) -> timedelta | None:
        """Returns how long the rest of the grace is, so that the next look comes when it ends.

        Nearly every look finds a beat, so it only reads. What it would write is judged once more where it is written.
        """
        found = await self._store.read(self._look, key, heartbeats.silence)
        if found.is_due:
            found = await self._store.run(self._look, key, partial(heartbeats.expire, actor=f"{ACTOR}:{NAME}"))
        return found.look_again

    def _look(self, tx: Transaction, cluster: ClusterName, judge: Callable[..., Expiry]) -> Expiry:
        since = self._since(tx.now)
        if since is None:
            return Expiry(expired=False, look_again=UNSURE)
        return judge(tx, cluster, window=self._window, since=since)
