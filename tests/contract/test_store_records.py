"""What every store promises about certificates, credentials, heartbeats and facts, and about use cases that race."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from itertools import count

import pytest

from hub.domain.attestation import Binding, Demand
from hub.domain.certificate import CertificateRecord, Purpose
from hub.domain.change import MANAGED_CLUSTERS, REQUESTS, Key
from hub.domain.credential import Bounds, CredentialRecord, CredentialUse, Tally, token_hash
from hub.domain.heartbeat import Beat, LastBeat
from hub.ports import Store, Transaction
from hub.services import credentials, requests
from hub.services.credentials import Terms
from hub.store import SqlStore
from machinery.clock import ManualClock
from machinery.errors import ConflictError, ForbiddenError
from machinery.identity import AddOnName, AgentId, ClusterName, CredentialId, SerialNumber
from tests.fakes.memory_store import MemoryStore
from tests.fakes.registration import LIFETIMES, Newcomer

EDGE, FAR = ClusterName("edge"), ClusterName("far")
NONE = timedelta()


@pytest.fixture
def record(clock: ManualClock) -> CertificateRecord:
    now = clock.now()
    return CertificateRecord(
        serial=SerialNumber(2**158 + 7),
        purpose=Purpose.AGENT,
        user="u",
        groups=("a", "b"),
        not_before=now,
        not_after=now + timedelta(days=1, microseconds=1),
        key_hash="k",
        issued_at=now,
        cluster=EDGE,
        agent=AgentId("agent"),
        addon=AddOnName("addon"),
        credential=CredentialId("c"),
        request_uid="r",
    )


@pytest.fixture
def credential(clock: ManualClock) -> CredentialRecord:
    return CredentialRecord(CredentialId("c"), EDGE, 3, clock.now(), clock.now() + timedelta(hours=1), "ann")


async def test_certificate_is_found_by_all_that_it_is_known_by(store: Store, record: CertificateRecord) -> None:
    await store.run(lambda tx: tx.certificates.add(record))
    bare = replace(
        record, serial=SerialNumber(1), purpose=Purpose.BOOTSTRAP, request_uid=None, cluster=None, agent=None, addon=None
    )
    await store.run(lambda tx: tx.certificates.add(bare))
    assert await store.read(lambda tx: tx.certificates.by_serial(record.serial)) == record
    assert await store.read(lambda tx: tx.certificates.by_serial(bare.serial)) == bare
    assert await store.read(lambda tx: tx.certificates.by_serial(SerialNumber(2))) is None
    assert await store.read(lambda tx: list(tx.certificates.of_cluster(EDGE))) == [record]
    assert await store.read(lambda tx: list(tx.certificates.of_request("r"))) == [record]
    assert await store.read(lambda tx: list(tx.certificates.of_credential(CredentialId("c")))) == [bare]
    assert len(await store.read(lambda tx: tx.certificates.of_key("k"))) == 2


async def test_the_logins_of_an_account_are_found_and_can_be_many(store: Store, record: CertificateRecord) -> None:
    login = replace(record, purpose=Purpose.LOGIN, request_uid=None, credential=CredentialId("uid"), cluster=None)
    logins = [replace(login, serial=SerialNumber(number)) for number in (2, 3)]
    for each in (*logins, record, replace(login, serial=SerialNumber(4), credential=CredentialId("other"))):
        await store.run(_add, each)
    await store.run(_add, replace(login, serial=SerialNumber(5), purpose=Purpose.BOOTSTRAP))
    assert await store.read(lambda tx: list(tx.certificates.of_account("uid"))) == logins


async def test_only_logins_that_ended_are_forgotten_and_only_so_many(
    store: Store, record: CertificateRecord, clock: ManualClock
) -> None:
    ended = replace(record, purpose=Purpose.LOGIN, request_uid=None, not_after=clock.now() - timedelta(seconds=1))
    others = [
        replace(ended, serial=SerialNumber(5), not_after=clock.now()),
        replace(ended, serial=SerialNumber(6), purpose=Purpose.OPERATOR),
    ]
    for each in (*(replace(ended, serial=SerialNumber(number)) for number in (2, 3, 4)), *others):
        await store.run(_add, each)
    forgotten = [await store.run(lambda tx: tx.certificates.forget_logins(clock.now(), 2)) for _ in range(3)]
    assert forgotten == [2, 1, 0]
    left = await store.read(lambda tx: [tx.certificates.by_serial(SerialNumber(number)) for number in range(2, 7)])
    assert left == [None, None, None, *others]


async def test_certificates_that_ended_are_found_but_for_the_first_of_each_agent(
    store: Store, record: CertificateRecord, clock: ManualClock
) -> None:
    """By the first ones it is known which agent of a cluster came last."""
    old = replace(record, request_uid=None, not_after=clock.now() - timedelta(days=1), cluster=EDGE, agent=AgentId("a"))
    second = timedelta(seconds=1)
    records = {
        1: old,
        2: replace(old, issued_at=old.issued_at + second),
        3: replace(old, issued_at=old.issued_at + 2 * second, not_after=clock.now() + second),
        4: replace(old, purpose=Purpose.RECOVERY),
        5: replace(old, agent=AgentId("b"), issued_at=old.issued_at + 9 * second),
        6: replace(old, purpose=Purpose.BOOTSTRAP, cluster=None, agent=None),
        7: replace(old, issued_at=old.issued_at + second),
    }
    for number, each in records.items():
        await store.run(_add, replace(each, serial=SerialNumber(number)))
    ended = await store.read(lambda tx: tx.certificates.ended(clock.now(), 10))
    assert sorted(ended) == [2, 6, 7]
    assert len(await store.read(lambda tx: tx.certificates.ended(clock.now(), 2))) == 2
    assert await store.run(lambda tx: tx.certificates.forget(ended)) == 3
    assert list(await store.read(lambda tx: tx.certificates.ended(clock.now(), 10))) == []
    left = await store.read(lambda tx: [each.serial for each in tx.certificates.of_cluster(EDGE)])
    assert sorted(left) == [1, 3, 4, 5]


async def test_request_has_one_certificate_of_a_purpose(store: Store, record: CertificateRecord) -> None:
    await store.run(lambda tx: tx.certificates.add(record))
    await store.run(lambda tx: tx.certificates.add(replace(record, serial=SerialNumber(2), purpose=Purpose.RECOVERY)))
    with pytest.raises(ConflictError):
        await store.run(lambda tx: tx.certificates.add(replace(record, serial=SerialNumber(3))))
    assert await store.read(lambda tx: tx.certificates.by_serial(SerialNumber(3))) is None


async def test_revocation_keeps_its_first_time_and_reason(store: Store, record: CertificateRecord, clock: ManualClock) -> None:
    await store.run(lambda tx: tx.certificates.add(record))
    await store.run(lambda tx: tx.certificates.revoke([record.serial], clock.now(), "Stolen"))
    later = clock.now() + timedelta(hours=1)
    await store.run(lambda tx: tx.certificates.revoke([record.serial], later, "Again"))
    await store.run(lambda tx: tx.certificates.revoke([], later, "Nothing"))
    found = await store.read(lambda tx: tx.certificates.by_serial(record.serial))
    assert found == replace(record, revoked_at=clock.now(), revoked_reason="Stolen")
    assert not found.is_open(clock.now())


def _add(tx: Transaction, record: CertificateRecord) -> None:
    tx.certificates.add(record)


async def test_revoked_certificates_are_told_with_their_reasons_and_listed_until_they_would_have_ended(
    store: Store, record: CertificateRecord, clock: ManualClock
) -> None:
    began, other = clock.now(), replace(record, serial=SerialNumber(3), request_uid=None, not_after=clock.now())
    for each in (record, other, replace(record, serial=SerialNumber(4), request_uid=None)):
        await store.run(_add, each)
    clock.advance(timedelta(minutes=1))
    await store.run(lambda tx: tx.certificates.revoke([record.serial, other.serial], tx.now, "keyCompromise"))
    told = await store.read(lambda tx: dict(tx.certificates.revoked_since(clock.now())))
    assert told == {record.serial: "keyCompromise", other.serial: "keyCompromise"}
    assert await store.read(lambda tx: dict(tx.certificates.revoked_since(clock.now() + timedelta(seconds=1)))) == {}
    listed = await store.read(lambda tx: [each.serial for each in tx.certificates.revoked(began - timedelta(seconds=1))])
    assert sorted(listed) == [other.serial, record.serial]
    listed = await store.read(lambda tx: [each.serial for each in tx.certificates.revoked(began)])
    assert listed == [record.serial]


async def test_a_transaction_sees_the_certificates_that_it_adds_and_revokes(store: Store, record: CertificateRecord) -> None:
    def add_and_revoke(tx: Transaction) -> list[CertificateRecord | None]:
        seen = [tx.certificates.by_serial(record.serial)]
        tx.certificates.add(record)
        seen.append(tx.certificates.by_serial(record.serial))
        tx.certificates.revoke([record.serial], tx.now, "Test")
        return [*seen, tx.certificates.by_serial(record.serial)]

    before, added, revoked = await store.run(add_and_revoke)
    assert (before, added) == (None, record)
    assert revoked is not None
    assert revoked.revoked_at is not None


async def test_credential_remembers_whom_it_admitted(store: Store, credential: CredentialRecord, clock: ManualClock) -> None:
    other = replace(credential, id=CredentialId("d"), cluster=None, uses=None, created_at=clock.now() + timedelta(1))

    def fill(tx: Transaction) -> None:
        tx.credentials.add(credential)
        tx.credentials.add(other)
        tx.credentials.admit(credential.id, EDGE, clock.now())
        tx.credentials.admit(credential.id, FAR, clock.now())

    await store.run(fill)
    assert await store.read(lambda tx: tx.credentials.by_id(credential.id)) == credential
    assert await store.read(lambda tx: tx.credentials.by_id(CredentialId("x"))) is None
    assert await store.read(lambda tx: tx.credentials.admitted(credential.id)) == {EDGE, FAR}
    assert await store.read(lambda tx: tx.credentials.admitted(other.id)) == frozenset()
    assert await store.read(lambda tx: (tx.credentials.spent(credential.id), tx.credentials.spent(other.id))) == (2, 0)
    assert await store.read(lambda tx: tx.credentials.has_admitted(credential.id, FAR))
    assert not await store.read(lambda tx: tx.credentials.has_admitted(other.id, FAR))
    assert await store.read(lambda tx: list(tx.credentials.all())) == [credential, other]
    await store.run(lambda tx: tx.credentials.revoke(other.id, clock.now()))
    assert await store.read(lambda tx: tx.credentials.by_id(other.id)) == replace(other, revoked_at=clock.now())


async def test_a_credentials_token_is_known_by_its_hash(store: Store, credential: CredentialRecord, clock: ManualClock) -> None:
    record, token = await store.run(credentials.create_token, Terms(EDGE, 3, timedelta(hours=1)), "ann")
    assert await store.read(lambda tx: tx.credentials.by_id(record.id)) == record
    assert record == replace(credential, id=record.id, created_at=clock.now(), token_hash=token_hash(token))


async def test_revoked_credentials_are_told_by_the_time_of_their_revocation(
    store: Store, credential: CredentialRecord, clock: ManualClock
) -> None:
    began = clock.now()
    await store.run(lambda tx: tx.credentials.add(credential))
    clock.advance(timedelta(seconds=9))
    assert await store.read(lambda tx: list(tx.credentials.revoked_since(began))) == []
    await store.run(credentials.revoke, credential.id)
    assert await store.read(lambda tx: list(tx.credentials.revoked_since(clock.now()))) == [credential.id]
    late = clock.now() + timedelta(microseconds=1)
    assert await store.read(lambda tx: list(tx.credentials.revoked_since(late))) == []


async def test_whoever_waits_for_revocations_is_told_of_each_and_finds_it(
    store: Store, record: CertificateRecord, credential: CredentialRecord, clock: ManualClock
) -> None:
    await store.run(_add, record)
    await store.run(lambda tx: tx.credentials.add(credential))
    began, word = clock.now(), asyncio.Event()
    with store.told_of_revocations(word.set) as is_told:
        await _listens(store, is_told)
        word.clear()
        await asyncio.gather(  # one transaction for all, where the store lets use cases share one
            store.run(lambda tx: tx.facts.set("one", "1")),
            store.run(lambda tx: tx.certificates.revoke([record.serial], tx.now, "Test")),
            store.run(lambda tx: tx.facts.set("other", "1")),
        )
        async with asyncio.timeout(5):
            await word.wait()
        assert record.serial in await store.read(lambda tx: dict(tx.certificates.revoked_since(began)))
        word.clear()
        await store.run(credentials.revoke, credential.id)
        async with asyncio.timeout(5):
            await word.wait()
        assert await store.read(lambda tx: list(tx.credentials.revoked_since(began))) == [credential.id]
        word.clear()
        await store.run(lambda tx: tx.facts.set("one", "2"))
        assert not word.is_set()


async def _listens(store: Store, is_told: Callable[[], bool]) -> None:
    """Returns when nobody is woken any more because the store has only begun to listen to its database."""
    if not (isinstance(store, SqlStore) and store._doorbell):
        return
    async with asyncio.timeout(10):
        for number in count():
            if is_told():
                return
            document = {"metadata": {"name": f"c{number}", "uid": f"uid-{number}"}}
            await store.run(lambda tx, made: tx.objects.put(MANAGED_CLUSTERS, made, None, "tester"), document)


async def test_uses_are_not_overspent_by_many_at_once(store: Store, credential: CredentialRecord) -> None:
    await store.run(lambda tx: tx.credentials.add(replace(credential, cluster=None)))
    names = [ClusterName(f"c{number}") for number in range(20)]
    outcomes = await asyncio.gather(
        *(store.run(credentials.admit, credential.id, name) for name in names), return_exceptions=True
    )
    assert sum(isinstance(outcome, tuple) for outcome in outcomes) == 3
    assert all(isinstance(outcome, tuple | ForbiddenError) for outcome in outcomes)
    assert len(await store.read(lambda tx: tx.credentials.admitted(credential.id))) == 3


async def test_name_that_comes_again_costs_no_use(store: Store, credential: CredentialRecord) -> None:
    await store.run(lambda tx: tx.credentials.add(replace(credential, uses=1)))
    for _ in range(3):
        await store.run(credentials.admit, credential.id, EDGE)
    assert await store.read(lambda tx: tx.credentials.spent(credential.id)) == 1


async def test_a_credential_is_never_remembered_as_it_was_before_it_was_written(
    store: Store, credential: CredentialRecord
) -> None:
    def all_of_it(tx: Transaction) -> list[object]:
        seen: list[object] = [tx.credentials.by_id(credential.id)]
        tx.credentials.add(credential)
        seen.append(tx.credentials.by_id(credential.id) == credential)
        tx.credentials.revoke(credential.id, tx.now, by="ann", reason="lost")
        revoked = tx.credentials.by_id(credential.id)
        seen.append(revoked and revoked.revoked_reason)
        tx.credentials.hide(credential.id)
        hidden = tx.credentials.by_id(credential.id)
        seen.append(hidden != revoked)
        tx.credentials.forget_ended(tx.now + timedelta(days=1000))
        return [*seen, tx.credentials.by_id(credential.id)]

    assert await store.run(all_of_it) == [None, True, "lost", True, None]


async def test_bounds_of_a_credential_and_its_end_are_kept(
    store: Store, credential: CredentialRecord, clock: ManualClock
) -> None:
    demand = Demand("https://issuer.example.org", keys='{"keys": []}', audience="x", subject="system:serviceaccount:a:b")
    bounds = Bounds(("edge-*", "lab"), "edge", {"env": "prod"}, demand)
    bound = replace(credential, cluster=None, bounds=bounds)
    await store.run(lambda tx: tx.credentials.add(bound))
    assert await store.read(lambda tx: tx.credentials.by_id(credential.id)) == bound
    await store.run(lambda tx: tx.credentials.revoke(credential.id, clock.now(), by="ann", reason="leaked"))
    await store.run(lambda tx: tx.credentials.revoke(credential.id, clock.now(), by="bob", reason="again"))
    ended = await store.read(lambda tx: tx.credentials.by_id(credential.id))
    assert ended == replace(bound, revoked_at=clock.now(), revoked_by="ann", revoked_reason="leaked")


async def test_a_use_that_is_kept_again_takes_the_place_of_what_the_transaction_has_read(
    store: Store, credential: CredentialRecord, clock: ManualClock
) -> None:
    held = CredentialUse(credential.id, EDGE, AgentId("a1"), "edge-1", clock.now())
    again = replace(held, request="edge-2", issued_at=clock.now(), serial=SerialNumber(7))

    def use(tx: Transaction) -> list[CredentialUse | None]:
        tx.credentials.add(credential)
        seen = []
        for one in (held, again):
            tx.credentials.keep_use(one)
            seen.append(tx.credentials.use_of(credential.id, EDGE, AgentId("a1")))
        tx.credentials.drop_use(again)
        seen.append(tx.credentials.use_of(credential.id, EDGE, AgentId("a1")))
        tx.credentials.keep_use(again)
        return seen

    assert await store.run(use) == [held, again, None]
    assert await store.read(lambda tx: list(tx.credentials.uses(credential.id))) == [again]


async def test_uses_are_recorded_counted_and_forgotten(store: Store, credential: CredentialRecord, clock: ManualClock) -> None:
    held = CredentialUse(credential.id, EDGE, AgentId("a1"), "edge-1", clock.now())
    spent = replace(held, cluster=FAR, issued_at=clock.now(), serial=SerialNumber(7))

    def fill(tx: Transaction) -> None:
        tx.credentials.add(credential)
        for use in (held, spent):
            tx.credentials.admit(credential.id, use.cluster, clock.now())
            tx.credentials.keep_use(use)
        tx.credentials.admit(credential.id, ClusterName("third"), clock.now())

    await store.run(fill)
    assert await store.read(lambda tx: list(tx.credentials.uses(credential.id))) == [held, spent]
    assert await store.read(lambda tx: tx.credentials.use_of(credential.id, FAR, AgentId("a1"))) == spent
    assert await store.read(lambda tx: tx.credentials.use_of(credential.id, FAR, AgentId("a2"))) is None
    assert await store.read(lambda tx: tx.credentials.tally(credential.id)) == Tally(1, 1, 1)
    assert await store.read(lambda tx: tx.credentials.tallies()) == {credential.id: Tally(1, 1, 1)}
    await store.run(lambda tx: tx.credentials.drop_use(held))
    assert await store.read(lambda tx: tx.credentials.tally(credential.id)) == Tally(1, 0, 2)
    await store.run(lambda tx: tx.credentials.forget_name(EDGE, CredentialId("another")))
    assert await store.read(lambda tx: tx.credentials.tally(credential.id)) == Tally(1, 0, 2)
    await store.run(lambda tx: tx.credentials.forget_name(EDGE, credential.id))
    assert await store.read(lambda tx: tx.credentials.tally(credential.id)) == Tally(1, 0, 1)
    assert await store.run(lambda tx: tx.credentials.forget_ended(credential.expires_at)) == 0
    assert await store.run(lambda tx: tx.credentials.forget_ended(credential.expires_at + timedelta(seconds=1))) == 1
    assert await store.read(lambda tx: (list(tx.credentials.all()), list(tx.credentials.uses(credential.id)))) == ([], [])


async def test_a_name_is_bound_to_one_issuer_until_it_is_released(store: Store, clock: ManualClock) -> None:
    binding = Binding(EDGE, "https://issuer", "system:serviceaccount:a:b", "thumb", clock.now())
    await store.run(lambda tx: tx.bindings.bind(binding))
    assert await store.read(lambda tx: (tx.bindings.of(EDGE), tx.bindings.of(FAR))) == (binding, None)
    await store.run(lambda tx: tx.bindings.release(EDGE))
    assert await store.read(lambda tx: tx.bindings.of(EDGE)) is None


async def test_beats_are_stored_as_database_time_minus_age(store: Store, clock: ManualClock) -> None:
    beats = [Beat(EDGE, timedelta(milliseconds=1500), available=True), Beat(FAR, NONE, available=None)]
    await store.run(lambda tx: tx.heartbeats.store(beats))
    assert await store.read(lambda tx: list(tx.heartbeats.all())) == [
        LastBeat(EDGE, clock.now() - timedelta(milliseconds=1500), available=True, session=None),
        LastBeat(FAR, clock.now(), available=None, session=None),
    ]
    assert await store.read(lambda tx: tx.changes.newest()) == 0


async def test_late_heartbeat_never_moves_a_beat_backwards(store: Store, clock: ManualClock) -> None:
    await store.run(lambda tx: tx.heartbeats.store([Beat(EDGE, NONE, available=True)]))
    await store.run(lambda tx: tx.heartbeats.store([Beat(EDGE, timedelta(seconds=1), available=False)]))
    assert await store.read(lambda tx: tx.heartbeats.of(EDGE)) == LastBeat(EDGE, clock.now(), available=True, session=None)
    clock.advance(timedelta(seconds=3))
    await store.run(lambda tx: tx.heartbeats.store([Beat(EDGE, timedelta(seconds=1), available=False)]))
    last = await store.read(lambda tx: tx.heartbeats.of(EDGE))
    assert last == LastBeat(EDGE, clock.now() - timedelta(seconds=1), available=False, session=None)


async def test_beat_without_a_verdict_keeps_the_last_one(store: Store, clock: ManualClock) -> None:
    await store.run(lambda tx: tx.heartbeats.store([Beat(EDGE, NONE, available=False)]))
    clock.advance(timedelta(seconds=1))
    await store.run(lambda tx: tx.heartbeats.store([Beat(EDGE, NONE, available=None)]))
    assert await store.read(lambda tx: tx.heartbeats.of(EDGE)) == LastBeat(EDGE, clock.now(), available=False, session=None)


async def test_session_and_beat_of_a_cluster_do_not_overwrite_one_another(store: Store, clock: ManualClock) -> None:
    await store.run(lambda tx: tx.heartbeats.set_session(EDGE, "s1", agent_version="v1"))
    await store.run(lambda tx: tx.heartbeats.store([Beat(EDGE, NONE, available=True)]))
    expected = LastBeat(EDGE, clock.now(), available=True, session="s1", agent_version="v1")
    assert await store.read(lambda tx: tx.heartbeats.of(EDGE)) == expected
    await store.run(lambda tx: tx.heartbeats.set_session(EDGE, None))
    assert await store.read(lambda tx: tx.heartbeats.of(EDGE)) == replace(expected, session=None)
    await store.run(lambda tx: tx.heartbeats.forget(EDGE))
    assert await store.read(lambda tx: tx.heartbeats.of(EDGE)) is None


async def test_facts_are_kept_and_replaced(store: Store) -> None:
    assert await store.read(lambda tx: tx.facts.get("hub-id")) is None
    await store.run(lambda tx: tx.facts.set("hub-id", "a"))
    await store.run(lambda tx: tx.facts.set("hub-id", "b"))
    assert await store.read(lambda tx: tx.facts.get("hub-id")) == "b"


async def test_a_fact_that_many_settle_at_once_is_settled_once(store: Store) -> None:
    told = await asyncio.gather(*(store.run(lambda tx, value: tx.facts.settle("ca", value), str(one)) for one in range(20)))
    assert set(told) == {await store.read(lambda tx: tx.facts.get("ca"))}


async def test_one_request_issued_by_many_at_once_has_one_certificate(store: Store, clock: ManualClock) -> None:
    newcomer = Newcomer(MemoryStore(clock))

    def submit(tx: Transaction) -> str:
        record, _ = credentials.create(
            tx,
            cluster=None,
            uses=None,
            lifetime=None,
            public_key=b"operator's",
            issuer=newcomer.issuer,
            lifetimes=LIFETIMES,
            actor="ann",
        )
        (requester,) = tx.certificates.of_credential(record.id)
        name = requests.submit(tx, newcomer.submission(requester))
        requests.decide(tx, name, approve=True, reason="R", message="m", actor="ann")
        return name

    name = await store.run(submit)
    outcomes = await asyncio.gather(*(store.run(requests.issue, name, newcomer.issuer, LIFETIMES, "hub") for _ in range(20)))
    assert sum(outcome is not None for outcome in outcomes) == 1
    stored = await store.read(lambda tx: tx.objects.get(REQUESTS, Key("", name)))
    assert stored is not None
    found = await store.read(lambda tx: tx.certificates.of_request(stored.uid))
    assert sorted(record.purpose for record in found) == [Purpose.AGENT, Purpose.RECOVERY]
    assert stored.revision == await store.read(lambda tx: tx.changes.newest())
