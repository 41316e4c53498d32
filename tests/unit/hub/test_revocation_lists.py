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
from tests.fakes.inline_store import InlineStore

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


def add(store: InlineStore, serial: int, *, lives: timedelta = timedelta(days=30), by: str | None = FIRST) -> SerialNumber:
    number = SerialNumber(serial)

    def write(tx: Transaction) -> None:
        now, ends = tx.now, tx.now + lives
        tx.certificates.add(CertificateRecord(number, Purpose.AGENT, "u", (), now, ends, str(serial), now, signed_by=by))

    store.transact(write)
    return number


def revoke(store: InlineStore, serial: SerialNumber, reason: str = "KeyCompromise") -> None:
    store.transact(lambda tx: tx.certificates.revoke([serial], tx.now, reason))


def sign(store: InlineStore, signer: TwoSigners, authority: str = FIRST) -> Published:
    return store.transact(lists.sign, signer, authority)


def serials(published: Published) -> dict[int, str]:
    return {entry.serial: entry.reason for entry in pki.parse_list(published.der).content.entries}


def test_each_ca_lists_its_own_and_the_oldest_those_from_before_names_were_kept(store: InlineStore, signer: TwoSigners) -> None:
    for serial, by in ((1, FIRST), (2, SECOND), (3, None), (4, FIRST)):
        add(store, serial, by=by)
    for serial in (1, 2, 3):
        revoke(store, SerialNumber(serial))
    assert serials(sign(store, signer)) == {1: "keyCompromise", 3: "keyCompromise"}
    assert serials(sign(store, signer, SECOND)) == {2: "keyCompromise"}
    with pytest.raises(NotFoundError):
        sign(store, signer, "hub/00000000000000cc")


def test_list_is_signed_anew_at_half_its_life_or_a_revocation(
    store: InlineStore, signer: TwoSigners, clock: ManualClock
) -> None:
    serial = add(store, 1)
    first, count = sign(store, signer), signer.signed
    clock.advance(LIFETIME / 2 - timedelta(seconds=1))
    assert sign(store, signer) == first
    assert store.transact(lists.standing, signer, FIRST) == first
    assert signer.signed == count
    clock.advance(timedelta(seconds=1))
    second = sign(store, signer)
    content = pki.parse_list(second.der).content
    assert second.number > first.number
    assert content.next_update - content.this_update == LIFETIME
    assert content.this_update - clock.now() < timedelta(seconds=1)
    revoke(store, serial, "Superseded")
    assert store.transact(lists.standing, signer, FIRST) is None
    third = sign(store, signer)
    assert third.number > second.number
    assert serials(third) == {1: "superseded"}
    clock.advance(-timedelta(days=1))
    assert sign(store, signer).number == third.number + 1, "although the database's clock was set back"


def test_entry_outlives_its_certificate_by_one_list(store: InlineStore, signer: TwoSigners, clock: ManualClock) -> None:
    """RFC 5280 (3.3): it must have been on one list that was issued after that."""
    revoke(store, add(store, 1, lives=timedelta(hours=1)))
    clock.advance(timedelta(hours=1) + LIFETIME - timedelta(seconds=1))
    assert serials(sign(store, signer)) == {1: "keyCompromise"}
    clock.advance(timedelta(seconds=1))
    assert serials(sign(store, signer)) == {}
