"""What agents' clocks said, on its way to the database: all that has come in one transaction.

An agent says it when its session begins, and with every status report: a session may last for an hour, and a clock be set
meanwhile.
"""

import asyncio
from collections.abc import Mapping
from datetime import timedelta

import structlog

from hub.ports import Store, Transaction
from hub.registry.managedclusters import clock_sync as clocksync
from machinery.errors import MusterError
from machinery.identity import ClusterName
from machinery.runtime.backoff import Backoff

ACTOR = "system:hub:clock-sync"

SAME = timedelta(seconds=1)
"""What differs by less from what was told before is no news: on its way a report may wait."""

MAX_KEPT = 50_000
"""Clusters whose last word is remembered."""

log = structlog.get_logger(__name__)


class Clocks:
    """`limit`: from which skew on a clock is wrong; zero for five lease durations. `run` must be running."""

    def __init__(self, store: Store, limit: timedelta) -> None:
        self._store = store
        self._limit = limit
        self._skews: dict[ClusterName, timedelta] = {}
        self._before: dict[ClusterName, timedelta] = {}
        self._told = asyncio.Event()
        self._pauses = Backoff(timedelta(milliseconds=100), timedelta(seconds=5))
        self._trouble = ""

    def told(self, cluster: ClusterName, skew: timedelta, *, again: bool = False) -> None:
        """The agent's clock was so far ahead of the hub's, by the hub's stamp. Returns at once.

        `again`: the same session has told it before, and only what is news counts.
        """
        before = self._before.get(cluster)
        if again and before is not None and abs(skew - before) < SAME:
            return
        if len(self._before) >= MAX_KEPT:
            self._before.clear()
        self._before[cluster] = self._skews[cluster] = skew
        self._told.set()

    async def run(self) -> None:
        """Writes for ever. What cannot be written now is tried again after a pause."""
        while True:
            await self._told.wait()
            self._told.clear()
            await self.write()

    async def write(self) -> None:
        """Writes what is not yet written."""
        skews, self._skews = self._skews, {}
        try:
            await self._store.run(_note, skews, self._limit)
            self._pauses.reset()
            self._trouble = ""
        except MusterError as error:
            if error.message != self._trouble:
                log.warning("what agents' clocks say cannot be written down", error=error.message)
            self._trouble = error.message
            self._skews = skews | self._skews
            await asyncio.sleep(self._pauses.next().total_seconds())
            self._told.set()


def _note(tx: Transaction, skews: Mapping[ClusterName, timedelta], limit: timedelta) -> None:
    """In the order of names, so that two replicas never wait for one another."""
    for cluster, skew in sorted(skews.items()):
        clocksync.note(tx, cluster, skew, limit, ACTOR)
