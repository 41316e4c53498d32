"""What every store promises about availability: transitions, marks of replicas, owners of clusters and their epochs."""

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise

from hub.api.hubreplicas import AgentSession, Load, Replica
from hub.api.liveness import Beat, Checkpoint, LastBeat
from hub.api.managedclusters.availability import MOVED, STANDBY, Transition
from hub.ports import Store, Transaction
from machinery.identity import AgentId, ClusterName
from machinery.runtime.clock import ManualClock
from tests.checks import present

SECOND = timedelta(seconds=1)
SILENT = "ManagedClusterLeaseUpdateStopped"
C1, C2 = ClusterName("c1"), ClusterName("c2")


async def add(store: Store, clock: ManualClock, cluster: ClusterName, *steps: str, reason: str = SILENT) -> None:
    """Transitions through these statuses, a second apart."""
    for before, status in pairwise(steps):
        clock.advance(SECOND)
        why = reason if status == "Unknown" else "Well"
        step = Transition(cluster, f"uid-{cluster}", clock.now(), before, status, why, "me")
        await store.run(lambda tx, added: tx.transitions.add(added), step)


async def test_transitions_are_listed_newest_first_and_old_ones_forgotten_in_portions(store: Store, clock: ManualClock) -> None:
    start = clock.now()
    await add(store, clock, C1, "", "True", "Unknown")
    await add(store, clock, C2, "", "True")
    found = await store.read(lambda tx: tx.transitions.of(C1, limit=5))
    assert found == [
        Transition(C1, "uid-c1", start + 2 * SECOND, "True", "Unknown", SILENT, "me"),
        Transition(C1, "uid-c1", start + SECOND, "", "True", "Well", "me"),
    ]
    assert await store.read(lambda tx: tx.transitions.of(C1, limit=1)) == found[:1]
    last = start + 3 * SECOND
    for since, until, count in ((None, None, 3), (last, None, 1), (start + 2 * SECOND, last, 2), (None, start, 0)):
        all_of = await store.read(lambda tx, a, b: tx.transitions.of(None, limit=5, since=a, until=b), since, until)
        assert [each.at for each in all_of] == [last, last - SECOND, last - 2 * SECOND][:count]
    end = clock.now()
    assert [await store.run(lambda tx, most: tx.transitions.trim(end, most), most) for most in (1, 5, 5)] == [1, 1, 0]
    assert [await store.read(lambda tx, of: len(tx.transitions.of(of, limit=5)), each) for each in (C1, C2)] == [0, 1]


async def test_falls_are_reported_from_an_instant_on_and_a_move_is_none(store: Store, clock: ManualClock) -> None:
    start = clock.now()
    await add(store, clock, C1, "", "True", "Unknown", "True", "False", "Unknown", "True")
    await add(store, clock, C2, "", "Unknown", "")
    for move in (MOVED, STANDBY):
        await add(store, clock, C2, "True", "Unknown", reason=move.reason)
    first, second = start + 2 * SECOND, start + 4 * SECOND
    assert dict(await store.read(lambda tx: tx.transitions.falls(start))) == {C1: [first, second]}
    assert dict(await store.read(lambda tx: tx.transitions.falls(first))) == {C1: [second]}
    assert dict(await store.read(lambda tx: tx.transitions.falls(start + 9 * SECOND))) == {}
    many = [ClusterName(f"other{number}") for number in range(20)]
    for among, found in (([C1], {C1: [first, second]}), ([C2], {}), ([C1, *many], {C1: [first, second]}), (many, {})):
        assert dict(await store.read(lambda tx, chosen: tx.transitions.falls(start, chosen), among)) == found


async def test_the_silent_are_those_that_fell_silent_and_are_so_still(store: Store, clock: ManualClock) -> None:
    start = clock.now()
    await add(store, clock, C1, "", "True", "Unknown")
    await add(store, clock, C2, "", "True", "Unknown", "True")
    await add(store, clock, ClusterName("never"), "", "Unknown", reason="ManagedClusterNeverJoined")
    await add(store, clock, ClusterName("gone"), "True", "Unknown", "")
    assert await store.read(lambda tx: tx.transitions.silent(start, SILENT)) == 1
    assert await store.read(lambda tx: tx.transitions.silent(start + 2 * SECOND, SILENT)) == 0


