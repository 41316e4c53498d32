"""Writes reports of many agents to the database in one transaction: their clock skews, and the CAs that they trust."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime, timedelta
from typing import Generic, TypeVar

import structlog

from hub.grpc_door.messages import instant_of
from hub.ports import Store, Transaction
from hub.registry.managedclusters import service as clusters
from machinery.errors import MusterError
from machinery.identity import ClusterName
from machinery.observability.logs import LogOnce
from machinery.runtime.backoff import Backoff
from machinery.wire.session.v1 import session_pb2 as wire

K = TypeVar("K")
V = TypeVar("V")
ACTOR = "system:hub:clock-sync"
BATCH_DELAY = timedelta(milliseconds=200)
"""Reports within this time are written together."""
MAX_BATCH = 500
"""Reports in one transaction."""
SKEW_TOLERANCE = timedelta(seconds=1)
"""Smaller differences from the previous skew are ignored, because a report may be delayed on its way."""
MAX_SKEWS = 50_000
"""Largest number of clusters whose last skews are in memory. At this number, the next skew clears them all."""

log = structlog.get_logger(__name__)


class ReportWriter(Generic[K, V]):
    """Keeps the newest report per key, such as a cluster, until `write` has stored it. `failure`: log event of the errors."""

    def __init__(self, write: Callable[[Mapping[K, V]], Awaitable[object]], failure: str) -> None:
        self._write = write
        self._event = failure
        self._waiting: dict[K, V] = {}
        self._filled = asyncio.Event()

    def put(self, key: K, report: V) -> None:
        """Queues a report, which replaces a waiting one with the same key. Returns immediately."""
        self._waiting[key] = report
        self._filled.set()

    async def run(self) -> None:
        """Writes until cancelled. Failures are retried after a pause."""
        pauses, failure = Backoff(BATCH_DELAY, timedelta(seconds=5)), LogOnce(log)
        while True:
            await self._filled.wait()
            await asyncio.sleep(BATCH_DELAY.total_seconds())
            self._filled.clear()
            try:
                await self.write()
                pauses.reset()
                failure.reset()
            except MusterError as error:
                failure.warning(self._event, error.message)
                await asyncio.sleep(pauses.next().total_seconds())
                self._filled.set()

    async def write(self) -> None:
        """Writes the waiting reports. Raises MusterError; the reports then still wait."""
        while self._waiting:
            reports = {key: self._waiting.pop(key) for key in list(self._waiting)[:MAX_BATCH]}
            try:
                await self._write(reports)
            except BaseException:
                self._waiting = reports | self._waiting
                raise


class Clocks(ReportWriter[ClusterName, timedelta]):
    """Clock skews of clusters. `limit`: skew above which a clock is wrong; zero: five lease durations.

    An agent sends its time in Hello and with every status report, because a clock may be set during a session of an hour.
    """

    def __init__(self, store: Store, limit: timedelta) -> None:
        super().__init__(lambda skews: store.run(_note, skews, limit), "clock skews of agents cannot be stored")
        self._before: dict[ClusterName, timedelta] = {}

    def compare(self, cluster: ClusterName, message: wire.Hello | wire.StatusReport, at: datetime, *, accepted: bool) -> None:
        """Queues an accepted cluster's skew, if `message` has an agent's time. Raises BadRequestError if it is out of range."""
        if message.HasField("agent_time"):
            skew = instant_of(message.agent_time, "agent_time") - at
            if accepted:
                self.note(cluster, skew, again=isinstance(message, wire.StatusReport))
            else:  # its condition is not written, so the first report after the acceptance must be queued
                self._before.pop(cluster, None)

    def note(self, cluster: ClusterName, skew: timedelta, *, again: bool = False) -> None:
        """Queues the skew: how far the agent's clock was ahead of the hub's at receipt (negative: behind).

        `again`: this is not the first report of its session. The skew is then queued only if it differs from the previous one.
        """
        before = self._before.get(cluster)
        if again and before is not None and abs(skew - before) < SKEW_TOLERANCE:
            return
        if len(self._before) >= MAX_SKEWS:
            self._before.clear()
        self._before[cluster] = skew
        self.put(cluster, skew)


def _note(tx: Transaction, skews: Mapping[ClusterName, timedelta], limit: timedelta) -> None:
    """Writes the skews in the order of cluster names, so that two replicas never wait for each other's locks."""
    for cluster, skew in sorted(skews.items()):
        clusters.note_clock_skew(tx, cluster, skew, limit, ACTOR)
