"""The lock as a Lease: the same promises as every lock, and its winner's term is the database's."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from hollow.cluster import HollowCluster
from hub.election.in_cluster import lease_lock
from hub.election.locks import LeaseAndTerm, RowLock
from hub.extensions.settings import load
from hub.store import SqlStore
from machinery.client.leaselock import LEASE as MILLISECONDS, TERM, LeaseLock
from machinery.client.rest import KubeClient
from machinery.election import Candidate, Lock, LockRecord
from machinery.errors import ConflictError, InvalidError, NotLeaderError
from machinery.runtime.clock import ManualClock, SystemClock
from tests.checks import check_refusal_of, present
from tests.fakes.databases import SqlDatabase, migrated
from tests.integration.election.conftest import fenced

ONE, TWO = Candidate("one", "one-1"), Candidate("two", "two-1")
LEASE = timedelta(seconds=15)
NAMESPACE = "default"
PATH = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/hub"


@pytest.fixture
async def client(hollow_cluster: HollowCluster) -> AsyncIterator[KubeClient]:
    async with await KubeClient.from_document(hollow_cluster.kubeconfig()) as client:
        yield client


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def store(url: str) -> AsyncIterator[SqlStore]:
    async with SqlDatabase(url).opened(None) as store:
        yield store


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{migrated(tmp_path / 'hub.db')}"


@pytest.fixture
def lease(client: KubeClient, clock: ManualClock) -> LeaseLock:
    return LeaseLock(client, NAMESPACE, "hub", clock=clock)


@pytest.fixture(params=["lease", "both"])
def lock(request: pytest.FixtureRequest, lease: LeaseLock, row: RowLock, clock: ManualClock) -> Lock:
    return lease if request.param == "lease" else LeaseAndTerm(lease, row, clock=clock, every=timedelta(milliseconds=1))


async def test_it_is_taken_renewed_and_released_as_every_lock(lock: Lock, clock: ManualClock) -> None:
    assert await lock.read() is None
    mine = await lock.take(None, ONE, LEASE)
    assert (mine.holder, mine.incarnation, mine.term, mine.transitions, mine.lease) == ("one", "one-1", 1, 0, LEASE)
    clock.advance(timedelta(seconds=2))
    renewed = await lock.renew(mine)
    assert (renewed.renewed_at, renewed.acquired_at) == (clock.now(), mine.acquired_at)
    assert renewed.version != mine.version
    assert (await lock.renew(mine)).term == mine.term
    assert await lock.release(mine)
    clock.advance(timedelta(seconds=1))
    left = present(await lock.read())
    assert (left.holder, (await lock.take(left, TWO, LEASE)).term) == ("", 2)


async def test_one_of_two_takes_what_both_saw_and_the_other_neither_renews_nor_releases_it(lease: LeaseLock) -> None:
    outcomes = await asyncio.gather(*(lease.take(None, each, LEASE) for each in (ONE, TWO)), return_exceptions=True)
    assert [type(outcome) for outcome in outcomes if isinstance(outcome, BaseException)] == [ConflictError]
    (mine,) = (outcome for outcome in outcomes if isinstance(outcome, LockRecord))
    theirs = await lease.take(mine, TWO, LEASE)
    await check_refusal_of(ConflictError, lease.take(mine, ONE, LEASE))
    await check_refusal_of(ConflictError, lease.renew(mine))
    assert not await lease.release(mine)
    assert await lease.read() == theirs


async def test_lease_reads_as_client_go_s_and_keeps_the_rest(lease: LeaseLock, client: KubeClient, clock: ManualClock) -> None:
    mine = await lease.take(None, ONE, timedelta(milliseconds=1500))
    await client.patch(PATH, {"metadata": {"labels": {"team": "fleet"}}})
    clock.advance(timedelta(seconds=1))
    assert (await lease.renew(mine)).lease == timedelta(milliseconds=1500)
    document = await client.get(PATH)
    assert document["metadata"]["labels"] == {"team": "fleet"}
    assert document["spec"] == {
        "holderIdentity": "one",
        "leaseDurationSeconds": 2,
        "acquireTime": "2026-01-01T00:00:00.000000Z",
        "renewTime": "2026-01-01T00:00:01.000000Z",
        "leaseTransitions": 0,
    }


async def test_holder_reports_its_state_with_each_renewal_and_not_after_release(client: KubeClient, clock: ManualClock) -> None:
    text = "not ready: " + "x" * 5000
    lease = LeaseLock(client, NAMESPACE, "hub", clock=clock, status=lambda: text)
    mine = await lease.take(None, ONE, LEASE)
    assert (mine.status, (await lease.renew(mine)).status) == ("", text[:1024])
    text = "ok"
    mine = await lease.renew(mine)
    assert present(await lease.read()).status == "ok"
    await lease.release(mine)
    assert present(await lease.read()).status == ""


async def test_annotations_that_were_edited_by_hand_count_as_absent(lease: LeaseLock, client: KubeClient) -> None:
    mine = await lease.take(None, ONE, LEASE)
    for written in ("", "many", "-1", "1.5", "9" * 40, "²"):
        await client.patch(PATH, {"metadata": {"annotations": {TERM: written, MILLISECONDS: written}}})
        await check_refusal_of(ConflictError, lease.renew(mine))
        seen = present(await lease.read())
        assert (seen.holder, seen.term, seen.lease) == (mine.holder, 0, LEASE), written
        mine = await lease.take(seen, TWO, LEASE)
        assert mine.term == 1


async def test_who_waits_hears_of_a_release_and_of_a_deletion_and_of_no_renewal(lease: LeaseLock, client: KubeClient) -> None:
    received: asyncio.Queue[None] = asyncio.Queue()
    mine = await lease.take(None, ONE, LEASE)
    async with lease.released(lambda: received.put_nowait(None)):
        for _ in range(3):
            mine = await lease.renew(mine)
        await lease.release(mine)
        await received.get()
        assert received.empty(), "events come in order: the renewals were before"
        await lease.take(await lease.read(), TWO, LEASE)
        await client.delete(PATH)
        await received.get()


class Counted(KubeClient):
    """Counts what is asked."""

    asked = 0

    async def get(self, *arguments: Any, **options: Any) -> Any:
        self.asked += 1
        return await super().get(*arguments, **options)


async def test_a_renewal_that_nobody_disturbs_is_one_request(hollow_cluster: HollowCluster, clock: ManualClock) -> None:
    async with await Counted.from_document(hollow_cluster.kubeconfig()) as client:
        assert isinstance(client, Counted)
        lease = LeaseLock(client, NAMESPACE, "hub", clock=clock)
        mine, client.asked = await lease.take(None, ONE, LEASE), 0
        for _ in range(3):
            mine = await lease.renew(mine)
        assert client.asked == 0
        await client.patch(PATH, {"metadata": {"labels": {"team": "fleet"}}})
        await lease.renew(mine)
        assert client.asked == 1
        await client.delete(PATH)
        await check_refusal_of(ConflictError, lease.renew(mine))


async def test_a_late_winner_of_the_term_costs_the_holder_one_more_taking_and_no_write_of_two_terms(
    lease: LeaseLock, row: RowLock, store: SqlStore, clock: ManualClock
) -> None:
    holder = LeaseAndTerm(lease, row, clock=clock, every=timedelta(milliseconds=1))
    mine = await holder.take(None, ONE, LEASE)
    late = await row.take(await row.read(), TWO, LEASE)  # it had won the Lease once, and was frozen before it took the term
    await check_refusal_of(NotLeaderError, fenced(store, mine).run(lambda tx: tx.facts.set("written", "yes")))
    await check_refusal_of(ConflictError, holder.renew(mine))
    assert (await holder.take(await holder.read(), ONE, LEASE)).term == late.term + 1


async def test_cluster_is_asked_seldom_and_at_once_upon_a_release(lease: LeaseLock, row: RowLock, clock: ManualClock) -> None:
    leader = LeaseAndTerm(lease, row, clock=clock, every=timedelta(seconds=2))
    follower = LeaseAndTerm(lease, row, clock=clock, every=timedelta(seconds=2))
    mine, first = await leader.take(None, ONE, LEASE), await follower.read()
    clock.advance(timedelta(seconds=1))
    mine = await leader.renew(mine)
    assert await follower.read() is first, "not asked again so soon"
    clock.advance(timedelta(seconds=1))
    assert (await follower.read()) != first
    await leader.release(mine)
    assert present(await follower.read()).holder == ""


async def test_the_settings_say_where_the_lease_is_or_are_refused(
    hollow_cluster: HollowCluster, row: RowLock, tmp_path: Path, client: KubeClient
) -> None:
    import yaml  # noqa: PLC0415 - a kubeconfig as a file

    file = tmp_path / "kubeconfig"
    file.write_text(yaml.safe_dump(hollow_cluster.kubeconfig()))
    flags = {"leader_elect_resource_lock": "kubernetes", "management_cluster": str(file), "leader_elect_resource_name": "hub"}
    with pytest.raises(InvalidError, match="leader_elect_resource_namespace, or POD_NAMESPACE"):
        async with lease_lock(load(flags, None, {}), "pod", row, SystemClock(), {}):
            pass
    async with lease_lock(load(flags, None, {}), "pod", row, SystemClock(), {"POD_NAMESPACE": NAMESPACE}) as lock:
        assert isinstance(await lock.take(await lock.read(), ONE, LEASE), LockRecord)
    assert (await client.get(PATH))["spec"]["holderIdentity"] == "one"
