"""What agents' clocks said when their sessions began, on its way to the database: all that has come in one transaction."""

import asyncio
from collections.abc import Mapping
from datetime import timedelta

import structlog

from hub.ports import Store, Transaction
from hub.services import clocksync
from machinery.backoff import Backoff
from machinery.errors import MusterError
from machinery.identity import ClusterName

ACTOR = "system:hub:clock-sync"

log = structlog.get_logger(__name__)


class Clocks:
    """`limit`: from which skew on a clock is wrong; zero for five lease durations. `run` must be running."""

    def __init__(self, store: Store, limit: timedelta) -> None:
        self._store = store
        self._limit = limit
        self._skews: dict[ClusterName, timedelta] = {}
        self._told = asyncio.Event()
        self._pauses = Backoff(timedelta(milliseconds=100), timedelta(seconds=5))

    def told(self, cluster: ClusterName, skew: timedelta) -> None:
        """The agent's clock was so far ahead of the hub's, by the hub's stamp. Returns at once."""
        self._skews[cluster] = skew
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
        except MusterError as error:
            log.warning("what agents' clocks say cannot be written down", error=error.message)
            self._skews = skews | self._skews
            await asyncio.sleep(self._pauses.next().total_seconds())
            self._told.set()


def _note(tx: Transaction, skews: Mapping[ClusterName, timedelta], limit: timedelta) -> None:
    """In the order of names, so that two replicas never wait for one another."""
    for cluster, skew in sorted(skews.items()):
        clocksync.note(tx, cluster, skew, limit, ACTOR)
