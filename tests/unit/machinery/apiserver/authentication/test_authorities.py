"""CAs of others: whose certificates count, and which of the names in them."""

import ssl
from datetime import timedelta

import pytest

from machinery import pki
from machinery.apiserver.authentication.authorities import Authorities, ForeignCertificates, mark_of_authority
from machinery.clock import ManualClock, SystemClock
from machinery.errors import InvalidError, UnauthorizedError
from tests.fakes.authority import OtherCA
from tests.fakes.shown import request

CA, OTHER = OtherCA("ca"), OtherCA("other")


def foreign(*groups: str, clock: ManualClock | SystemClock | None = None) -> ForeignCertificates:
    return ForeignCertificates(Authorities(CA.certificate), groups, clock or SystemClock())


async def test_only_the_groups_that_are_named_count() -> None:
    credential = CA.issue("carol", "ops", "dev", "system:masters", "system:authenticated")
    found = await foreign("ops", "qa", "system:masters").identify(request(credential))
    assert found is not None
    facts = pki.parse_certificate(credential.chain)
    assert (found.actor.user, found.actor.groups, found.until) == ("carol", ("ops",), facts.not_after)
    assert found.actor.extra == {"authentication.kubernetes.io/credential-id": (f"X509SHA256={facts.fingerprint}",)}
    assert found.mark.startswith(mark_of_authority(pki.parse_certificate(CA.certificate).fingerprint))


@pytest.mark.parametrize("user", ["system:open-cluster-management:edge1:abcde", "system:bootstrap:x", "system:admin"])
async def test_no_such_certificate_is_an_agents_or_the_systems(user: str) -> None:
    with pytest.raises(UnauthorizedError):
        await foreign("ops").identify(request(CA.issue(user, "ops", "system:open-cluster-management:edge1")))


async def test_certificates_of_other_cas_and_no_certificate_are_left_to_others() -> None:
    assert await foreign("ops").identify(request(OTHER.issue("carol", "ops"))) is None
    assert await foreign("ops").identify(request(None)) is None


async def test_a_certificate_whose_time_ended_while_its_connection_stayed_is_refused() -> None:
    clock = ManualClock(SystemClock().now())
    authenticator = foreign("ops", clock=clock)
    credential = CA.issue("carol", "ops", lifetime=timedelta(hours=1))
    assert await authenticator.identify(request(credential))
    clock.advance(timedelta(hours=1, seconds=2))
    with pytest.raises(UnauthorizedError):
        await authenticator.identify(request(credential))


def test_cas_are_exchanged_as_a_whole_and_those_that_are_gone_are_told() -> None:
    authorities = Authorities(CA.certificate)
    mine = ssl.PEM_cert_to_DER_cert(CA.issue("carol").chain.decode())
    theirs = ssl.PEM_cert_to_DER_cert(OTHER.issue("carol").chain.decode())
    assert authorities.signed(mine)
    assert authorities.signed(theirs) is None
    assert authorities.replace(CA.certificate + OTHER.certificate) == frozenset()
    assert authorities.signed(mine)
    assert authorities.signed(theirs)
    assert authorities.replace(OTHER.certificate) == {pki.parse_certificate(CA.certificate).fingerprint}
    assert authorities.signed(mine) is None


def test_a_ca_of_the_same_name_is_another_ca() -> None:
    namesake = OtherCA("ca")
    assert Authorities(CA.certificate).signed(ssl.PEM_cert_to_DER_cert(namesake.issue("carol").chain.decode())) is None


@pytest.mark.parametrize("bundle", [b"no PEM", CA.issue("carol").chain])
def test_what_is_no_ca_is_refused_and_changes_nothing(bundle: bytes) -> None:
    authorities = Authorities(CA.certificate)
    with pytest.raises(InvalidError):
        authorities.replace(bundle)
    assert authorities.bundle == CA.certificate
    assert authorities.signed(ssl.PEM_cert_to_DER_cert(CA.issue("carol").chain.decode()))
