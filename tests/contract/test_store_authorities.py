"""What every store promises about the hub's CAs, about who signed what, and about what agents trust."""

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from hub.api.certificateauthorities import authority as rules
from hub.api.certificateauthorities.authority import AgentTrust, AuthorityId, AuthorityRecord, Follower, Phase
from hub.api.certificates import CertificateRecord, Purpose
from hub.api.managedclusters.cluster import JoinRequest, joining_document
from hub.ports import Store, Transaction
from hub.registry.certificateauthorities import service as authorities
from hub.registry.certificateauthorities.service import TrustReport
from hub.registry.managedclusters import service as clusters
from machinery.errors import BadRequestError
from machinery.identity import AgentId, ClusterName, SerialNumber
from machinery.runtime.clock import ManualClock
from tests.checks import check_refusals, present

OLD, NEW = AuthorityId("a" * 16), AuthorityId("b" * 16)
EDGE, FAR = ClusterName("edge"), ClusterName("far")
AGENT = AgentId("xk7pq")
DAY = timedelta(days=1)


@pytest.fixture
def old(clock: ManualClock) -> AuthorityRecord:
    return AuthorityRecord(OLD, b"pem", Phase.ISSUING, clock.now(), clock.now())


def record(clock: ManualClock, serial: int, signed_by: str, **more: Any) -> CertificateRecord:
    now = clock.now()
    one = CertificateRecord(SerialNumber(serial), Purpose.AGENT, "u", (), now - DAY, now + DAY, "k", now, EDGE, AGENT)
    return replace(one, signed_by=signed_by, **more)


async def add(store: Store, *records: CertificateRecord) -> None:
    def all_of_them(tx: Transaction) -> None:
        for each in records:
            tx.certificates.add(each)

    await store.run(all_of_them)


async def test_authorities_are_kept_in_order_with_sealed_keys(store: Store, old: AuthorityRecord, clock: ManualClock) -> None:
    new = replace(old, id=NEW, phase=Phase.RETIRING, created_at=old.created_at + MOMENT, cross_signed=b"cross")
    new = replace(new, ends_at=clock.now() + DAY, order=rules.AuthorityOrder.PROCEED, ordered_by="somebody", compromised=True)
    word = asyncio.Event()

    async def keys() -> list[bytes | None]:
        return await store.read(lambda tx: [tx.authorities.sealed_key(each) for each in (OLD, NEW)])

    await store.run(lambda tx: tx.authorities.keep_key(NEW, b"of nobody"))
    with store.subscribe_to_revocations(word.set):
        word.clear()
        await store.run(lambda tx: tx.authorities.put(new))
        await word.wait()
    await store.run(lambda tx: tx.authorities.put(replace(old, phase=Phase.DISTRIBUTING)))
    assert await keys() == [None, None]
    await store.run(lambda tx: tx.authorities.keep_key(OLD, b"sealed"))
    await store.run(lambda tx: tx.authorities.put(old))
    assert (list(await store.read(lambda tx: tx.authorities.all())), await keys()) == ([old, new], [b"sealed", None])
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


async def test_certificates_are_counted_by_signer_and_purpose_until_they_end(store: Store, clock: ManualClock) -> None:
    await add(
        store,
        record(clock, 1, "hub/a"),
        record(clock, 2, "hub/a", purpose=Purpose.RECOVERY),
        record(clock, 3, "hub/a", not_after=clock.now() - MOMENT),
        record(clock, 4, "hub/a", revoked_at=clock.now()),
        record(clock, 5, "hub/b"),
        record(clock, 6, "hub/a", not_after=clock.now()),
    )
    found = await store.read(lambda tx: tx.authorities.signed(clock.now()))
    assert found == {("hub/a", Purpose.AGENT): 2, ("hub/a", Purpose.RECOVERY): 1, ("hub/b", Purpose.AGENT): 1}


async def test_an_agent_holds_its_newest_certificate(store: Store, clock: ManualClock) -> None:
    later = clock.now() + timedelta(microseconds=1)
    await add(
        store,
        record(clock, 1, "hub/b", issued_at=later),
        record(clock, 2, "hub/a"),
        record(clock, 3, "hub/a", cluster=FAR),
        record(clock, 4, "hub/b", cluster=FAR, issued_at=later, revoked_at=later),
        record(clock, 5, "hub/b", purpose=Purpose.RECOVERY, cluster=FAR),
        record(clock, 6, "hub/b", purpose=Purpose.SERVING, cluster=None, agent=None),
    )
    expected = [rules.HeldCertificate(EDGE, AGENT, "hub/b", later), rules.HeldCertificate(FAR, AGENT, "hub/a", clock.now())]
    assert list(await store.read(lambda tx: tx.authorities.held(Purpose.AGENT, clock.now()))) == expected


async def test_what_a_signer_signed_is_revoked_and_nothing_else(store: Store, clock: ManualClock) -> None:
    await add(
        store,
        record(clock, 1, "hub/a"),
        record(clock, 2, "hub/a", purpose=Purpose.OPERATOR),
        record(clock, 3, "hub/b"),
        record(clock, 4, "hub/a", revoked_at=clock.now() - timedelta(hours=1), revoked_reason="of its own"),
    )
    for signer, gone in (("hub/c", set()), ("hub/a", {1, 2}), ("hub/b", {3})):
        clock.advance(timedelta(seconds=1))
        count = await store.run(lambda tx, given: tx.authorities.revoke_signed(given, clock.now(), "compromised"), signer)
        found = set(await store.read(lambda tx: tx.certificates.revoked_since(clock.now())))
        assert (count, found) == (len(gone), gone), signer
    assert present(await store.read(lambda tx: tx.certificates.by_serial(SerialNumber(4)))).revoked_reason == "of its own"


