"""What a chain shows of whoever touched it, and what it cannot show."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import pytest

from hub.domain.audit import Fields, Level, Record, Stage
from hub.domain.chain import Breach, Head, Link, Verification, link_hash, linked, named
from tests.fakes.audit_records import EPOCH, chain, record

TEN = chain("a", *(record(number) for number in range(10)))
Tampering = Callable[[list[Link]], Sequence[Link]]


def breaches(verification: Verification, links: Iterable[Link]) -> list[Breach]:
    found = [breach for link in links for breach in verification.take(link)]
    return [*found, *verification.end()]


def test_untouched_chain_is_intact() -> None:
    verification = Verification("a")
    assert breaches(verification, TEN) == []
    assert (verification.count, verification.head) == (10, TEN[-1].head)


def edited(link: Link, number: int) -> Link:
    other = linked("a", Head(link.sequence - 1, link.previous), record(number, user="mallory"))
    return replace(link, document=other.document, fields=other.fields, at=other.at)


def rehashed(link: Link) -> Link:
    return replace(link, hash=link_hash(link.replica, link.sequence, link.previous, link.document))


@dataclass(frozen=True)
class Case:
    what: str
    tamper: Tampering
    where: int
    words: str


CASES = [
    Case("a changed record", lambda ten: [*ten[:4], edited(ten[4], 4), *ten[5:]], 5, "was changed"),
    Case(
        "a changed record with its hash", lambda ten: [*ten[:4], rehashed(edited(ten[4], 4)), *ten[5:]], 6, "does not continue"
    ),
    Case("a removed record", lambda ten: [*ten[:4], *ten[5:]], 6, "links 5 to 5 before it are missing"),
    Case("a removed stretch", lambda ten: [*ten[:2], *ten[8:]], 9, "links 3 to 8 before it are missing"),
    Case("a removed beginning", lambda ten: ten[3:], 4, "links 1 to 3 before it are missing"),
    Case("reordered records", lambda ten: [*ten[:4], ten[5], ten[4], *ten[6:]], 6, "links 5 to 5 before it are missing"),
    Case(
        "two records that changed places",
        lambda ten: [
            *ten[:4],
            replace(ten[5], sequence=5, previous=ten[4].previous, hash=ten[4].hash),
            replace(ten[4], sequence=6, previous=ten[5].previous, hash=ten[5].hash),
            *ten[6:],
        ],
        5,
        "was changed",
    ),
    Case(
        "a record that is found by another name",
        lambda ten: [*ten[:4], replace(ten[4], fields=Fields("bob", "create", "managedclusters", "", "edge")), *ten[5:]],
        5,
        "what it is found by",
    ),
    Case("a record at another time", lambda ten: [*ten[:4], replace(ten[4], at=EPOCH), *ten[5:]], 5, "what it is found by"),
    Case(
        "a record that is none", lambda ten: [*ten[:4], rehashed(replace(ten[4], document=b"{}")), *ten[5:]], 5, "was changed"
    ),
    Case(
        "a record of another chain", lambda ten: [*ten[:4], *chain("b", record(4), after=ten[3].head), *ten[5:]], 6, "does not"
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.what)
def test_tampering_shows_where_it_was_done(case: Case) -> None:
    found = breaches(Verification("a"), case.tamper(list(TEN)))
    assert found
    assert (found[0].sequence, case.words in found[0].what) == (case.where, True)


def test_one_tampering_is_told_once_and_the_rest_is_verified_on() -> None:
    touched = [*TEN[:2], *TEN[3:7], edited(TEN[7], 7), *TEN[8:]]
    assert [breach.sequence for breach in breaches(Verification("a"), touched)] == [4, 8]


def test_a_tail_that_was_cut_off_shows_only_to_who_has_noted_a_head() -> None:
    assert breaches(Verification("a"), TEN[:6]) == []
    assert [breach.sequence for breach in breaches(Verification("a", expected={8: TEN[7].hash}), TEN[:6])] == [8]
    assert breaches(Verification("a", expected={8: TEN[7].hash}), TEN) == []


def test_a_chain_calculated_anew_shows_only_to_who_has_noted_a_head() -> None:
    anew = chain("a", *(record(number, user="mallory" if number == 3 else "ann") for number in range(10)))
    assert breaches(Verification("a"), anew) == []
    assert [breach.sequence for breach in breaches(Verification("a", expected={8: TEN[7].hash}), anew)] == [8]


def test_a_trimmed_chain_is_intact_from_its_anchor_on() -> None:
    assert breaches(Verification("a", TEN[3].head), TEN[4:]) == []
    assert breaches(Verification("a", TEN[3].head, expected={2: TEN[1].hash}), TEN[4:]) == []
    assert breaches(Verification("a", TEN[3].head), TEN[5:])
    assert breaches(Verification("a", Head(4, TEN[4].hash)), TEN[4:])


def test_a_part_of_a_chain_begins_anywhere() -> None:
    assert breaches(Verification("a", part=True), TEN[5:]) == []
    assert breaches(Verification("a", part=True), [*TEN[5:7], *TEN[8:]])


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
