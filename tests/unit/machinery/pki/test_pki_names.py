"""Names over 64 characters are built and read without a warning, as Go builds them."""

import warnings
from concurrent.futures import ThreadPoolExecutor
from uuid import UUID

import pytest
from cryptography import x509
from cryptography.x509.oid import NameOID

from machinery import pki
from machinery.identity import Subject, agent_id, agent_subject, cluster_name

NAMES = (str(UUID(int=7)), "c" * 63, "edge1")


@pytest.mark.parametrize("name", NAMES)
def test_a_subject_comes_back_from_a_request_as_it_was(name: str) -> None:
    subject = agent_subject(cluster_name(name), agent_id("bcdfg"))
    assert pki.check_request(pki.build_request(subject, pki.generate_key())).subject == subject


def test_every_organization_stands_in_one_relative_name_as_go_writes_it() -> None:
    subject = Subject("cn", frozenset(("a", "b")), frozenset(("unit",)))
    request = x509.load_pem_x509_csr(pki.build_request(subject, pki.generate_key()))
    kinds = [[part.oid for part in relative] for relative in request.subject.rdns]
    assert kinds == [[NameOID.ORGANIZATION_NAME] * 2, [NameOID.ORGANIZATIONAL_UNIT_NAME], [NameOID.COMMON_NAME]]


def test_letters_beyond_printable_string_are_utf8() -> None:
    subject = Subject("zürich@*", frozenset(("gruppe_ä",)))
    assert pki.parse_request(pki.build_request(subject, pki.generate_key())).subject == subject


def test_reading_names_on_many_threads_leaves_the_warning_filters_alone() -> None:
    request = pki.build_request(agent_subject(cluster_name("c" * 63), agent_id("a")), pki.generate_key())
    before = list(warnings.filters)
    with ThreadPoolExecutor(8) as threads:
        assert len({facts.subject for facts in threads.map(pki.parse_request, [request] * 200)}) == 1
    assert list(warnings.filters) == before


def test_two_common_names_are_refused() -> None:
    from cryptography.hazmat.primitives import hashes, serialization  # noqa: PLC0415 - only here
    from cryptography.hazmat.primitives.asymmetric import ec  # noqa: PLC0415 - only here

    from machinery.errors import InvalidError  # noqa: PLC0415 - only here

    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "a"), x509.NameAttribute(NameOID.COMMON_NAME, "b")])
    request = x509.CertificateSigningRequestBuilder().subject_name(name)
    pem = request.sign(ec.generate_private_key(ec.SECP256R1()), hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
    with pytest.raises(InvalidError, match="more than one CN"):
        pki.parse_request(pem)
