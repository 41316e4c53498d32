"""What the doors show: exchanged while they serve, and never for something that cannot be used."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from hub.domain.authority import Phase
from hub.domain.certificate import Lifetimes
from hub.issuer import ServingNames
from hub.serving import DoorsCertificate, Files, given_certificate, own_certificate
from machinery import pki
from machinery.clock import SystemClock
from machinery.errors import InvalidError, UnavailableError
from machinery.identity import Subject
from tests.fakes.authority import OtherCA
from tests.fakes.rotating import Generations

NAMES = ServingNames(("hub.example.com", "localhost"), ("127.0.0.1",))
DAY = timedelta(days=1)


@dataclass
class Given:
    """Two files with a certificate of somebody else's CA, and that CA's."""

    folder: Path
    ca: OtherCA

    @property
    def files(self) -> Files:
        return Files(self.folder / "tls.crt", self.folder / "tls.key", self.folder / "ca.crt")

    def write(self, *names: str, lifetime: timedelta = DAY, usage: pki.Usage = pki.Usage.SERVER) -> bytes:
        now, key = SystemClock().now(), pki.generate_key()
        begin = min(now, now + lifetime) - timedelta(minutes=5)
        plan = pki.Plan(
            Subject("hub"), pki.public_key_of(key), pki.random_serial(), begin, now + lifetime, usage, names or ("x",)
        )
        chain = self.ca.authority.sign(plan)
        self.files.chain.write_bytes(chain)
        self.files.key.write_bytes(key)
        (self.folder / "ca.crt").write_bytes(self.ca.certificate)
        return chain


@pytest.fixture
def given(tmp_path: Path) -> Given:
    return Given(tmp_path, OtherCA())


@pytest.fixture
def generations() -> Generations:
    generations = Generations()
    generations.add(Phase.ISSUING)
    return generations


def shown(given: Given, generations: Generations) -> DoorsCertificate:
    return DoorsCertificate(
        given_certificate(given.files, NAMES, generations.issuer, SystemClock()), generations.issuer, SystemClock()
    )


async def test_files_are_shown_and_exchanged_and_their_ca_is_told_to_peers(given: Given, generations: Generations) -> None:
    first = given.write("hub.example.com")
    doors = shown(given, generations)
    assert doors.serving.material.chain == first
    assert generations.issuer.trust_bundle.endswith(given.ca.certificate)
    assert given.ca.certificate not in generations.issuer.client_trust, "no client comes in by it"
    second = given.write("hub.example.com")
    doors.renew()
    assert doors.serving.material.chain == second
    await doors.check()


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (lambda given: given.files.key.write_bytes(pki.generate_key()), "a pair"),
        (lambda given: given.files.chain.write_bytes(b"junk"), "no certificate can be read"),
        (lambda given: given.files.chain.write_bytes(given.ca.certificate), "is a CA's own certificate"),
        (lambda given: given.files.chain.unlink(), "cannot be read: No such file"),
        (lambda given: given.write("other.example.com"), "it is not for hub.example.com"),
        (lambda given: given.write("hub.example.com", lifetime=-timedelta(hours=1)), "and not now"),
        (lambda given: given.write("hub.example.com", usage=pki.Usage.CLIENT), "not for servers"),
        (lambda given: (given.folder / "ca.crt").write_bytes(given.files.chain.read_bytes()), "that is no CA's"),
    ],
)
async def test_what_cannot_be_served_leaves_the_last_good_one_and_says_so(
    given: Given, generations: Generations, spoil: object, told: str
) -> None:
    first = given.write("hub.example.com")
    doors = shown(given, generations)
    assert callable(spoil)
    spoil(given)
    doors.renew()
    assert doors.serving.material.chain == first
    with pytest.raises(UnavailableError, match=told):
        await doors.check()
    mended = given.write("*.example.com")
    doors.renew()
    assert doors.serving.material.chain == mended
    await doors.check()


def test_a_hub_does_not_start_with_what_it_cannot_serve(given: Given, generations: Generations) -> None:
    given.write("other.example.com")
    with pytest.raises(InvalidError, match=r"it is not for 127\.0\.0\.1, hub\.example\.com|it is not for hub\.example\.com"):
        shown(given, generations)


def test_whom_the_doors_let_in_follows_the_ca_although_the_files_are_bad(given: Given, generations: Generations) -> None:
    given.write("hub.example.com")
    doors = shown(given, generations)
    given.files.chain.write_bytes(b"junk")
    new = generations.add(Phase.DISTRIBUTING)
    assert new.certificate in doors.serving.material.trust


def test_the_hubs_own_certificate_is_of_the_ca_that_issues_and_is_renewed_before_its_end(
    tmp_path: Path, generations: Generations
) -> None:
    source = own_certificate(tmp_path, NAMES, generations.issuer, Lifetimes(), SystemClock())
    doors = DoorsCertificate(source, generations.issuer, SystemClock())
    first = doors.serving.material.chain
    doors.renew()
    assert doors.serving.material.chain == first, "nothing is due"
    generations.turn(0, Phase.OUTGOING)
    new = generations.add(Phase.ISSUING)
    leaf, crossed = pki.split_bundle(doors.serving.material.chain)
    assert pki.is_issued_by(leaf, new.certificate)
    assert crossed == new.cross_signed


def test_a_ca_that_nears_its_end_is_told_of(tmp_path: Path, generations: Generations) -> None:
    source = own_certificate(tmp_path, NAMES, generations.issuer, Lifetimes(), SystemClock())

    class Later(SystemClock):
        """Nine years and four months on."""

        def now(self) -> datetime:
            return super().now() + timedelta(days=3400)

    assert DoorsCertificate(source, generations.issuer, SystemClock()).ending() == ""
    assert "begin with `hubctl ca rotate`" in DoorsCertificate(source, generations.issuer, Later()).ending()
