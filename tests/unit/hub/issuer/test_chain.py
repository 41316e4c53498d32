"""Who signs what: the order of issuers, what the hub's own CA alone signs, and the CA that comes, changes and goes."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from hub.domain.certificate import IssuedCertificate, Profile, Purpose
from hub.issuer import AuthorityProvider, IssuerChain, KubernetesIssuer, files
from hub.issuer.chain import Link, first_of, names_of
from machinery import pki
from machinery.errors import ForbiddenError, InvalidError, UnavailableError
from machinery.identity import SerialNumber, Subject
from tests.fakes.authority import BEGUN, TEN_YEARS, Key, pem_of, rsa_key, self_signed
from tests.fakes.issuer import WordIssuer

NOW = datetime(2026, 11, 22, tzinfo=UTC)
SERIAL = SerialNumber(0x1234567890ABCDEF1234567890ABCDEF)


def profile(purpose: Purpose = Purpose.LOGIN, user: str = "ann", *groups: str) -> Profile:
    return Profile(
        purpose,
        Subject(user, frozenset(groups)),
        pki.public_key_of(pki.generate_key()),
        NOW - timedelta(minutes=5),
        NOW + timedelta(minutes=5),
    )


def signing(name: str) -> Link:
    return Link(name, lambda _profile, serial, _now: IssuedCertificate(serial, name.encode(), name))


def failing(name: str, error: Exception) -> Link:
    def fail(_profile: Profile, _serial: SerialNumber, _now: datetime) -> IssuedCertificate:
        raise error

    return Link(name, fail)


def kubernetes(key: Key | None = None, lives: timedelta = TEN_YEARS, *, identified: bool = True) -> KubernetesIssuer:
    provider, key = AuthorityProvider(), key or rsa_key()
    provider.set(self_signed(key, lives=lives, identified=identified), pem_of(key))
    return KubernetesIssuer(provider)


def test_the_first_issuer_that_can_signs_and_otherwise_each_failure_is_named() -> None:
    chains: dict[str, tuple[Link, ...]] = {"": (), "one": (signing("one"),), "one,two": (signing("one"), signing("two"))}
    assert {names: names_of(links) for names, links in chains.items()} == {names: names for names in chains}
    links = (signing("one"), failing("two", AssertionError("it was asked")))
    assert first_of(links, profile(), SERIAL, NOW).signed_by == "one"
    for error in (UnavailableError("away"), KeyError("x")):
        assert first_of((failing("one", error), signing("two")), profile(), SERIAL, NOW).signed_by == "two"
    with pytest.raises(UnavailableError, match=r"^no issuer signs certificates of this kind$"):
        first_of((), profile(), SERIAL, NOW)
    with pytest.raises(InvalidError, match=r"^one: it is broken$"):
        first_of((failing("one", InvalidError("it is broken")),), profile(), SERIAL, NOW)
    away, broken = failing("one", UnavailableError("away")), failing("two", InvalidError("broken"))
    with pytest.raises(UnavailableError, match=r"^\[one: away, two: broken\]$"):
        first_of((away, broken), profile(), SERIAL, NOW)
    with pytest.raises(ForbiddenError, match=r"^\[one: no, two: no\]$"):
        first_of((failing("one", ForbiddenError("no")), failing("two", ForbiddenError("no"))), profile(), SERIAL, NOW)
    with pytest.raises(RuntimeError, match=r"^\[one: away, two: lint\]$"):
        first_of((away, failing("two", RuntimeError("lint"))), profile(), SERIAL, NOW)


def test_the_hubs_own_ca_alone_signs_what_is_no_login() -> None:
    issuer = kubernetes()
    assert not hasattr(issuer, "issue"), "it cannot stand where an Issuer is wanted"
    assert not hasattr(issuer, "trust_bundle")
    for purpose in set(Purpose) - {Purpose.LOGIN}:
        own = WordIssuer()
        chain = IssuerChain(own, (issuer,))
        assert chain.names(purpose) == "hub"
        assert chain.issue(profile(purpose), SERIAL, NOW).chain == f"{purpose} ann\n".encode()
        own.failure = UnavailableError("away")
        with pytest.raises(UnavailableError, match=r"^hub: away$"):
            chain.issue(profile(purpose), SERIAL, NOW)
        with pytest.raises(InvalidError, match="operators' logins and nothing else"):
            issuer.issue_login(profile(purpose), SERIAL, NOW)


def test_a_login_is_signed_by_the_kubernetes_ca_first_and_by_the_hubs_own_then() -> None:
    provider, own, key = AuthorityProvider(), WordIssuer(), rsa_key()
    chain = IssuerChain(own, (KubernetesIssuer(provider),))
    assert chain.names(Purpose.LOGIN) == "kubernetes,hub"
    assert chain.issue(profile(), SERIAL, NOW).chain == b"login ann\n", "no CA is known: the hub's own signs"

    provider.set(self_signed(key), pem_of(key))
    issued = chain.issue(profile(), SERIAL, NOW)
    facts = pki.parse_certificate(provider.certificate)
    assert issued.signed_by == f"kubernetes/{facts.key_hash[:16]}"
    assert pki.is_issued_by(issued.chain, provider.certificate)

    provider.unset()
    assert chain.issue(profile(), SERIAL, NOW).chain == b"login ann\n", "the CA is asked for at each call"
    assert chain.snapshot() == {
        "signed login by hub": 2,
        "signed login by kubernetes": 1,
        "failed login by kubernetes": 2,
    }


def test_a_login_of_the_kubernetes_ca_has_the_form_that_kubernetes_expects_and_no_name_that_it_reserves() -> None:
    chain = IssuerChain(WordIssuer(), (kubernetes(),))
    for user, *groups in (("ann", "system:masters"), ("system:node:one",), ("ann", "dev", "system:nodes")):
        assert chain.issue(profile(Purpose.LOGIN, user, *groups), SERIAL, NOW).chain == f"login {user}\n".encode()
    issued = kubernetes().issue_login(profile(Purpose.LOGIN, "ann", "dev", "ops"), SERIAL, NOW)
    facts = pki.parse_certificate(issued.chain)
    assert (facts.subject.common_name, facts.subject.organizations) == ("ann", frozenset(("dev", "ops")))
    assert (facts.serial, facts.client_auth, facts.server_auth, facts.is_ca) == (SERIAL, True, False, False)
    assert facts.not_after - facts.not_before == timedelta(minutes=10)
    old = pki.parse_certificate(kubernetes(identified=False).issue_login(profile(), SERIAL, NOW).chain)
    assert old.authority_key_id is None, "a CA without a key identifier signs too"
    ending = kubernetes(lives=NOW + timedelta(minutes=1) - BEGUN)
    with pytest.raises(UnavailableError, match="ends before this certificate would"):
        ending.issue_login(profile(), SERIAL, NOW)
    short = replace(profile(), not_after=NOW + timedelta(seconds=30))
    assert ending.issue_login(short, SERIAL, NOW).serial == SERIAL


class Listener:
    """Counts how often it was told."""

    def __init__(self) -> None:
        self.told = 0

    def __call__(self) -> None:
        self.told += 1


def pair(name: str = "kubernetes") -> tuple[bytes, bytes]:
    key = ec.generate_private_key(ec.SECP256R1())
    return self_signed(key, name), pem_of(key)


def test_a_provider_goes_through_good_and_bad_pairs_and_holds_the_last_good_one() -> None:
    """Pinniped's ten steps of a dynamic CA."""
    provider, listener = AuthorityProvider(), Listener()
    provider.listen(listener)
    one, other = pair(), pair("other")

    assert provider.current is None
    assert provider.certificate == b""
    for refused in ((one[0], b""), (b"", one[1])):  # only a certificate, only a key
        with pytest.raises(InvalidError):
            provider.set(*refused)
    assert (provider.current, listener.told) == (None, 0)

    provider.set(*one)
    assert (provider.certificate, listener.told) == (one[0], 1)
    provider.set(*one)  # the same again
    assert (provider.certificate, listener.told) == (one[0], 2)
    provider.set(*other)
    assert (provider.certificate, listener.told) == (other[0], 3)

    bad: list[tuple[bytes, bytes]] = [(b"bad", other[1]), (other[0], b"bad"), (one[0], other[1])]
    for refused in bad:
        with pytest.raises(InvalidError):
            provider.set(*refused)
        assert (provider.certificate, listener.told) == (other[0], 3), "what was good stays, and nobody is told"

    provider.set(*one)
    assert (provider.certificate, listener.told) == (one[0], 4)
    provider, listener = AuthorityProvider(), Listener()
    provider.set(*pair())
    end = provider.listen(listener)
    provider.unset()
    assert (provider.current, provider.certificate, listener.told) == (None, b"", 1)
    end()
    provider.set(*pair())
    assert listener.told == 1, "who listens no more is not told"


