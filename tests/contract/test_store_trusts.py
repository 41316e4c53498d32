"""What every store promises about what agents trust, and what the use cases over it keep."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from hub.domain.certificate import CertificateRecord, Purpose
from hub.domain.cluster import Joining, joining_document
from hub.domain.trust import AgentTrust, told
from hub.ports import Store, Transaction
from hub.services import clusters, trust
from hub.services.trust import Told
from machinery.errors import BadRequestError
from machinery.identity import AgentId, ClusterName, SerialNumber

EDGE, FAR = ClusterName("edge"), ClusterName("far")
AGENT, OTHER = AgentId("xk7pq"), AgentId("aaaaa")
OLD, NEW = "a" * 64, "b" * 64
AT = datetime(2026, 1, 1, tzinfo=UTC)
MOMENT = timedelta(microseconds=1)
FIRST = AgentTrust(EDGE, AGENT, frozenset((OLD, NEW)), SerialNumber(2**158 + 7), AT, AT + MOMENT, "hub/0123456789abcdef", AT)


def record_of(serial: int, *, issued: datetime, ends: datetime, cluster: ClusterName = EDGE) -> CertificateRecord:
    known = CertificateRecord(SerialNumber(serial), Purpose.AGENT, "u", (), issued, ends, "k", issued)
    return replace(known, cluster=cluster, agent=AGENT, signed_by="hub/1")


async def joined_cluster(store: Store, name: ClusterName) -> None:
    document = joining_document(Joining(name, "uid-1", AGENT), timedelta(seconds=60))
    await store.run(lambda tx: clusters.put(tx, document, None, "ann", writer="test"))


async def test_what_an_agent_trusts_is_kept_as_it_was_put_and_goes_with_its_cluster(store: Store) -> None:
    silent = replace(FIRST, agent=OTHER, trusted=None, signed_by=None)
    far = replace(FIRST, cluster=FAR)
    for each in (FIRST, far, silent):
        await store.run(lambda tx, each: tx.trusts.put(each), each)
    assert await store.read(lambda tx: list(tx.trusts.all())) == [silent, FIRST, far]
    newer = replace(FIRST, trusted=frozenset((NEW,)), serial=SerialNumber(8), since=AT + MOMENT)
    await store.run(lambda tx: tx.trusts.put(newer))
    assert await store.read(lambda tx: tx.trusts.get(EDGE, AGENT)) == newer
    assert await store.read(lambda tx: tx.trusts.get(EDGE, AgentId("none"))) is None
    await store.run(lambda tx: tx.trusts.forget(EDGE))
    assert await store.read(lambda tx: list(tx.trusts.all())) == [far]
    assert await store.read(lambda tx: tx.changes.newest()) == 0, "no news"


async def test_of_several_agents_of_a_cluster_the_certificate_counts_that_ends_last(store: Store) -> None:
    assert await store.read(lambda tx: dict(tx.trusts.ends())) == {}
    assert await store.read(lambda tx: list(tx.trusts.ending([AT]))) == [0, 0]
    later = replace(FIRST, agent=OTHER, not_after=AT + 3 * MOMENT)
    for each in (later, FIRST, replace(FIRST, cluster=FAR)):
        await store.run(lambda tx, each: tx.trusts.put(each), each)
    assert await store.read(lambda tx: dict(tx.trusts.ends())) == {EDGE: AT + 3 * MOMENT, FAR: AT + MOMENT}
    moments = [AT, AT + MOMENT, AT + 2 * MOMENT, AT + 3 * MOMENT]
    assert await store.read(lambda tx: list(tx.trusts.ending(moments))) == [0, 1, 1, 2, 2]
    firsts = [await store.read(lambda tx, after: tx.trusts.first_end(after), after) for after in moments]
    assert firsts == [AT + MOMENT, AT + 3 * MOMENT, AT + 3 * MOMENT, None]


async def test_trust_is_noted_when_it_changes_and_never_for_a_cluster_that_is_gone(store: Store) -> None:
    for name in (EDGE, FAR):
        await joined_cluster(store, name)
    now, day = await store.read(lambda tx: tx.now), timedelta(days=1)
    record = record_of(1, issued=now, ends=now + day)
    words = [Told(record, frozenset((OLD,)))]

    async def kept() -> AgentTrust:
        found = await store.read(lambda tx: tx.trusts.get(EDGE, AGENT))
        assert found is not None
        return found

    assert await store.run(trust.note, words) == 1
    before = await kept()
    assert await store.read(lambda tx: list(trust.news(tx, words))) == []
    assert await store.run(trust.note, words) == 0
    assert await kept() == before, "what is on record is not written again"
    newer = record_of(2, issued=now + MOMENT, ends=now + day)
    assert await store.run(trust.note, [Told(record, frozenset((OLD, NEW)))]) == 1
    assert await store.run(trust.note, [Told(newer, frozenset((OLD, NEW)))]) == 1
    assert ((await kept()).serial, (await kept()).trusts(NEW), (await kept()).signed_by) == (2, True, "hub/1")
    await store.run(trust.note, [Told(record, None)])
    assert (await kept()).serial == 1, "the agent has gone back to the one before: its CA is not retired while it is needed"
    ended = record_of(3, issued=now - 2 * day, ends=now - day, cluster=FAR)
    await store.run(trust.note, [Told(ended, None)])
    assert [each.cluster for each in await store.read(trust.standing)] == [EDGE], "an ended certificate is not waited for"

    def delete(tx: Transaction) -> None:
        clusters.remove(tx, clusters.find(tx, EDGE), "ann")

    await store.run(delete)
    for _ in range(2):
        assert await store.read(lambda tx: [each.cluster for each in tx.trusts.all()]) == [FAR]
        assert await store.run(trust.note, words) == 0


def test_fingerprints_are_read_and_none_is_not_an_empty_trust() -> None:
    for said in (["short"], ["G" * 64], ["A" * 64], [f"{n:064x}" for n in range(33)]):
        with pytest.raises(BadRequestError, match="trusted_authorities"):
            told(said)
    assert told([]) is None
    assert not replace(FIRST, trusted=None).trusts(OLD)
