"""What every store promises about replicas and the sessions that each has."""

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from hub.domain.heartbeat import Beat
from hub.domain.replica import AgentSession, Load, Replica
from hub.ports import Store, Transaction
from machinery.clock import ManualClock
from machinery.identity import AgentId, ClusterName

EDGE, FAR = ClusterName("edge"), ClusterName("far")
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
    opened = [
        await store.run(lambda tx, each: tx.agent_sessions.open(each), each) for each in (SESSION, newer, SESSION, same, newer)
    ]
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
    late, other = (
        replace(SESSION, agent=OTHER, session="s2", at=AT + MOMENT),
        replace(SESSION, cluster=FAR, session="s3", replica="two"),
    )
    await open_on(store, SESSION, late, other)

    def opened(tx: Transaction, since: datetime, but: str) -> set[str]:
        return {each.session for each in tx.agent_sessions.opened_since(since, but=but)}

    assert await store.read(opened, AT, "") == {"s1", "s2", "s3"}
    assert await store.read(opened, AT, "one") == {"s3"}
    assert await store.read(opened, AT + MOMENT, "two") == {"s2"}
    assert await store.read(lambda tx: tx.agent_sessions.of(EDGE)) == [late, SESSION], "by the names of agents"
    assert list(await store.read(lambda tx: tx.agent_sessions.agents(EDGE))) == [OTHER, AGENT]
    await store.run(lambda tx: tx.agent_sessions.close(EDGE, AGENT, SESSION.session))
    assert list(await store.read(lambda tx: tx.agent_sessions.agents(EDGE))) == [OTHER]


async def test_all_sessions_of_a_replica_end_at_once_and_no_others(store: Store) -> None:
    await open_on(store, SESSION, replace(SESSION, cluster=FAR, session="s2", replica="two"))
    assert await store.read(lambda tx: tx.agent_sessions.replicas()) == ["one", "two"]
    assert await store.run(lambda tx: tx.agent_sessions.end_of("one")) == 1
    assert await store.run(lambda tx: tx.agent_sessions.end_of("one")) == 0
    assert [await store.read(session_of, cluster) for cluster in (EDGE, FAR)] == [None, "s2"]
    await store.run(lambda tx: tx.agent_sessions.end_all())
    assert [await store.read(session_of, cluster) for cluster in (EDGE, FAR)] == [None, None]
    assert await store.read(lambda tx: tx.agent_sessions.replicas()) == []


async def test_sessions_that_no_replica_has_end_where_nothing_was_heard(store: Store, clock: ManualClock) -> None:
    await open_on(store, SESSION)
    never = ClusterName("never")
    await store.run(lambda tx: tx.heartbeats.set_session(FAR, "old"))
    await store.run(lambda tx: tx.heartbeats.set_session(never, "older"))
    await store.run(lambda tx: tx.heartbeats.store([Beat(FAR, timedelta(), available=True)]))
    assert await store.run(lambda tx: tx.agent_sessions.end_unowned(clock.now())) == 1
    assert [await store.read(session_of, cluster) for cluster in (EDGE, FAR, never)] == ["s1", "old", None]
    clock.advance(MOMENT)
    assert await store.run(lambda tx: tx.agent_sessions.end_unowned(clock.now())) == 1
    assert [await store.read(session_of, cluster) for cluster in (EDGE, FAR, never)] == ["s1", None, None]