def test_unusable_pairs_are_refused_and_no_error_holds_a_key() -> None:
    key, short = ec.generate_private_key(ec.SECP256R1()), rsa.generate_private_key(65537, 1024)  # noqa: S505 - it is refused
    one, other = pair(), pair()
    for certificate, pem, words in (
        (self_signed(key, is_ca=False), pem_of(key), "not one of a certificate authority"),
        (one[0] + other[0], one[1], "more than one certificate"),
        (self_signed(short), pem_of(short), "2048 bits or more"),
    ):
        with pytest.raises(InvalidError, match=words):
            AuthorityProvider().set(certificate, pem)
    for taken in (rsa_key(), ec.generate_private_key(ec.SECP384R1())):
        for form in (serialization.PrivateFormat.PKCS8, serialization.PrivateFormat.TraditionalOpenSSL):
            provider = AuthorityProvider()
            provider.set(self_signed(taken), pem_of(taken, form))
            assert provider.current is not None, (taken, form)
    certificate, pem_key = pair()
    provider = AuthorityProvider()
    provider.set(certificate, pem_key)
    with pytest.raises(InvalidError) as refused:
        provider.set(pair()[0], pem_key)
    body = pem_key.decode().splitlines()[1]
    assert body not in repr(provider) + str(refused.value) + repr(refused.value)
    assert pki.key_matches(provider.certificate, pem_key)


def test_what_stands_in_the_way_is_told_with_its_name(tmp_path: Path) -> None:
    place = tmp_path / "ca.key"
    place.mkdir()
    with pytest.raises(UnavailableError, match=f"{place} cannot be written: "):
        files.replace(place, b"a key")
    with pytest.raises(UnavailableError, match=f"{place} cannot be removed: "):
        files.remove(place)
