"""Owns the end of a silence's patience: ManagedClusterConditionAvailable becomes Unknown exactly when a grace is over.

A silent cluster is unknown, not down. The end of a silence is not this controller's: the beat that ends it commits that.
"""

from collections.abc import Callable
from datetime import datetime, timedelta

from hub.controllers import ACTOR
from hub.ports import Store
from hub.services import heartbeats
from machinery.controller import Reconciler
from machinery.identity import ClusterName

NAME = "availability"


class Availability(Reconciler[ClusterName]):
    """Judges in database time. `since`: the database time from which beats could be stored without a gap until now."""

    def __init__(self, store: Store, *, window: timedelta, since: Callable[[], datetime]) -> None:
        self._store = store
        self._window = window
        self._since = since

    async def reconcile(self, key: ClusterName) -> timedelta | None:
        """Returns how long the rest of the grace is, so that the next look comes when it ends."""
        actor = f"{ACTOR}:{NAME}"
        expiry = await self._store.run(heartbeats.expire, key, window=self._window, since=self._since(), actor=actor)
        return expiry.look_again