async def test_a_replica_has_one_mark_until_it_is_forgotten_or_the_clock_jumps(store: Store, clock: ManualClock) -> None:
    start = clock.now()
    first = Checkpoint("b", start, start)
    later, other = replace(first, at=start + 2 * SECOND), Checkpoint("a", start - SECOND, start)
    for mark in (first, other, later):
        await store.run(lambda tx, put: tx.marks.put(put), mark)
    assert await store.read(lambda tx: tx.marks.all()) == [other, later]
    await store.run(lambda tx: tx.marks.forget(start + SECOND))
    assert await store.read(lambda tx: tx.marks.all()) == [later]
    beats = [Beat(C1, timedelta(), available=True), Beat(C2, 2 * SECOND, available=True)]
    await store.run(lambda tx: tx.heartbeats.store(beats))
    now = start - SECOND
    await store.run(lambda tx: tx.marks.restart_coverage(now))
    assert await store.read(lambda tx: tx.marks.all()) == [], "after a jump no mark counts"
    times = [beat.at for beat in await store.read(lambda tx: tx.heartbeats.all())]
    assert times == [now, start - 2 * SECOND], "and no beat is of the future"


EDGE, FAR = ClusterName("edge"), ClusterName("far")
NEWER, OLDER = 1_790_000_000_000, 1_780_000_000_000  # as agents make them, from milliseconds: they need more than 32 bits


def beat(cluster: ClusterName, epoch: int, *, available: bool = True, age: float = 0) -> Beat:
    return Beat(cluster, age * SECOND, available, epoch)


async def stored(store: Store, *beats: Beat) -> dict[ClusterName, int]:
    """Those that were refused."""
    return await store.run(lambda tx: dict(tx.heartbeats.store(beats)))


async def of(store: Store, cluster: ClusterName = EDGE) -> LastBeat:
    return present(await store.read(lambda tx: tx.heartbeats.of(cluster)))


async def test_epoch_only_rises_and_a_beat_of_the_newest_one_ends_a_departure(store: Store) -> None:
    async def owned() -> tuple[int, str | None]:
        last = await of(store)
        return last.epoch, last.owner

    for epoch in (OLDER, NEWER, OLDER, 0):
        await store.run(lambda tx, claimed: tx.heartbeats.claim(EDGE, claimed), epoch)
    assert await owned() == (NEWER, None)
    await store.run(lambda tx: tx.heartbeats.depart(EDGE, "other", OLDER))
    assert await owned() == (NEWER, "other")
    await stored(store, beat(EDGE, OLDER))
    assert ((await of(store)).owner, (await of(store)).at) == ("other", None)
    await stored(store, beat(EDGE, NEWER))
    assert (await of(store)).owner is None
    await store.run(lambda tx: tx.heartbeats.depart(EDGE, "", NEWER + 1))
    assert await owned() == (NEWER + 1, "")
    for cluster, lowered in ((FAR, 0), (EDGE, 1), (None, 0)):
        assert await store.run(lambda tx, of: tx.heartbeats.lower_epochs(NEWER, above=NEWER, cluster=of), cluster) == lowered
    assert await owned() == (NEWER, "")
    assert await store.read(lambda tx: tx.changes.newest()) == 0, "no news"
    await store.run(lambda tx: tx.heartbeats.forget(EDGE))
    assert await store.read(lambda tx: tx.heartbeats.of(EDGE)) is None


async def test_beats_of_an_old_epoch_are_distinguished_and_those_without_one_stored(store: Store, clock: ManualClock) -> None:
    await stored(store, beat(EDGE, OLDER), beat(FAR, OLDER))
    before = clock.now()
    clock.advance(timedelta(seconds=5))
    await store.run(lambda tx: tx.heartbeats.claim(EDGE, NEWER))
    assert await stored(store, beat(FAR, OLDER, available=False), beat(EDGE, OLDER, available=False)) == {EDGE: NEWER}
    assert ((await of(store)).at, (await of(store)).available) == (before, True)
    assert ((await of(store, FAR)).at, (await of(store, FAR)).available) == (clock.now(), False)
    for epoch in (NEWER, 0, NEWER + 1):
        clock.advance(timedelta(seconds=5))
        assert (await stored(store, beat(EDGE, epoch)), (await of(store)).at) == ({}, clock.now())
    assert await stored(store, beat(EDGE, NEWER + 1, available=False, age=3)) == {}, "late, not outdated"
    assert (await of(store)).available is True


AGENT, OTHER = AgentId("xk7pq"), AgentId("aaaaa")
AT = datetime(2026, 1, 1, tzinfo=UTC)
MOMENT = timedelta(microseconds=1)
ONE = Replica("one", "here", "i1", "1.0", "127.0.0.1:8443", "127.0.0.1:6443", AT, AT, 3, ready=True)
SESSION = AgentSession(EDGE, AGENT, "s1", "one", AT)


def session_of(tx: Transaction, cluster: ClusterName) -> str | None:
    last = tx.heartbeats.of(cluster)
    return last.session if last is not None else None


