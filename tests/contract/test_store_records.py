"""What every store promises about certificates, credentials, heartbeats and facts, and about use cases that race."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import count

import pytest

from hub.api import bootstrapcredentials as rules
from hub.api.bootstrapcredentials import CredentialBounds, CredentialRecord, CredentialUse, UseCount, token_hash
from hub.api.certificates import CertificateRecord, Purpose
from hub.api.liveness import Beat, LastBeat
from hub.api.meta.change import MANAGED_CLUSTERS, REQUESTS
from hub.ports import Store, Transaction
from hub.registry import certificates
from hub.registry.bootstrapcredentials import service as credentials
from hub.registry.bootstrapcredentials.service import CredentialTerms
from hub.registry.certificatesigningrequests import credential_uses, issuance, service as requests, submission
from hub.store import SqlStore
from machinery.errors import ConflictError, ForbiddenError
from machinery.identity import AddOnName, AgentId, ClusterName, CredentialId, SerialNumber
from machinery.meta.objects import Key
from machinery.runtime.clock import ManualClock
from tests.checks import check_refusal_of, present
from tests.fakes.inline_store import InlineStore
from tests.fakes.registration import LIFETIMES, Newcomer
from tests.unit.hub.test_revocation import FIRST, TwoSigners

EDGE, FAR = ClusterName("edge"), ClusterName("far")
NONE = timedelta()


@pytest.fixture
def record(clock: ManualClock) -> CertificateRecord:
    now, names = clock.now(), (EDGE, AgentId("agent"), AddOnName("addon"), CredentialId("c"), "r")
    serial, ends = SerialNumber(2**158 + 7), now + timedelta(days=1, microseconds=1)
    return CertificateRecord(serial, Purpose.AGENT, "u", ("a", "b"), now, ends, "k", now, *names)


@pytest.fixture
def credential(clock: ManualClock) -> CredentialRecord:
    return CredentialRecord(CredentialId("c"), EDGE, 3, clock.now(), clock.now() + timedelta(hours=1), "ann")


async def test_certificate_is_found_by_all_that_it_is_known_by_and_revoked_once(
    store: Store, record: CertificateRecord, clock: ManualClock
) -> None:
    bare = replace(
        record, serial=SerialNumber(1), purpose=Purpose.BOOTSTRAP, request_uid=None, cluster=None, agent=None, addon=None
    )
    login = replace(bare, purpose=Purpose.LOGIN, credential=CredentialId("uid"))
    logins = [replace(login, serial=SerialNumber(number)) for number in (2, 3)]
    others = (
        replace(login, serial=SerialNumber(4), credential=CredentialId("other")),
        replace(login, serial=SerialNumber(5), purpose=Purpose.BOOTSTRAP),
        replace(record, serial=SerialNumber(6), purpose=Purpose.RECOVERY),
    )

    def add_and_read(tx: Transaction) -> list[CertificateRecord | None]:
        seen = [tx.certificates.by_serial(record.serial)]
        tx.certificates.add(record)
        return [*seen, tx.certificates.by_serial(record.serial)]

    def revoke_and_read(tx: Transaction, at: datetime, reason: str) -> CertificateRecord | None:
        tx.certificates.revoke([record.serial], at, reason)
        tx.certificates.revoke([], at, "Nothing")
        return tx.certificates.by_serial(record.serial)

    assert await store.run(add_and_read) == [None, record]
    for each in (bare, *logins, *others):
        await store.run(_add, each)
    await check_refusal_of(ConflictError, store.run(_add, replace(record, serial=SerialNumber(7))))
    found = [
        await store.read(lambda tx, serial: tx.certificates.by_serial(SerialNumber(serial)), serial)
        for serial in (record.serial, 1, 7)
    ]
    assert found == [record, bare, None]
    assert await store.read(lambda tx: list(tx.certificates.of_cluster(EDGE))) == [record, others[2]]
    assert await store.read(lambda tx: list(tx.certificates.of_request("r"))) == [record, others[2]]
    assert await store.read(lambda tx: dict(tx.certificates.ends([EDGE, FAR]))) == {EDGE: record.not_after}
    assert await store.read(lambda tx: list(tx.certificates.of_credential(CredentialId("c")))) == [bare]
    assert await store.read(lambda tx: list(tx.certificates.of_account("uid"))) == logins
    assert len(await store.read(lambda tx: tx.certificates.of_key("k"))) == 7
    revoked = replace(record, revoked_at=clock.now(), revoked_reason="Stolen")
    assert await store.run(revoke_and_read, clock.now(), "Stolen") == revoked
    assert await store.run(revoke_and_read, clock.now() + timedelta(hours=1), "Again") == revoked
    assert await store.read(lambda tx: dict(tx.certificates.ends([EDGE]))) == {}
    assert not revoked.is_open(clock.now())


async def test_only_ended_logins_are_forgotten_and_so_many(store: Store, record: CertificateRecord, clock: ManualClock) -> None:
    ended = replace(record, purpose=Purpose.LOGIN, request_uid=None, not_after=clock.now() - timedelta(seconds=1))
    others = [
        replace(ended, serial=SerialNumber(5), not_after=clock.now()),
        replace(ended, serial=SerialNumber(6), purpose=Purpose.OPERATOR),
    ]
    for each in (*(replace(ended, serial=SerialNumber(number)) for number in (2, 3, 4)), *others):
        await store.run(_add, each)
    assert [await store.run(lambda tx: tx.certificates.forget_logins(clock.now(), 2)) for _ in range(3)] == [2, 1, 0]
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
    assert (sorted(ended), len(await store.read(lambda tx: tx.certificates.ended(clock.now(), 2)))) == ([2, 6, 7], 2)
    assert await store.run(lambda tx: tx.certificates.forget(ended)) == 3
    assert list(await store.read(lambda tx: tx.certificates.ended(clock.now(), 10))) == []
    assert sorted(await store.read(lambda tx: [each.serial for each in tx.certificates.of_cluster(EDGE)])) == [1, 3, 4, 5]


def _add(tx: Transaction, record: CertificateRecord) -> None:
    tx.certificates.add(record)


async def test_revoked_certificates_are_reported_with_their_reasons_and_listed_until_they_would_have_ended(
    store: Store, record: CertificateRecord, clock: ManualClock
) -> None:
    began, other = clock.now(), replace(record, serial=SerialNumber(3), request_uid=None, not_after=clock.now())
    for each in (record, other, replace(record, serial=SerialNumber(4), request_uid=None)):
        await store.run(_add, each)
    clock.advance(timedelta(minutes=1))
    await store.run(lambda tx: tx.certificates.revoke([record.serial, other.serial], tx.now, "keyCompromise"))
    revoked = await store.read(lambda tx: dict(tx.certificates.revoked_since(clock.now())))
    assert revoked == {record.serial: "keyCompromise", other.serial: "keyCompromise"}
    assert await store.read(lambda tx: dict(tx.certificates.revoked_since(clock.now() + timedelta(seconds=1)))) == {}
    listed = await store.read(lambda tx: [each.serial for each in tx.certificates.revoked(began - timedelta(seconds=1))])
    assert sorted(listed) == [other.serial, record.serial]
    listed = await store.read(lambda tx: [each.serial for each in tx.certificates.revoked(began)])
    assert listed == [record.serial]


async def test_credential_remembers_its_token_whom_it_admitted_and_when_it_was_revoked(
    store: Store, credential: CredentialRecord, clock: ManualClock
) -> None:
    other = replace(credential, id=CredentialId("d"), cluster=None, uses=None, created_at=clock.now() + timedelta(1))
    once = replace(credential, id=CredentialId("e"), uses=1, created_at=clock.now() + timedelta(2))

    def fill(tx: Transaction) -> None:
        for each in (credential, other, once):
            tx.credentials.add(each)
        tx.credentials.admit(credential.id, EDGE, clock.now())
        tx.credentials.admit(credential.id, FAR, clock.now())

    async def revoked_since(moment: datetime) -> list[CredentialId]:
        return await store.read(lambda tx: list(tx.credentials.revoked_since(moment)))

    await store.run(fill)
    for _ in range(3):
        await store.run(credential_uses.admit, once.id, EDGE)
    assert await store.read(lambda tx: tx.credentials.by_id(credential.id)) == credential
    assert await store.read(lambda tx: tx.credentials.by_id(CredentialId("x"))) is None
    admitted = [await store.read(lambda tx, each: tx.credentials.admitted(each.id), each) for each in (credential, other)]
    assert admitted == [{EDGE, FAR}, frozenset()]
    assert await store.read(lambda tx: tx.credentials.has_admitted(credential.id, FAR))
    assert not await store.read(lambda tx: tx.credentials.has_admitted(other.id, FAR))
    assert await store.read(lambda tx: list(tx.credentials.all())) == [credential, other, once]
    valid = [await store.read(lambda tx, each: list(tx.credentials.valid_for(each, clock.now())), each) for each in (EDGE, FAR)]
    assert valid == [[credential, other, once], [other]]
    began = clock.now()
    clock.advance(timedelta(seconds=9))
    assert await revoked_since(began) == []
    await store.run(lambda tx: tx.credentials.revoke(other.id, clock.now()))
    assert await store.read(lambda tx: tx.credentials.by_id(other.id)) == replace(other, revoked_at=clock.now())
    await store.run(credentials.revoke, once.id)
    assert sorted(await revoked_since(clock.now())) == [other.id, once.id]
    assert await revoked_since(clock.now() + timedelta(microseconds=1)) == []
    record, token = await store.run(credentials.create_token, CredentialTerms(EDGE, 3, timedelta(hours=1)), "ann")
    assert await store.read(lambda tx: tx.credentials.by_id(record.id)) == record
    expected = replace(credential, id=record.id, created_at=clock.now(), expires_at=clock.now() + timedelta(hours=1))
    assert record == replace(expected, token_hash=token_hash(token))


async def test_whoever_waits_for_revocations_is_notified_of_each_and_finds_it(
    store: Store, record: CertificateRecord, credential: CredentialRecord, clock: ManualClock
) -> None:
    await store.run(_add, record)
    await store.run(lambda tx: tx.credentials.add(credential))
    began, word = clock.now(), asyncio.Event()
    with store.subscribe_to_revocations(word.set) as is_notified:
        await _listens(store, is_notified)
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


async def _listens(store: Store, is_notified: Callable[[], bool]) -> None:
    """Returns when nobody is woken any more because the store has only begun to listen to its database."""
    if not (isinstance(store, SqlStore) and store._doorbell):
        return
    async with asyncio.timeout(10):
        for number in count():
            if is_notified():
                return
            document = {"metadata": {"name": f"c{number}", "uid": f"uid-{number}"}}
            await store.run(lambda tx, made: tx.objects.put(MANAGED_CLUSTERS, made, None, "tester"), document)


async def test_uses_are_not_overspent_by_many_at_once(store: Store, credential: CredentialRecord) -> None:
    await store.run(lambda tx: tx.credentials.add(replace(credential, cluster=None)))
    names = [ClusterName(f"c{number}") for number in range(20)]
    outcomes = await asyncio.gather(
        *(store.run(credential_uses.admit, credential.id, name) for name in names), return_exceptions=True
    )
    assert sum(isinstance(outcome, tuple) for outcome in outcomes) == 3
    assert all(isinstance(outcome, tuple | ForbiddenError) for outcome in outcomes)
    assert len(await store.read(lambda tx: tx.credentials.admitted(credential.id))) == 3


async def test_credential_is_read_as_it_was_written(store: Store, credential: CredentialRecord, clock: ManualClock) -> None:
    demand = rules.AttestationRequirement(
        "https://issuer.example.org", keys='{"keys": []}', audience="x", subject="system:serviceaccount:a:b"
    )
    bounds = CredentialBounds(("edge-*", "lab"), "edge", {"env": "prod"}, demand)
    bound = replace(credential, id=CredentialId("bound"), cluster=None, bounds=bounds)

    def all_of_it(tx: Transaction) -> list[object]:
        seen: list[object] = [tx.credentials.by_id(credential.id)]
        tx.credentials.add(credential)
        seen.append(tx.credentials.by_id(credential.id) == credential)
        tx.credentials.revoke(credential.id, tx.now, by="ann", reason="lost")
        revoked = tx.credentials.by_id(credential.id)
        seen.append(revoked and revoked.revoked_reason)
        tx.credentials.hide(credential.id)
        seen.append(tx.credentials.by_id(credential.id) != revoked)
        tx.credentials.forget_ended(tx.now + timedelta(days=1000))
        return [*seen, tx.credentials.by_id(credential.id)]

    assert await store.run(all_of_it) == [None, True, "lost", True, None]
    await store.run(lambda tx: tx.credentials.add(bound))
    assert await store.read(lambda tx: tx.credentials.by_id(bound.id)) == bound
    await store.run(lambda tx: tx.credentials.revoke(bound.id, clock.now(), by="ann", reason="leaked"))
    await store.run(lambda tx: tx.credentials.revoke(bound.id, clock.now(), by="bob", reason="again"))
    ended = await store.read(lambda tx: tx.credentials.by_id(bound.id))
    assert ended == replace(bound, revoked_at=clock.now(), revoked_by="ann", revoked_reason="leaked")


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
    assert await store.read(lambda tx: tx.credentials.tally(credential.id)) == UseCount(1, 1, 1)
    assert await store.read(lambda tx: tx.credentials.use_counts()) == {credential.id: UseCount(1, 1, 1)}
    await store.run(lambda tx: tx.credentials.drop_use(held))
    assert await store.read(lambda tx: tx.credentials.tally(credential.id)) == UseCount(1, 0, 2)
    await store.run(lambda tx: tx.credentials.forget_name(EDGE, CredentialId("another")))
    assert await store.read(lambda tx: tx.credentials.tally(credential.id)) == UseCount(1, 0, 2)
    await store.run(lambda tx: tx.credentials.forget_name(EDGE, credential.id))
    assert await store.read(lambda tx: tx.credentials.tally(credential.id)) == UseCount(1, 0, 1)
    assert await store.run(lambda tx: tx.credentials.forget_ended(credential.expires_at)) == 0
    assert await store.run(lambda tx: tx.credentials.forget_ended(credential.expires_at + timedelta(seconds=1))) == 1
    assert await store.read(lambda tx: (list(tx.credentials.all()), list(tx.credentials.uses(credential.id)))) == ([], [])


async def test_newest_beat_is_kept_as_database_time_minus_age_beside_its_session(store: Store, clock: ManualClock) -> None:
    async def stored(age: timedelta, *, available: bool | None) -> LastBeat | None:
        await store.run(lambda tx: tx.heartbeats.store([Beat(EDGE, age, available=available)]))
        return await store.read(lambda tx: tx.heartbeats.of(EDGE))

    second = timedelta(seconds=1)
    await store.run(lambda tx: tx.heartbeats.store([Beat(EDGE, 1.5 * second, available=True), Beat(FAR, NONE, available=None)]))
    last = LastBeat(EDGE, clock.now() - 1.5 * second, available=True, session=None)
    far = LastBeat(FAR, clock.now(), available=None, session=None)
    assert await store.read(lambda tx: list(tx.heartbeats.all())) == [last, far]
    assert await store.read(lambda tx: tx.changes.newest()) == 0
    assert await stored(2 * second, available=False) == last, "a late beat moves nothing backwards"
    clock.advance(3 * second)
    assert await stored(second, available=False) == replace(last, at=clock.now() - second, available=False)
    assert await stored(NONE, available=None) == replace(last, at=clock.now(), available=False), "the verdict stays"
    await store.run(lambda tx: tx.heartbeats.set_session(EDGE, "s1", agent_version="v1"))
    expected = LastBeat(EDGE, clock.now(), available=True, session="s1", agent_version="v1")
    assert await stored(NONE, available=True) == expected
    for ended, left in (("s0", "s1"), ("s1", None)):
        await store.run(lambda tx, session: tx.heartbeats.end_session(EDGE, session), ended)
        assert await store.read(lambda tx: tx.heartbeats.of(EDGE)) == replace(expected, session=left)
    await store.run(lambda tx: tx.heartbeats.set_available(EDGE, available=False))
    assert await store.read(lambda tx: tx.heartbeats.of(EDGE)) == replace(expected, session=None, available=False)
    await store.run(lambda tx: tx.heartbeats.forget(EDGE))
    assert await store.read(lambda tx: tx.heartbeats.of(EDGE)) is None
    many = [Beat(ClusterName(f"c{number}"), NONE, available=True) for number in range(1000)]
    await store.run(lambda tx: tx.heartbeats.store(many))
    assert len(await store.read(lambda tx: tx.heartbeats.all())) == 1 + 1000
    some, most = [FAR, ClusterName("gone"), many[7].cluster], [ClusterName("gone"), *(each.cluster for each in many)]
    for among, size in ((some, 2), (most, 1000), ([], 0)):
        assert len(await store.read(lambda tx, chosen: tx.heartbeats.all(chosen), among)) == size


async def test_facts_and_bindings_are_kept_replaced_and_released(store: Store, clock: ManualClock) -> None:
    assert await store.read(lambda tx: tx.facts.get("hub-id")) is None
    for value in "ab":
        await store.run(lambda tx, value: tx.facts.set("hub-id", value), value)
    assert await store.read(lambda tx: tx.facts.get("hub-id")) == "b"
    settled = await asyncio.gather(*(store.run(lambda tx, one: tx.facts.settle("ca", one), str(one)) for one in range(20)))
    assert set(settled) == {await store.read(lambda tx: tx.facts.get("ca"))}
    binding = rules.Binding(EDGE, "https://issuer", "system:serviceaccount:a:b", "thumb", clock.now())
    await store.run(lambda tx: tx.bindings.bind(binding))
    assert await store.read(lambda tx: (tx.bindings.of(EDGE), tx.bindings.of(FAR))) == (binding, None)
    await store.run(lambda tx: tx.bindings.release(EDGE))
    assert await store.read(lambda tx: tx.bindings.of(EDGE)) is None


async def test_one_request_issued_by_many_at_once_has_one_certificate(store: Store, clock: ManualClock) -> None:
    newcomer = Newcomer(InlineStore(clock))

    def submit(tx: Transaction) -> str:
        terms = CredentialTerms(None, None, LIFETIMES.bootstrap)
        record, _ = credentials.create(tx, terms, b"operator's", newcomer.issuer, lifetimes=LIFETIMES, actor="ann")
        (requester,) = tx.certificates.of_credential(record.id)
        name = submission.submit(tx, newcomer.submission(requester))
        requests.decide(tx, name, approve=True, reason="R", message="m", actor="ann")
        return name

    name = await store.run(submit)
    outcomes = await asyncio.gather(*(store.run(issuance.issue, name, newcomer.issuer, LIFETIMES, "hub") for _ in range(20)))
    assert sum(outcome is not None for outcome in outcomes) == 1
    stored = present(await store.read(lambda tx: tx.objects.get(REQUESTS, Key("", name))))
    found = await store.read(lambda tx: tx.certificates.of_request(stored.uid))
    assert sorted(record.purpose for record in found) == [Purpose.AGENT, Purpose.RECOVERY]
    assert stored.revision == await store.read(lambda tx: tx.changes.newest())


AT_ONCE = 8


async def test_replicas_that_sign_at_once_end_with_one_list(store: Store) -> None:
    signer = TwoSigners()
    signed = await asyncio.gather(*(store.run(certificates.sign_list, signer, FIRST) for _ in range(AT_ONCE)))
    kept = present(await store.read(certificates.current_list, signer, FIRST))
    assert kept in signed
    assert len({each.number for each in signed}) == len({each.der for each in signed})
    assert kept.number == max(each.number for each in signed)
