"""The controllers of silence with what feeds them."""

import asyncio
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest

from hub.domain import cluster as rules
from hub.domain.change import MANAGED_CLUSTERS, Key
from hub.domain.heartbeat import Beat
from hub.domain.lease import grace
from hub.ports import Transaction
from hub.services import clusters, heartbeats
from hub.settings import load
from hub.silence import Silence
from machinery.conditions import UNKNOWN
from machinery.errors import UnavailableError
from machinery.identity import ClusterName
from tests.fakes.memory_store import MemoryStore
from tests.fakes.virtual_time import LoopClock, in_virtual_time

SETTINGS = load({}, None, {})
LEASE, SECOND, LONG = timedelta(seconds=1), timedelta(seconds=1), timedelta(minutes=10)


def joined(tx: Transaction, name: ClusterName) -> None:
    spec = {"hubAcceptsClient": True, "leaseDurationSeconds": round(LEASE.total_seconds())}
    clusters.put(tx, {"metadata": {"name": name}, "spec": spec}, None, "admin")
    clusters.set_condition(tx, name, rules.ACCEPTED, "test")
    heartbeats.flush(tx, [Beat(name, timedelta(), available=True)])


def is_unknown(tx: Transaction, name: ClusterName) -> bool:
    stored = tx.objects.get(MANAGED_CLUSTERS, Key("", name))
    available = rules.availability(stored.document) if stored else None
    return available is not None and available.status == UNKNOWN


class Outage:
    """A database that goes away for LONG, and is back right after one more attempt. `heard`: since when it answers."""

    def __init__(self, store: MemoryStore, clock: LoopClock) -> None:
        self._store, self._right = store, store.read
        self._clock = clock
        self.heard = clock.now()
        self.back = asyncio.Event()

    def begin(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.heard = self._clock.now()
        monkeypatch.setattr(self._store, "read", self._read)

    async def _read(self, *args: Any, **kwargs: Any) -> Any:
        if self.back.is_set():
            return await self._right(*args, **kwargs)
        if self._clock.now() - self.heard >= LONG:
            asyncio.get_running_loop().call_later(0.01, self._end)
        raise UnavailableError("the database does not answer")

    def _end(self) -> None:
        self.heard = self._clock.now()
        self.back.set()


@pytest.mark.parametrize("fleet", [1, 5])
def test_a_silence_is_noticed_on_time_though_the_database_was_away_for_long(
    fleet: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def late() -> timedelta:
        clock = LoopClock(asyncio.get_running_loop())
        store = MemoryStore(clock)
        outage = Outage(store, clock)
        subject = Silence(store, SETTINGS, clock, lambda _tx: outage.heard, lambda _told: None)
        names = [ClusterName(f"c{number}") for number in range(fleet)]
        for name in names:
            store.transact(joined, name)
            subject.routes[0].enqueue(Key("", name))
        running = asyncio.create_task(subject.controllers[0].run())
        await asyncio.sleep(1)
        outage.begin(monkeypatch)
        await outage.back.wait()
        while not all([await store.read(is_unknown, name) for name in names]):
            await store.wait_for_change(store.state.revision, LONG)
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running
        return clock.now() - outage.heard

    due = grace(LEASE) + SETTINGS.flush_window
    assert due <= in_virtual_time(late()) <= due + SECOND
