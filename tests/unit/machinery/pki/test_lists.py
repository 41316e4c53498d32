"""Revocation lists as others read them: the library that signs them is asked here by other ways than the code does."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec

from machinery import pki
from machinery.errors import InvalidError
from machinery.identity import SerialNumber, Subject
from machinery.pki import RevocationList, RevokedSerial

NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)
STOLEN = RevokedSerial(SerialNumber(2**158 + 7), NOW - timedelta(hours=1), "keyCompromise")
PLAIN = RevokedSerial(SerialNumber(5), NOW - timedelta(hours=2))
LIST = RevocationList(7, NOW, NOW + timedelta(days=1), (STOLEN, PLAIN))


@pytest.fixture(scope="module")
def authority() -> pki.Authority:
    key, days = pki.generate_key(), timedelta(days=3650)
    return pki.create_authority(Subject("Test CA"), key, pki.random_serial(), NOW - days, NOW + days)


def test_list_is_signed_by_the_ca_and_says_which_key_and_when(authority: pki.Authority) -> None:
    found = x509.load_der_x509_crl(authority.sign_list(LIST))
    ca = x509.load_pem_x509_certificate(authority.certificate)
    key = ca.public_key()
    assert isinstance(key, ec.EllipticCurvePublicKey)
    assert found.is_signature_valid(key)
    assert found.issuer == ca.subject
    assert (found.last_update_utc, found.next_update_utc) == (LIST.this_update, LIST.next_update)
    own_id = ca.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value.digest
    assert found.extensions.get_extension_for_class(x509.AuthorityKeyIdentifier).value.key_identifier == own_id
    assert found.extensions.get_extension_for_class(x509.CRLNumber).value.crl_number == LIST.number


def test_list_tells_each_serial_with_its_time_and_reason_and_no_reason_where_there_is_none(authority: pki.Authority) -> None:
    found = x509.load_der_x509_crl(authority.sign_list(LIST))
    stolen = found.get_revoked_certificate_by_serial_number(STOLEN.serial)
    plain = found.get_revoked_certificate_by_serial_number(PLAIN.serial)
    assert stolen is not None
    assert plain is not None
    assert stolen.revocation_date_utc == STOLEN.at
    assert stolen.extensions.get_extension_for_class(x509.CRLReason).value.reason is x509.ReasonFlags.key_compromise
    assert list(plain.extensions) == []
    assert found.get_revoked_certificate_by_serial_number(6) is None


def test_list_that_was_signed_is_read_back_whole(authority: pki.Authority) -> None:
    read = pki.parse_list(authority.sign_list(LIST))
    assert read.content == replace(LIST, entries=(PLAIN, STOLEN))
    assert read.issuer == "CN=Test CA"


def test_every_word_for_a_reason_can_be_signed(authority: pki.Authority) -> None:
    entries = tuple(RevokedSerial(SerialNumber(place + 1), NOW, reason) for place, reason in enumerate(pki.REASONS))
    assert pki.parse_list(authority.sign_list(replace(LIST, entries=entries))).content.entries == entries
    assert "keyCompromise" in pki.REASONS
    assert "unspecified" not in pki.REASONS  # an entry of no particular reason has no extension for it (RFC 5280, 5.3.1)


def test_pem_of_a_list_is_the_same_list(authority: pki.Authority) -> None:
    der = authority.sign_list(LIST)
    assert x509.load_pem_x509_crl(pki.list_to_pem(der)) == x509.load_der_x509_crl(der)


def test_what_is_no_list_is_refused_in_words() -> None:
    with pytest.raises(InvalidError, match="cannot be read"):
        pki.parse_list(b"no list")