async def open_on(store: Store, *sessions: AgentSession) -> None:
    def both(tx: Transaction) -> None:
        for session in sessions:
            assert tx.agent_sessions.open(session)
            tx.heartbeats.set_session(session.cluster, session.session)

    await store.run(both)


async def test_a_replica_is_kept_as_it_was_put_and_goes(store: Store) -> None:
    load = Load(watches=7, cpu=0.125, memory=3 * 2**30, ahead=-MOMENT)
    two = replace(ONE, name="TWO", started=AT + MOMENT, draining=True, ready=False, drained=True, load=load)
    for each in (ONE, two):
        await store.run(lambda tx, each: tx.replicas.put(each), each)
    newer = replace(ONE, seen=AT + MOMENT, sessions=4)
    await store.run(lambda tx: tx.replicas.put(newer))
    assert await store.read(lambda tx: tx.replicas.all()) == [two, newer], "by the bytes of their names"
    assert await store.run(lambda tx: tx.replicas.of("one")) == newer
    await store.run(lambda tx: tx.replicas.remove("one"))
    assert await store.read(lambda tx: tx.replicas.of("one")) is None
    assert await store.read(lambda tx: tx.changes.newest()) == 0, "no news"


async def test_newest_session_of_an_agent_is_kept_in_whatever_order_they_come(store: Store) -> None:
    newer, same = replace(SESSION, session="s2", replica="two", at=AT + MOMENT), replace(SESSION, session="s3", at=AT + MOMENT)
    opened = [await store.run(lambda tx, s: tx.agent_sessions.open(s), s) for s in (SESSION, newer, SESSION, same, newer)]
    assert opened == [True, True, False, True, False]
    assert await store.run(lambda tx: tx.agent_sessions.open(same)), "the same again is no other"
    assert list(await store.read(lambda tx: tx.agent_sessions.opened_since(AT, but=""))) == [same]
    racing = [replace(SESSION, session=f"r{number}", at=AT + number * MOMENT) for number in range(2, 12)]
    await asyncio.gather(*(store.run(lambda tx, each: tx.agent_sessions.open(each), each) for each in reversed(racing)))
    assert list(await store.read(lambda tx: tx.agent_sessions.opened_since(AT, but=""))) == [racing[-1]]
    for session, left in (("s3", ["one"]), ("r11", [])):
        await store.run(lambda tx, one: tx.agent_sessions.close(EDGE, AGENT, one), session)
        assert await store.read(lambda tx: tx.agent_sessions.replicas()) == left, "only the newest ends"


async def test_sessions_are_found_by_moment_replica_and_cluster(store: Store) -> None:
    late = replace(SESSION, agent=OTHER, session="s2", at=AT + MOMENT)
    await open_on(store, SESSION, late, replace(SESSION, cluster=FAR, session="s3", replica="two"))

    def opened(tx: Transaction, since: datetime, but: str) -> set[str]:
        return {each.session for each in tx.agent_sessions.opened_since(since, but=but)}

    assert (await store.read(opened, AT, ""), await store.read(opened, AT, "one")) == ({"s1", "s2", "s3"}, {"s3"})
    assert await store.read(opened, AT + MOMENT, "two") == {"s2"}
    assert await store.read(lambda tx: tx.agent_sessions.of(EDGE)) == [late, SESSION], "by the names of agents"
    assert list(await store.read(lambda tx: tx.agent_sessions.agents(EDGE))) == [OTHER, AGENT]
    assert {each.session for each in await store.read(lambda tx: tx.agent_sessions.all())} == {"s1", "s2", "s3"}
    before = await store.read(lambda tx: tx.agent_sessions.fingerprint())
    assert await store.read(lambda tx: tx.agent_sessions.fingerprint()) == before
    await store.run(lambda tx: tx.agent_sessions.close(EDGE, AGENT, SESSION.session))
    assert list(await store.read(lambda tx: tx.agent_sessions.agents(EDGE))) == [OTHER]
    assert await store.read(lambda tx: tx.agent_sessions.fingerprint()) != before


async def test_all_sessions_of_a_replica_end_at_once_and_no_others(store: Store) -> None:
    await open_on(store, SESSION, replace(SESSION, cluster=FAR, session="s2", replica="two"))
    assert await store.read(lambda tx: tx.agent_sessions.replicas()) == ["one", "two"]
    assert await store.run(lambda tx: tx.agent_sessions.end_of("one")) == 1
    assert await store.run(lambda tx: tx.agent_sessions.end_of("one")) == 0
    assert [await store.read(session_of, cluster) for cluster in (EDGE, FAR)] == [None, "s2"]
    await store.run(lambda tx: tx.agent_sessions.end_all())
    assert [await store.read(session_of, cluster) for cluster in (EDGE, FAR)] == [None, None]
    assert await store.read(lambda tx: tx.agent_sessions.replicas()) == []
