"""What a chain of audit records shows of tampering, and `hub audit verify` over a store and over a file."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import timedelta

import pytest

from hub.audit.lines import line_of, link_of
from hub.audit.verify import breaches, noted_form, parse_noted, verify_lines, verify_store
from hub.domain.audit import Dropped, Fields, Level, Record, Stage
from hub.domain.chain import Breach, Head, Link, Verification, link_hash, linked, named
from hub.services import audit
from machinery.clock import ManualClock
from machinery.errors import InvalidError
from tests.fakes.audit_records import EPOCH, chain, record
from tests.fakes.inline_store import InlineStore

TEN = chain("a", *(record(number) for number in range(10)))


def found_in(verification: Verification, links: Iterable[Link]) -> list[Breach]:
    found = [breach for link in links for breach in verification.take(link)]
    return [*found, *verification.end()]


def edited(link: Link, number: int) -> Link:
    other = linked("a", Head(link.sequence - 1, link.previous), record(number, user="mallory"))
    return replace(link, document=other.document, fields=other.fields, at=other.at)


def rehashed(link: Link) -> Link:
    return replace(link, hash=link_hash(link.replica, link.sequence, link.previous, link.document))


def swapped(first: Link, second: Link) -> tuple[Link, Link]:
    return (
        replace(second, sequence=first.sequence, previous=first.previous, hash=first.hash),
        replace(first, sequence=second.sequence, previous=second.previous, hash=second.hash),
    )


ELSE = Fields("bob", "create", "managedclusters", "", "edge")
TAMPERED: dict[str, tuple[Sequence[Link], int, str]] = {
    "a changed record": ([*TEN[:4], edited(TEN[4], 4), *TEN[5:]], 5, "was changed"),
    "a changed record with its hash": ([*TEN[:4], rehashed(edited(TEN[4], 4)), *TEN[5:]], 6, "does not continue"),
    "a removed record": ([*TEN[:4], *TEN[5:]], 6, "links 5 to 5 before it are missing"),
    "a removed stretch": ([*TEN[:2], *TEN[8:]], 9, "links 3 to 8 before it are missing"),
    "a removed beginning": (TEN[3:], 4, "links 1 to 3 before it are missing"),
    "reordered records": ([*TEN[:4], TEN[5], TEN[4], *TEN[6:]], 6, "links 5 to 5 before it are missing"),
    "two records that changed places": ([*TEN[:4], *swapped(TEN[4], TEN[5]), *TEN[6:]], 5, "was changed"),
    "a record with another name": ([*TEN[:4], replace(TEN[4], fields=ELSE), *TEN[5:]], 5, "what it is found by"),
    "a record at another time": ([*TEN[:4], replace(TEN[4], at=EPOCH), *TEN[5:]], 5, "what it is found by"),
    "a record that is none": ([*TEN[:4], rehashed(replace(TEN[4], document=b"{}")), *TEN[5:]], 5, "was changed"),
    "another chain's record": ([*TEN[:4], *chain("b", record(4), after=TEN[3].head), *TEN[5:]], 6, "does not"),
}


def test_tampering_shows_where_it_was_done_and_the_rest_is_verified_on() -> None:
    verification = Verification("a")
    assert found_in(verification, TEN) == []
    assert (verification.count, verification.head) == (10, TEN[-1].head)
    for what, (links, where, words) in TAMPERED.items():
        found = found_in(Verification("a"), links)
        assert found, what
        assert (found[0].sequence, words in found[0].what) == (where, True), what
    touched = [*TEN[:2], *TEN[3:7], edited(TEN[7], 7), *TEN[8:]]
    assert [breach.sequence for breach in found_in(Verification("a"), touched)] == [4, 8], "each is reported once"


def test_a_cut_or_recalculated_chain_shows_only_by_a_noted_head() -> None:
    anew = chain("a", *(record(number, user="mallory" if number == 3 else "ann") for number in range(10)))
    noted = {8: TEN[7].hash}
    for links in (TEN[:6], anew):
        assert found_in(Verification("a"), links) == []
        assert [breach.sequence for breach in found_in(Verification("a", expected=noted), links)] == [8]
    assert found_in(Verification("a", expected=noted), TEN) == []


def test_a_trimmed_chain_is_intact_from_its_anchor_and_a_part_from_anywhere() -> None:
    assert found_in(Verification("a", TEN[3].head), TEN[4:]) == []
    assert found_in(Verification("a", TEN[3].head, expected={2: TEN[1].hash}), TEN[4:]) == []
    assert found_in(Verification("a", TEN[3].head), TEN[5:])
    assert found_in(Verification("a", Head(4, TEN[4].hash)), TEN[4:])
    assert found_in(Verification("a", part=True), TEN[5:]) == []
    assert found_in(Verification("a", part=True), [*TEN[5:7], *TEN[8:]])


def test_names_sort_by_time_and_place() -> None:
    names = [named(link.at, link.replica, link.sequence) for link in TEN]
    assert names == sorted(names)
    assert names[1] == "20260101t000001.000000z-a-000000000002"


def test_records_are_events_of_kubernetes_audit() -> None:
    written = linked("a", Head(), record(1)).document
    assert written.startswith(
        b'{"level":"Metadata","auditID":"id-1","stage":"ResponseComplete","verb":"create","user":{"username":"ann"}'
    )
    assert b'"objectRef":{"resource":"managedclusters","name":"edge"},"responseStatus":{"code":201}' in written
    empty = Record(level=Level.METADATA, stage=Stage.PANIC, at=EPOCH)
    assert (
        linked("a", Head(), empty).document == b'{"level":"Metadata","stage":"Panic","stageTimestamp":"2026-01-01T00:00:00Z"}'
    )


LINKS = chain("a", *(record(number) for number in range(2_500)))


async def test_all_chains_of_a_store_are_read_to_their_ends(store: InlineStore, clock: ManualClock) -> None:
    await store.run(audit.append, LINKS)
    await store.run(audit.append, chain("b", record(1)))
    reports = await verify_store(store, {})
    assert [(report.verification.replica, report.verification.count) for report in reports] == [("a", 2_500), ("b", 1)]
    assert list(breaches(reports)) == []
    assert f"head {noted_form('a', LINKS[-1].head)}" in str(reports[0])
    clock.advance(timedelta(seconds=1_000))
    assert await store.run(audit.trim, timedelta()) == 1_001
    reports = await verify_store(store, {})
    assert list(breaches(reports)) == []
    assert "1000 older ones removed by age" in str(reports[0])
    del store.state.links["a", 1_200]
    assert [breach.sequence for breach in breaches(await verify_store(store, {}))] == [1_201]


async def test_a_noted_head_must_be_there_and_a_drop_does_not_read_as_tampering(store: InlineStore) -> None:
    gap = Record(level=Level.METADATA, stage=Stage.DROPPED, at=EPOCH, dropped=Dropped(7, EPOCH, EPOCH))
    await store.run(audit.append, chain("gap", record(1), gap, record(2)))
    (report,) = await verify_store(store, {})
    assert report.breaches == []
    assert "7 records dropped for want of room" in str(report)
    await store.run(audit.append, LINKS[:10])
    noted = parse_noted([noted_form("a", LINKS[9].head)])
    assert list(breaches(await verify_store(store, noted))) == []
    del store.state.links["a", 10]
    assert [breach.sequence for breach in breaches(await verify_store(store, noted))] == [10]
    store.state.links.clear()
    assert [breach.sequence for breach in breaches(await verify_store(store, noted))] == [10]
    for note in ("", "a", "a:1", "a:0:" + "0" * 64, "a:1:xyz"):
        with pytest.raises(InvalidError, match="REPLICA:SEQUENCE:HASH"):
            parse_noted([note])


def test_a_file_is_verified_line_by_line_from_where_it_begins() -> None:
    assert [link_of(line_of(link)) for link in LINKS[:3]] == LINKS[:3]
    assert link_of(line_of(LINKS[0])[:-20]) is None
    assert link_of(b"hello\n") is None
    lines = [line_of(link) for link in LINKS[5:20]]
    assert list(breaches(verify_lines(lines, {}))) == []
    assert [breach.sequence for breach in breaches(verify_lines(lines[:3] + lines[4:], {}))] == [10]
    touched = lines[3].replace(b'"ann"', b'"bob"')
    assert [breach.sequence for breach in breaches(verify_lines([*lines[:3], touched, *lines[4:]], {}))] == [9]
    assert [breach.what for breach in breaches(verify_lines([*lines, b"torn"], {}))] == [
        "line 16 of the file is no record, or was changed"
    ]
    assert list(breaches(verify_lines(lines[:2], parse_noted([noted_form("a", LINKS[10].head)]))))
