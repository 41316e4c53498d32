"""Revocation lists: whose entries they hold and for how long, when a new one is signed, and that all replicas show the same."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import pytest

from hub.domain.certificate import CertificateRecord, Purpose
from hub.ports import ListSigner, Transaction
from hub.services import revocation_lists as lists
from hub.services.revocation_lists import LIFETIME, Published
from machinery import pki
from machinery.clock import ManualClock
from machinery.errors import NotFoundError
from machinery.identity import SerialNumber, Subject
from tests.fakes.memory_store import MemoryStore

FIRST, SECOND = "hub/00000000000000aa", "hub/00000000000000bb"
LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)


class TwoSigners(ListSigner):
    """Two CAs, the first of them older."""

    def __init__(self) -> None:
        ends = LONG_AGO + timedelta(days=36500)
        make = pki.create_authority
        self._cas = {
            name: make(Subject(name), pki.generate_key(), pki.random_serial(), LONG_AGO, ends) for name in (FIRST, SECOND)
        }
        self.signed = 0

    @property
    def authorities(self) -> Sequence[str]:
        return tuple(self._cas)

    def sign_list(self, authority: str, content: pki.RevocationList) -> bytes:
        self.signed += 1
        return self._cas[authority].sign_list(content)


@pytest.fixture(scope="module")
def signer() -> TwoSigners:
    return TwoSigners()


def add(store: MemoryStore, serial: int, *, lives: timedelta = timedelta(days=30), by: str | None = FIRST) -> SerialNumber:
    number = SerialNumber(serial)

    def write(tx: Transaction) -> None:
        record = CertificateRecord(
            serial=number,
            purpose=Purpose.AGENT,
            user="u",
            groups=(),
            not_before=tx.now,
            not_after=tx.now + lives,
            key_hash=str(serial),
            issued_at=tx.now,
            signed_by=by,
        )
        tx.certificates.add(record)

    store.transact(write)
    return number


def revoke(store: MemoryStore, serial: SerialNumber, reason: str = "KeyCompromise") -> None:
    store.transact(lambda tx: tx.certificates.revoke([serial], tx.now, reason))


def sign(store: MemoryStore, signer: TwoSigners, authority: str = FIRST) -> Published:
    return store.transact(lists.sign, signer, authority)


def serials(published: Published) -> dict[int, str]:
    return {entry.serial: entry.reason for entry in pki.parse_list(published.der).content.entries}


def test_each_ca_lists_its_own_and_the_oldest_those_from_before_names_were_kept(store: MemoryStore, signer: TwoSigners) -> None:
    for serial, by in ((1, FIRST), (2, SECOND), (3, None), (4, FIRST)):
        add(store, serial, by=by)
    for serial in (1, 2, 3):
        revoke(store, SerialNumber(serial))
    assert serials(sign(store, signer)) == {1: "keyCompromise", 3: "keyCompromise"}
    assert serials(sign(store, signer, SECOND)) == {2: "keyCompromise"}
    with pytest.raises(NotFoundError):
        sign(store, signer, "hub/00000000000000cc")


def test_nothing_is_signed_while_nothing_has_changed(store: MemoryStore, signer: TwoSigners, clock: ManualClock) -> None:
    first, count = sign(store, signer), signer.signed
    clock.advance(LIFETIME / 2 - timedelta(seconds=1))
    assert sign(store, signer) == first
    assert store.transact(lists.standing, signer, FIRST) == first
    assert signer.signed == count


def test_a_revocation_makes_a_new_list_with_a_higher_number_at_once(store: MemoryStore, signer: TwoSigners) -> None:
    serial = add(store, 1)
    before = sign(store, signer)
    revoke(store, serial, "Superseded")
    assert store.transact(lists.standing, signer, FIRST) is None
    after = sign(store, signer)
    assert after.number > before.number
    assert serials(after) == {1: "superseded"}


def test_a_list_is_signed_anew_well_before_its_next_update(store: MemoryStore, signer: TwoSigners, clock: ManualClock) -> None:
    before = sign(store, signer)
    clock.advance(LIFETIME / 2)
    after = sign(store, signer)
    content = pki.parse_list(after.der).content
    assert after.number > before.number
    assert content.next_update - content.this_update == LIFETIME
    assert content.this_update - clock.now() < timedelta(seconds=1)


def test_the_number_rises_although_the_databases_clock_went_back(
    store: MemoryStore, signer: TwoSigners, clock: ManualClock
) -> None:
    before = sign(store, signer)
    clock.advance(-timedelta(hours=1))
    assert sign(store, signer).number == before.number + 1


def test_an_entry_leaves_a_lists_time_after_its_certificate_would_have_ended(
    store: MemoryStore, signer: TwoSigners, clock: ManualClock
) -> None:
    """RFC 5280 (3.3): it must have been on one list that was issued after that."""
    revoke(store, add(store, 1, lives=timedelta(hours=1)))
    clock.advance(timedelta(hours=1) + LIFETIME - timedelta(seconds=1))
    assert serials(sign(store, signer)) == {1: "keyCompromise"}
    clock.advance(timedelta(seconds=1))
    assert serials(sign(store, signer)) == {}


def test_the_hubs_own_reasons_are_told_in_the_lists_words(store: MemoryStore, signer: TwoSigners) -> None:
    for serial, reason in enumerate(("ClusterDeleted", "ClusterRebuilt", "CredentialRevoked", "Unspecified", "old words"), 1):
        revoke(store, add(store, serial), reason)
    expected = {1: "cessationOfOperation", 2: "superseded", 3: "privilegeWithdrawn", 4: "", 5: ""}
    assert serials(sign(store, signer)) == expected
