"""What the store keeps about availability: transitions, and the replicas' marks. On every implementation."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import pairwise

from hub.domain.hearing import Mark
from hub.domain.heartbeat import Beat
from hub.domain.transition import Transition
from hub.ports import Store, Transaction
from machinery.clock import ManualClock
from machinery.identity import ClusterName

SECOND = timedelta(seconds=1)
SILENT = "ManagedClusterLeaseUpdateStopped"
C1, C2 = ClusterName("c1"), ClusterName("c2")


async def add(store: Store, clock: ManualClock, cluster: ClusterName, *steps: str, reason: str = SILENT) -> None:
    """Transitions through these statuses, a second apart."""
    for before, status in pairwise(steps):
        clock.advance(SECOND)
        why = reason if status == "Unknown" else "Well"
        await store.run(_add, Transition(cluster, f"uid-{cluster}", clock.now(), before, status, why, "me"))


def _add(tx: Transaction, transition: Transition) -> None:
    tx.transitions.add(transition)


def _falls(tx: Transaction, since: datetime, among: list[ClusterName]) -> Mapping[ClusterName, Sequence[datetime]]:
    return tx.transitions.falls(since, among)


def _put(tx: Transaction, mark: Mark) -> None:
    tx.marks.put(mark)


async def test_transitions_are_told_newest_first(store: Store, clock: ManualClock) -> None:
    start = clock.now()
    await add(store, clock, C1, "", "True", "Unknown")
    await add(store, clock, C2, "", "True")
    found = await store.read(lambda tx: tx.transitions.of(C1, limit=5))
    assert found == [
        Transition(C1, "uid-c1", start + 2 * SECOND, "True", "Unknown", SILENT, "me"),
        Transition(C1, "uid-c1", start + SECOND, "", "True", "Well", "me"),
    ]
    assert await store.read(lambda tx: tx.transitions.of(C1, limit=1)) == found[:1]
    assert await store.read(lambda tx: tx.transitions.of(C1, limit=5, uid="uid-c1")) == found
    assert await store.read(lambda tx: tx.transitions.of(C1, limit=5, uid="another")) == []


async def test_falls_are_told_from_an_instant_on(store: Store, clock: ManualClock) -> None:
    start = clock.now()
    await add(store, clock, C1, "", "True", "Unknown", "True", "False", "Unknown", "True")
    await add(store, clock, C2, "", "Unknown", "")
    first, second = start + 2 * SECOND, start + 4 * SECOND
    assert dict(await store.read(lambda tx: tx.transitions.falls(start))) == {C1: [first, second]}
    assert dict(await store.read(lambda tx: tx.transitions.falls(first))) == {C1: [second]}
    assert dict(await store.read(lambda tx: tx.transitions.falls(start + 9 * SECOND))) == {}
    many = [ClusterName(f"other{number}") for number in range(20)]
    for among, found in (([C1], {C1: [first, second]}), ([C2], {}), ([C1, *many], {C1: [first, second]}), (many, {})):
        assert dict(await store.read(_falls, start, among)) == found


async def test_the_silent_are_those_that_fell_silent_and_are_so_still(store: Store, clock: ManualClock) -> None:
    start = clock.now()
    await add(store, clock, C1, "", "True", "Unknown")
    await add(store, clock, C2, "", "True", "Unknown", "True")
    await add(store, clock, ClusterName("never"), "", "Unknown", reason="ManagedClusterNeverJoined")
    await add(store, clock, ClusterName("gone"), "True", "Unknown", "")
    assert await store.read(lambda tx: tx.transitions.silent(start, SILENT)) == 1
    assert await store.read(lambda tx: tx.transitions.silent(start + 2 * SECOND, SILENT)) == 0


async def test_what_is_old_is_forgotten_in_portions(store: Store, clock: ManualClock) -> None:
    await add(store, clock, C1, "", "True", "Unknown", "True")
    end = clock.now()
    assert await store.run(lambda tx: tx.transitions.trim(end, 1)) == 1
    assert await store.run(lambda tx: tx.transitions.trim(end, 5)) == 1
    assert await store.run(lambda tx: tx.transitions.trim(end, 5)) == 0
    assert [each.at for each in await store.read(lambda tx: tx.transitions.of(C1, limit=5))] == [end]


async def test_a_replica_has_one_mark(store: Store, clock: ManualClock) -> None:
    first = Mark("b", clock.now(), clock.now())
    later = replace(first, at=clock.now() + SECOND)
    other = Mark("a", clock.now() - SECOND, clock.now())
    for mark in (first, other, later):
        await store.run(_put, mark)
    assert await store.read(lambda tx: tx.marks.all()) == [other, later]


async def test_after_a_jump_no_mark_counts_and_no_beat_is_of_the_future(store: Store, clock: ManualClock) -> None:
    start = clock.now()
    for name in ("a", "b"):
        await store.run(_put, Mark(name, start, start))
    beats = [Beat(C1, timedelta(), available=True), Beat(C2, 2 * SECOND, available=True)]
    await store.run(lambda tx: tx.heartbeats.store(beats))
    now = start - SECOND
    await store.run(lambda tx: tx.marks.begin_anew(now))
    assert await store.read(lambda tx: tx.marks.all()) == []
    assert [beat.at for beat in await store.read(lambda tx: tx.heartbeats.all())] == [now, start - 2 * SECOND]


async def test_marks_of_replicas_that_are_gone_are_forgotten(store: Store, clock: ManualClock) -> None:
    await store.run(lambda tx: tx.marks.put(Mark("old", clock.now(), clock.now())))
    await store.run(lambda tx: tx.marks.put(Mark("new", clock.now(), clock.now() + 2 * SECOND)))
    await store.run(lambda tx: tx.marks.forget(clock.now() + SECOND))
    assert [mark.replica for mark in await store.read(lambda tx: tx.marks.all())] == ["new"]
