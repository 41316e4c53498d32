"""What every store promises about who owns a cluster: epochs only rise, and an outdated beat is not stored."""

from datetime import timedelta

from hub.domain.heartbeat import Beat, LastBeat
from hub.domain.parting import MOVED, STANDBY
from hub.domain.transition import Transition
from hub.ports import Store
from machinery.clock import ManualClock
from machinery.identity import ClusterName

EDGE, FAR = ClusterName("edge"), ClusterName("far")
NONE = timedelta()
NEWER, OLDER = 1_790_000_000_000, 1_780_000_000_000
"""As agents make them, from milliseconds: they need more than 32 bits."""


def beat(cluster: ClusterName, epoch: int, *, available: bool = True, age: timedelta = NONE) -> Beat:
    return Beat(cluster, age, available, epoch)


async def stored(store: Store, *beats: Beat) -> dict[ClusterName, int]:
    """Those that were refused."""
    return await store.run(lambda tx: dict(tx.heartbeats.store(beats)))


async def of(store: Store, cluster: ClusterName = EDGE) -> LastBeat:
    last = await store.read(lambda tx: tx.heartbeats.of(cluster))
    assert last is not None
    return last


async def test_an_epoch_only_rises(store: Store) -> None:
    for epoch in (OLDER, NEWER, OLDER, 0):
        await store.run(lambda tx, told: tx.heartbeats.claim(EDGE, told), epoch)
    assert ((await of(store)).epoch, (await of(store)).owner) == (NEWER, None)
    await store.run(lambda tx: tx.heartbeats.depart(EDGE, "other", OLDER))
    assert ((await of(store)).epoch, (await of(store)).owner) == (NEWER, "other")
    await store.run(lambda tx: tx.heartbeats.depart(EDGE, "", NEWER + 1))
    assert ((await of(store)).epoch, (await of(store)).owner) == (NEWER + 1, "")


async def test_a_beat_of_an_outdated_epoch_is_not_stored_and_told_apart(store: Store, clock: ManualClock) -> None:
    await stored(store, beat(EDGE, OLDER), beat(FAR, OLDER))
    before = clock.now()
    clock.advance(timedelta(seconds=5))
    await store.run(lambda tx: tx.heartbeats.claim(EDGE, NEWER))
    assert await stored(store, beat(FAR, OLDER, available=False), beat(EDGE, OLDER, available=False)) == {EDGE: NEWER}
    assert ((await of(store)).at, (await of(store)).available) == (before, True)
    assert ((await of(store, FAR)).at, (await of(store, FAR)).available) == (clock.now(), False)


async def test_beats_of_the_newest_epoch_and_of_agents_that_keep_none_are_stored(store: Store, clock: ManualClock) -> None:
    await store.run(lambda tx: tx.heartbeats.claim(EDGE, NEWER))
    for epoch in (NEWER, 0, NEWER + 1):
        clock.advance(timedelta(seconds=5))
        assert await stored(store, beat(EDGE, epoch)) == {}
        assert (await of(store)).at == clock.now()


async def test_a_late_beat_is_no_outdated_one(store: Store) -> None:
    await stored(store, beat(EDGE, NEWER))
    assert await stored(store, beat(EDGE, NEWER, available=False, age=timedelta(seconds=3))) == {}
    assert (await of(store)).available is True


async def test_a_beat_ends_a_departure_and_an_outdated_one_does_not(store: Store) -> None:
    await store.run(lambda tx: tx.heartbeats.depart(EDGE, "other", NEWER))
    await stored(store, beat(EDGE, OLDER))
    assert ((await of(store)).owner, (await of(store)).at) == ("other", None)
    await stored(store, beat(EDGE, NEWER))
    assert (await of(store)).owner is None


async def test_owners_are_no_news_and_go_with_the_cluster(store: Store) -> None:
    await store.run(lambda tx: tx.heartbeats.claim(EDGE, NEWER))
    await store.run(lambda tx: tx.heartbeats.depart(EDGE, "other", NEWER))
    assert await store.read(lambda tx: tx.changes.newest()) == 0
    await store.run(lambda tx: tx.heartbeats.forget(EDGE))
    assert await store.read(lambda tx: tx.heartbeats.of(EDGE)) is None


async def test_a_move_is_no_fall(store: Store, clock: ManualClock) -> None:
    for cluster, reason in ((EDGE, "ManagedClusterLeaseUpdateStopped"), (FAR, MOVED.reason), (FAR, STANDBY.reason)):
        fell = Transition(cluster, "u", clock.now(), "True", "Unknown", reason, "hub")
        await store.run(lambda tx, each: tx.transitions.add(each), fell)
    before = clock.now() - timedelta(hours=1)
    for among in (None, [EDGE, FAR]):
        falls = await store.read(lambda tx, chosen: dict(tx.transitions.falls(before, chosen)), among)
        assert set(falls) == {EDGE}
