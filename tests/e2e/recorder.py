"""What hubs accepted of a cluster, in which order of its agent: read from their rows, again and again, by nobody's leave."""

import asyncio
import sqlite3
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from tests.e2e.hubs import Hub, Row, now

EVERY = 0.01


@dataclass(frozen=True, slots=True)
class Write:
    """A beat that a hub has stored: seen at `at` (microseconds since 1970), taken in this epoch."""

    at: int
    hub: str
    cluster: str
    epoch: int


@dataclass
class Recorder:
    """Looks at all hubs every 10 ms.

    A beat that moved between two looks at which the hub knew the same epoch was taken in that epoch: lower ones are refused,
    and a higher one would show. One that moved together with the epoch counts for neither.
    """

    hubs: Sequence[Hub]
    writes: list[Write] = field(default_factory=list)
    _last: dict[tuple[str, str], Row] = field(default_factory=dict)

    def look(self) -> None:
        for hub in self.hubs:
            try:
                rows = hub.rows()
            except sqlite3.OperationalError:
                continue  # a hub that is just being replaced
            for cluster, row in rows.items():
                last = self._last.get((hub.name, cluster))
                if last is not None and row.epoch == last.epoch and row.beat > last.beat:
                    self.writes.append(Write(now(), hub.name, cluster, row.epoch))
                self._last[hub.name, cluster] = row

    @asynccontextmanager
    async def recording(self) -> AsyncIterator["Recorder"]:
        async def looking() -> None:
            while True:
                await asyncio.to_thread(self.look)
                await asyncio.sleep(EVERY)

        task = asyncio.create_task(looking())
        try:
            yield self
        finally:
            if task.done():
                task.result()
            task.cancel()
            await asyncio.wait([task])


def shared(writes: Sequence[Write]) -> dict[tuple[str, int], set[str]]:
    """Cluster and epoch of which more than one hub accepted a write, and those hubs; there must be none."""
    hubs: dict[tuple[str, int], set[str]] = defaultdict(set)
    for write in writes:
        hubs[write.cluster, write.epoch].add(write.hub)
    return {order: names for order, names in hubs.items() if len(names) > 1}


def backwards(writes: Sequence[Write]) -> list[Write]:
    """Writes in a lower epoch than one that the same hub had accepted before; there must be none."""
    highest: dict[tuple[str, str], int] = defaultdict(int)
    found = []
    for write in writes:
        if write.epoch < highest[write.hub, write.cluster]:
            found.append(write)
        highest[write.hub, write.cluster] = max(highest[write.hub, write.cluster], write.epoch)
    return found