OTHER = AgentId("aaaaa")
FORMER, NEXT = "a" * 64, "b" * 64
AT = datetime(2026, 1, 1, tzinfo=UTC)
MOMENT = timedelta(microseconds=1)
FIRST = AgentTrust(
    EDGE, AGENT, frozenset((FORMER, NEXT)), SerialNumber(2**158 + 7), AT, AT + MOMENT, "hub/0123456789abcdef", AT
)


async def test_what_an_agent_trusts_is_kept_as_it_was_put_and_goes_with_its_cluster(store: Store) -> None:
    silent, far = replace(FIRST, agent=OTHER, trusted=None), replace(FIRST, cluster=FAR)
    for each in (FIRST, far, silent):
        await store.run(lambda tx, each: tx.trusts.put(each), each)
    assert await store.read(lambda tx: list(tx.trusts.all())) == [silent, FIRST, far]
    newer = replace(FIRST, trusted=frozenset((NEXT,)), serial=SerialNumber(8), since=AT + MOMENT)
    await store.run(lambda tx: tx.trusts.put(newer))
    assert await store.read(lambda tx: tx.trusts.get(EDGE, AGENT)) == newer
    assert await store.read(lambda tx: tx.trusts.get(EDGE, AgentId("none"))) is None
    await store.run(lambda tx: tx.trusts.forget(EDGE))
    assert await store.read(lambda tx: list(tx.trusts.all())) == [far]
    assert await store.read(lambda tx: tx.changes.newest()) == 0, "no news"


async def test_of_several_agents_of_a_cluster_the_certificate_counts_that_ends_last(store: Store) -> None:
    assert await store.read(lambda tx: dict(tx.trusts.ends())) == {}
    assert await store.read(lambda tx: list(tx.trusts.ending([AT]))) == [0, 0]
    for each in (replace(FIRST, agent=OTHER, not_after=AT + 3 * MOMENT), FIRST, replace(FIRST, cluster=FAR)):
        await store.run(lambda tx, each: tx.trusts.put(each), each)
    assert await store.read(lambda tx: dict(tx.trusts.ends())) == {EDGE: AT + 3 * MOMENT, FAR: AT + MOMENT}
    moments = [AT, AT + MOMENT, AT + 2 * MOMENT, AT + 3 * MOMENT]
    assert await store.read(lambda tx: list(tx.trusts.ending(moments))) == [0, 1, 1, 2, 2]
    firsts = [await store.read(lambda tx, after: tx.trusts.first_end(after), after) for after in moments]
    assert firsts == [AT + MOMENT, AT + 3 * MOMENT, AT + 3 * MOMENT, None]


async def test_trust_is_noted_when_it_changes_and_never_for_a_cluster_that_is_gone(store: Store, clock: ManualClock) -> None:
    for name in (EDGE, FAR):
        document = joining_document(JoinRequest(name, "uid-1", AGENT), timedelta(seconds=60))
        await store.run(clusters.put, document, None, "ann", writer="test")
    known = record(clock, 1, "hub/1")
    words = [TrustReport(known, frozenset((FORMER,)))]

    async def kept() -> AgentTrust:
        return present(await store.read(lambda tx: tx.trusts.get(EDGE, AGENT)))

    assert await store.run(authorities.note_trust, words) == 1
    before = await kept()
    assert await store.read(lambda tx: list(authorities.trust_news(tx, words))) == []
    assert await store.run(authorities.note_trust, words) == 0
    assert await kept() == before, "what is on record is not written again"
    newer = record(clock, 2, "hub/1", issued_at=clock.now() + MOMENT)
    assert await store.run(authorities.note_trust, [TrustReport(known, frozenset((FORMER, NEXT)))]) == 1
    assert await store.run(authorities.note_trust, [TrustReport(newer, frozenset((FORMER, NEXT)))]) == 1
    assert ((await kept()).serial, (await kept()).trusts(NEXT), (await kept()).signed_by) == (2, True, "hub/1")
    await store.run(authorities.note_trust, [TrustReport(known, None)])
    assert (await kept()).serial == 1, "the agent has gone back to the one before: its CA is not retired while it is needed"
    ended = record(clock, 3, "hub/1", not_after=clock.now() - DAY, cluster=FAR)
    await store.run(authorities.note_trust, [TrustReport(ended, None)])
    assert [each.cluster for each in await store.read(authorities.current_trust)] == [EDGE], "an ended one is not waited for"

    await store.run(lambda tx: clusters.remove(tx, clusters.find(tx, EDGE), "ann"))
    for _ in range(2):
        assert await store.read(lambda tx: [each.cluster for each in tx.trusts.all()]) == [FAR]
        assert await store.run(authorities.note_trust, words) == 0


def test_fingerprints_are_read_and_none_is_not_an_empty_trust() -> None:
    wrong = (["short"], ["G" * 64], ["A" * 64], [f"{n:064x}" for n in range(33)])
    check_refusals(BadRequestError, rules.checked_fingerprints, [(text, "trusted_authorities") for text in wrong])
    assert rules.checked_fingerprints([]) is None
    assert not replace(FIRST, trusted=None).trusts(FORMER)
