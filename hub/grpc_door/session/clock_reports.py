"""Writes the clock skews of agents to the database, all waiting ones in one transaction.

An agent sends its time in Hello and with every status report, because a clock may be set during a session of an hour.
"""

import asyncio
from collections.abc import Mapping
from datetime import timedelta

import structlog

from hub.ports import Store, Transaction
from hub.registry.managedclusters import service as clocksync
from machinery.errors import MusterError
from machinery.identity import ClusterName
from machinery.observability.log_once import LogOnce
from machinery.runtime.backoff import Backoff

ACTOR = "system:hub:clock-sync"

SAME = timedelta(seconds=1)
"""Smaller differences from the previous skew are ignored, because a report may be delayed on its way."""

MAX_KEPT = 50_000
"""Clusters whose last skew is kept."""

log = structlog.get_logger(__name__)


class Clocks:
    """`limit`: skew above which a clock is wrong; zero: five lease durations. `run` must be running."""

    def __init__(self, store: Store, limit: timedelta) -> None:
        self._store = store
        self._limit = limit
        self._skews: dict[ClusterName, timedelta] = {}
        self._before: dict[ClusterName, timedelta] = {}
        self._waiting = asyncio.Event()
        self._pauses = Backoff(timedelta(milliseconds=100), timedelta(seconds=5))
        self._failure = LogOnce(log)

    def note(self, cluster: ClusterName, skew: timedelta, *, again: bool = False) -> None:
        """Queues the skew: how far the agent's clock was ahead of the hub's at receipt. Returns at once.

        `again`: it is not the first one of its session, so that only a change counts.
        """
        before = self._before.get(cluster)
        if again and before is not None and abs(skew - before) < SAME:
            return
        if len(self._before) >= MAX_KEPT:
            self._before.clear()
        self._before[cluster] = self._skews[cluster] = skew
        self._waiting.set()

    async def run(self) -> None:
        """Writes until cancelled. Failures are retried after a pause."""
        while True:
            await self._waiting.wait()
            self._waiting.clear()
            await self.write()

    async def write(self) -> None:
        """Writes the waiting skews."""
        skews, self._skews = self._skews, {}
        try:
            await self._store.run(_note, skews, self._limit)
            self._pauses.reset()
            self._failure.reset()
        except MusterError as error:
            self._failure.warning("what agents' clocks say cannot be written down", error.message)
            self._skews = skews | self._skews
            await asyncio.sleep(self._pauses.next().total_seconds())
            self._waiting.set()


def _note(tx: Transaction, skews: Mapping[ClusterName, timedelta], limit: timedelta) -> None:
    """Writes in the order of names, so that two replicas never wait for each other's locks."""
    for cluster, skew in sorted(skews.items()):
        clocksync.note_clock_skew(tx, cluster, skew, limit, ACTOR)
