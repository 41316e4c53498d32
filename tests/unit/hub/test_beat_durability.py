"""Heartbeats are acknowledged once they are durable, at their real age, whatever the database does."""

import asyncio
from datetime import timedelta
from typing import Any

from hub.domain.heartbeat import Beat
from hub.heartbeat import BeatBuffer, Sink
from machinery.clock import ManualClock
from machinery.errors import StaleEpochError, UnavailableError
from machinery.identity import cluster_name
from tests.fakes.inline_store import InlineStore
from tests.fakes.virtual_time import in_virtual_time

EDGE, FAR = cluster_name("edge1"), cluster_name("edge2")


class Acks(Sink):
    def __init__(self) -> None:
        self.seen: list[int] = []

    def acknowledge(self, sequence: int, *, ended_silence: bool) -> None:
        del ended_silence
        self.seen.append(sequence)

    def refuse(self, error: StaleEpochError) -> None:
        raise AssertionError(error.message)


class UnwillingStore(InlineStore):
    """A store that is unavailable, or slow, as it is set; it keeps the beats it was given."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock)
        self.away = False
        self.gate = asyncio.Event()
        self.gate.set()
        self.given: list[Beat] = []

    async def run(self, use_case: Any, *args: Any, **kwargs: Any) -> Any:
        await self.gate.wait()
        if self.away:
            raise UnavailableError("the database is away")
        self.given.extend(args[0])
        return await super().run(use_case, *args, **kwargs)

    async def available(self) -> bool | None:
        last = await self.read(lambda tx: tx.heartbeats.of(EDGE))
        assert last is not None
        return last.available


async def test_beat_is_acknowledged_once_it_is_durable_and_the_newest_survives_an_outage() -> None:
    clock, acks = ManualClock(), Acks()
    store = UnwillingStore(clock)
    buffer = BeatBuffer(store, clock, timedelta(seconds=1))
    store.gate.clear()
    buffer.hold(EDGE, 1, acks, available=True)
    clock.advance(timedelta(milliseconds=700))
    flush = asyncio.create_task(buffer.flush())
    await asyncio.sleep(0)
    assert acks.seen == []
    store.gate.set()
    await flush
    assert acks.seen == [1]
    assert await store.available() is True
    assert [beat.age for beat in store.given] == [timedelta(milliseconds=700)]

    store.away = True
    for sequence in (2, 3):
        buffer.hold(EDGE, sequence, acks, available=sequence == 2, ends_silence=sequence == 3)
        await buffer.flush()
        clock.advance(timedelta(seconds=1))
    assert acks.seen == [1]
    store.away = False
    await buffer.flush()
    assert acks.seen == [1, 3]
    assert await store.available() is False


def test_beat_that_ends_a_silence_is_acknowledged_although_the_window_ends_while_it_is_stored() -> None:
    async def story() -> None:
        store, acks = UnwillingStore(ManualClock()), Acks()
        buffer = BeatBuffer(store, ManualClock(), timedelta(milliseconds=20))
        buffer.hold(EDGE, 1, acks, available=True)
        running = asyncio.create_task(buffer.run())
        await asyncio.sleep(1)
        assert acks.seen == [1]
        store.gate.clear()
        buffer.hold(FAR, 2, acks, available=True, ends_silence=True)
        await asyncio.sleep(1)
        assert acks.seen == [1]
        store.gate.set()
        await asyncio.sleep(1)
        assert acks.seen == [1, 2]
        running.cancel()

    in_virtual_time(story())
