"""Who signs what: the order of issuers, what becomes of failures, and what the hub's own CA alone signs."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from hub.domain.certificate import IssuedCertificate, Profile, Purpose
from hub.issuer import AuthorityProvider, IssuerChain, KubernetesIssuer
from hub.issuer.chain import Link, first_of, names_of
from machinery import pki
from machinery.errors import ForbiddenError, InvalidError, UnavailableError
from machinery.identity import SerialNumber, Subject
from tests.fakes.foreign_ca import BEGUN, TEN_YEARS, Key, pem_of, rsa_key, self_signed
from tests.fakes.issuer import WordIssuer

NOW = datetime(2026, 11, 22, tzinfo=UTC)
SERIAL = SerialNumber(0x1234567890ABCDEF1234567890ABCDEF)
OTHERS = [purpose for purpose in Purpose if purpose is not Purpose.LOGIN]


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


@pytest.mark.parametrize(
    ("links", "expected"),
    [((), ""), ((signing("one"),), "one"), ((signing("one"), signing("two")), "one,two")],
)
def test_a_chain_is_called_by_its_issuers_names(links: Sequence[Link], expected: str) -> None:
    assert names_of(links) == expected


def test_without_issuers_the_error_is_always_the_same() -> None:
    with pytest.raises(UnavailableError, match=r"^no issuer signs certificates of this kind$"):
        first_of((), profile(), SERIAL, NOW)


def test_a_failure_bears_its_issuers_name() -> None:
    with pytest.raises(InvalidError, match=r"^one: it is broken$"):
        first_of((failing("one", InvalidError("it is broken")),), profile(), SERIAL, NOW)


def test_the_first_that_can_signs_and_the_others_are_not_asked() -> None:
    asked = failing("two", AssertionError("it was asked"))
    assert first_of((signing("one"), asked), profile(), SERIAL, NOW).signed_by == "one"


def test_a_failure_is_followed_by_the_next_issuer() -> None:
    links = (failing("one", UnavailableError("away")), signing("two"))
    assert first_of(links, profile(), SERIAL, NOW).signed_by == "two"


def test_a_defect_of_one_issuer_is_followed_by_the_next_too() -> None:
    assert first_of((failing("one", KeyError("x")), signing("two")), profile(), SERIAL, NOW).signed_by == "two"


def test_where_all_failed_all_are_told() -> None:
    away, broken = failing("one", UnavailableError("away")), failing("two", InvalidError("broken"))
    with pytest.raises(UnavailableError, match=r"^\[one: away, two: broken\]$"):
        first_of((away, broken), profile(), SERIAL, NOW)
    with pytest.raises(ForbiddenError, match=r"^\[one: no, two: no\]$"):
        first_of((failing("one", ForbiddenError("no")), failing("two", ForbiddenError("no"))), profile(), SERIAL, NOW)
    with pytest.raises(RuntimeError, match=r"^\[one: away, two: lint\]$"):
        first_of((away, failing("two", RuntimeError("lint"))), profile(), SERIAL, NOW)


@pytest.mark.parametrize("purpose", OTHERS)
def test_the_hubs_own_ca_alone_signs_for_agents_add_ons_bootstrap_credentials_and_doors(purpose: Purpose) -> None:
    own = WordIssuer()
    chain = IssuerChain(own, (kubernetes(),))
    assert chain.names(purpose) == "hub"
    assert chain.issue(profile(purpose), SERIAL, NOW).chain == f"{purpose} ann\n".encode()
    own.failure = UnavailableError("away")
    with pytest.raises(UnavailableError, match=r"^hub: away$"):
        chain.issue(profile(purpose), SERIAL, NOW)


@pytest.mark.parametrize("purpose", OTHERS)
def test_the_kubernetes_ca_refuses_whatever_is_no_login(purpose: Purpose) -> None:
    issuer = kubernetes()
    assert not hasattr(issuer, "issue"), "it cannot stand where an Issuer is wanted"
    assert not hasattr(issuer, "trust_bundle")
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


def test_a_ca_that_was_exchanged_signs_with_the_next_call() -> None:
    provider, keys = AuthorityProvider(), (rsa_key(), rsa_key())
    issuer = KubernetesIssuer(provider)
    signers = set()
    for key in keys:
        provider.set(self_signed(key), pem_of(key))
        issued = issuer.issue_login(profile(), SERIAL, NOW)
        assert pki.is_issued_by(issued.chain, provider.certificate)
        signers.add(issued.signed_by)
    assert len(signers) == len(keys)


@pytest.mark.parametrize(
    ("user", "groups"), [("ann", ("system:masters",)), ("system:node:one", ()), ("ann", ("dev", "system:nodes"))]
)
def test_the_kubernetes_ca_signs_no_name_that_means_something_to_kubernetes(user: str, groups: tuple[str, ...]) -> None:
    own = WordIssuer()
    chain = IssuerChain(own, (kubernetes(),))
    assert chain.issue(profile(Purpose.LOGIN, user, *groups), SERIAL, NOW).chain == f"login {user}\n".encode()


def test_a_login_has_the_form_that_kubernetes_expects() -> None:
    issued = kubernetes().issue_login(profile(Purpose.LOGIN, "ann", "dev", "ops"), SERIAL, NOW)
    facts = pki.parse_certificate(issued.chain)
    assert (facts.subject.common_name, facts.subject.organizations) == ("ann", frozenset(("dev", "ops")))
    assert (facts.serial, facts.client_auth, facts.server_auth, facts.is_ca) == (SERIAL, True, False, False)
    assert facts.not_after - facts.not_before == timedelta(minutes=10)


def test_a_ca_that_ends_before_the_certificate_would_does_not_sign() -> None:
    ending = kubernetes(lives=NOW + timedelta(minutes=1) - BEGUN)
    with pytest.raises(UnavailableError, match="ends before this certificate would"):
        ending.issue_login(profile(), SERIAL, NOW)
    short = replace(profile(), not_after=NOW + timedelta(seconds=30))
    assert ending.issue_login(short, SERIAL, NOW).serial == SERIAL


def test_an_old_ca_without_a_key_identifier_signs() -> None:
    facts = pki.parse_certificate(kubernetes(identified=False).issue_login(profile(), SERIAL, NOW).chain)
    assert facts.authority_key_id is None
