"""What every store promises about the hub's CAs, and about who signed what."""

import asyncio
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from hub.domain.authority import Authority, AuthorityId, Follower, Held, Phase, Wish
from hub.domain.certificate import CertificateRecord, Purpose
from hub.ports import Store, Transaction
from hub.services import authorities
from hub.services.authorities import Made
from machinery import pki
from machinery.clock import ManualClock
from machinery.identity import AgentId, ClusterName, SerialNumber, Subject

OLD, NEW = AuthorityId("a" * 16), AuthorityId("b" * 16)
EDGE, FAR = ClusterName("edge"), ClusterName("far")
AGENT = AgentId("xk7pq")
DAY = timedelta(days=1)


@pytest.fixture
def old(clock: ManualClock) -> Authority:
    return Authority(OLD, b"pem", Phase.ISSUING, clock.now(), clock.now())


def record(clock: ManualClock, serial: int, signed_by: str | None, **more: Any) -> CertificateRecord:
    now = clock.now()
    one = CertificateRecord(
        serial=SerialNumber(serial),
        purpose=Purpose.AGENT,
        user="u",
        groups=(),
        not_before=now - DAY,
        not_after=now + DAY,
        key_hash="k",
        issued_at=now,
        cluster=EDGE,
        agent=AGENT,
        signed_by=signed_by,
    )
    return replace(one, **more)


async def add(store: Store, *records: CertificateRecord) -> None:
    def all_of_them(tx: Transaction) -> None:
        for each in records:
            tx.certificates.add(each)

    await store.run(all_of_them)


async def test_authorities_are_kept_in_the_order_of_their_creation_with_their_sealed_keys(
    store: Store, old: Authority, clock: ManualClock
) -> None:
    new = replace(
        old,
        id=NEW,
        phase=Phase.RETIRING,
        created_at=old.created_at + timedelta(microseconds=1),
        cross_signed=b"cross",
        ends_at=clock.now() + DAY,
        wish=Wish.PROCEED,
        wished_by="somebody",
        compromised=True,
    )
    word = asyncio.Event()

    async def keys() -> list[bytes | None]:
        return await store.read(lambda tx: [tx.authorities.sealed_key(each) for each in (OLD, NEW)])

    await store.run(lambda tx: tx.authorities.keep_key(NEW, b"of nobody"))
    with store.told_of_revocations(word.set):
        word.clear()
        await store.run(lambda tx: tx.authorities.put(new))
        await word.wait()
    await store.run(lambda tx: tx.authorities.put(replace(old, phase=Phase.DISTRIBUTING)))
    assert await keys() == [None, None]
    await store.run(lambda tx: tx.authorities.keep_key(OLD, b"sealed"))
    await store.run(lambda tx: tx.authorities.put(old))
    assert list(await store.read(lambda tx: tx.authorities.all())) == [old, new]
    assert await keys() == [b"sealed", None]
    await store.run(lambda tx: tx.authorities.keep_key(OLD, None))
    assert await keys() == [None, None]


async def test_a_replica_says_anew_what_it_knows_and_speaks_for_itself_alone(store: Store) -> None:
    one = [Follower("one", OLD, Phase.ISSUING, has_key=True), Follower("one", NEW, Phase.DISTRIBUTING, has_key=False)]
    two = [Follower("two", OLD, Phase.OUTGOING, has_key=True)]
    await store.run(lambda tx: tx.authorities.follow("one", one))
    await store.run(lambda tx: tx.authorities.follow("two", two))
    await store.run(lambda tx: tx.authorities.follow("one", one[1:]))
    assert list(await store.read(lambda tx: tx.authorities.followers())) == [*one[1:], *two]
    await store.run(lambda tx: tx.authorities.follow("two", []))
    assert list(await store.read(lambda tx: tx.authorities.followers())) == one[1:]


async def test_certificates_are_counted_by_signer_and_purpose_without_those_that_have_ended(
    store: Store, clock: ManualClock
) -> None:
    await add(
        store,
        record(clock, 1, "hub/a"),
        record(clock, 2, "hub/a", purpose=Purpose.RECOVERY),
        record(clock, 3, "hub/a", not_after=clock.now() - timedelta(microseconds=1)),
        record(clock, 4, "hub/a", revoked_at=clock.now()),
        record(clock, 5, None),
        record(clock, 6, "hub/a", not_after=clock.now()),
    )
    found = await store.read(lambda tx: tx.authorities.signed(clock.now()))
    assert found == {("hub/a", Purpose.AGENT): 2, ("hub/a", Purpose.RECOVERY): 1, (None, Purpose.AGENT): 1}


async def test_the_second_ca_leaves_no_record_without_a_signer(store: Store, clock: ManualClock) -> None:
    await add(store, record(clock, 1, None), record(clock, 2, "hub/other"))
    first, second = (
        pki.create_authority(
            Subject(name), pki.generate_key(), pki.random_serial(), clock.now(), clock.now() + timedelta(days=9)
        )
        for name in ("first", "second")
    )
    one = await store.run(authorities.adopt, Made(first.certificate, None))
    await store.run(authorities.propose, Made(second.certificate, None))
    found = await store.read(lambda tx: tx.authorities.signed(clock.now()))
    assert found == {(one.signer, Purpose.AGENT): 1, ("hub/other", Purpose.AGENT): 1}


async def test_an_agent_holds_its_newest_certificate(store: Store, clock: ManualClock) -> None:
    later = clock.now() + timedelta(microseconds=1)
    await add(
        store,
        record(clock, 1, "hub/b", issued_at=later),
        record(clock, 2, "hub/a"),
        record(clock, 3, None, cluster=FAR),
        record(clock, 4, "hub/b", cluster=FAR, issued_at=later, revoked_at=later),
        record(clock, 5, "hub/b", purpose=Purpose.RECOVERY, cluster=FAR),
        record(clock, 6, "hub/b", purpose=Purpose.SERVING, cluster=None, agent=None),
    )
    expected = [Held(EDGE, AGENT, "hub/b", later), Held(FAR, AGENT, None, clock.now())]
    assert list(await store.read(lambda tx: tx.authorities.held(Purpose.AGENT, clock.now()))) == expected


async def test_what_a_signer_signed_is_revoked_and_nothing_else(store: Store, clock: ManualClock) -> None:
    before = clock.now() - timedelta(hours=1)
    await add(
        store,
        record(clock, 1, "hub/a"),
        record(clock, 2, "hub/a", purpose=Purpose.OPERATOR),
        record(clock, 3, "hub/b"),
        record(clock, 4, "hub/a", revoked_at=before, revoked_reason="of its own"),
        record(clock, 5, None),
        record(clock, 6, "hub/c"),
        record(clock, 7, None),
    )
    table: list[tuple[list[str | None], set[int]]] = [
        ([], set()),
        (["hub/a"], {1, 2}),
        ([None], {5, 7}),
        (["hub/c", None], {6}),
    ]
    for signers, gone in table:
        clock.advance(timedelta(seconds=1))
        count = await store.run(lambda tx, given: tx.authorities.revoke_signed(given, clock.now(), "compromised"), signers)
        assert (count, set(await store.read(lambda tx: tx.certificates.revoked_since(clock.now())))) == (len(gone), gone), (
            signers
        )
    kept = await store.read(lambda tx: tx.certificates.by_serial(SerialNumber(4)))
    assert kept is not None
    assert kept.revoked_reason == "of its own"
