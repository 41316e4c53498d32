"""Certificates of the doors, and how fast replicas and agents learn of another CA."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path

import pytest

from hub.access.revocation_poller import SOON
from hub.api.certificateauthorities.authority import Phase
from hub.api.certificates import Lifetimes
from hub.grpc_door.session.trust_bundle_push import AGAIN, LOOK, PER_SECOND, TrustBundlePush, Trustee, fingerprints
from hub.issuer import ServingNames
from hub.issuer.key_storage import SealedKeys
from hub.issuer.local import make_authority
from hub.issuer.rotating import RotatingIssuer
from hub.registry.certificateauthorities import service as authorities
from hub.registry.certificateauthorities.service import Made
from hub.replica.authorities import LOOK_EVERY, AuthorityFollower
from hub.replica.serving_certificate import DoorsCertificate, Files, given_certificate, own_certificate
from machinery import pki
from machinery.errors import InvalidError, UnavailableError
from machinery.identity import CertificateSubject
from machinery.runtime.clock import ManualClock, SystemClock
from tests.checks import check_refusal_of
from tests.fakes.authority import Generations, OtherCA
from tests.fakes.databases import SEAL
from tests.fakes.inline_store import Bell
from tests.fakes.registration import fresh_store
from tests.fakes.virtual_time import START, in_virtual_time

NAMES = ServingNames(("hub.example.com", "localhost"), ("127.0.0.1",))
DAY = timedelta(days=1)
JITTER = 1.1
"""Looks keep apart from those of other replicas."""


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
            CertificateSubject("hub"),
            pki.public_key_of(key),
            pki.random_serial(),
            begin,
            now + lifetime,
            usage,
            names or ("x",),
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
    source = given_certificate(given.files, NAMES, generations.issuer, SystemClock())
    return DoorsCertificate(source, generations.issuer, SystemClock())


async def test_certificate_that_cannot_be_served_leaves_the_last_good_one(given: Given, generations: Generations) -> None:
    rows: tuple[tuple[Callable[[], object], str], ...] = (
        (lambda: given.files.key.write_bytes(pki.generate_key()), "a pair"),
        (lambda: given.files.chain.write_bytes(b"junk"), "no certificate can be read"),
        (lambda: given.files.chain.write_bytes(given.ca.certificate), "is a CA's own certificate"),
        (given.files.chain.unlink, "cannot be read: No such file"),
        (lambda: given.write("other.example.com"), "it is not for hub.example.com"),
        (lambda: given.write("hub.example.com", lifetime=-timedelta(hours=1)), "and not now"),
        (lambda: given.write("hub.example.com", usage=pki.Usage.CLIENT), "not for servers"),
        (lambda: (given.folder / "ca.crt").write_bytes(given.files.chain.read_bytes()), "that is no CA's"),
    )
    given.write("other.example.com")
    with pytest.raises(InvalidError, match=r"it is not for 127\.0\.0\.1, hub\.example\.com|it is not for hub\.example\.com"):
        shown(given, generations)  # a hub does not start with it
    good = given.write("hub.example.com")
    doors = shown(given, generations)
    assert generations.issuer.trust_bundle.endswith(given.ca.certificate)
    assert given.ca.certificate not in generations.issuer.client_trust, "no client comes in by it"
    for spoil, message in rows:
        spoil()
        doors.renew()
        assert doors.serving.material.chain == good, message
        await check_refusal_of(UnavailableError, doors.check(), match=message)
        good = given.write("*.example.com")
        doors.renew()
        assert doors.serving.material.chain == good, message
        await doors.check()
    given.files.chain.write_bytes(b"junk")
    new = generations.add(Phase.DISTRIBUTING)
    assert new.certificate in doors.serving.material.trust, "trust follows the CA although the files are bad"


def test_own_certificate_follows_the_issuing_ca_whose_end_is_announced(tmp_path: Path, generations: Generations) -> None:
    source = own_certificate(tmp_path, NAMES, generations.issuer, Lifetimes(), SystemClock())
    doors = DoorsCertificate(source, generations.issuer, SystemClock())
    first = doors.serving.material.chain
    doors.renew()
    assert doors.serving.material.chain == first, "nothing is due"
    assert doors.ending() == ""
    late = ManualClock(SystemClock().now() + timedelta(days=3400))
    assert "begin with `hubctl ca rotate`" in DoorsCertificate(source, generations.issuer, late).ending()
    generations.turn(0, Phase.OUTGOING)
    new = generations.add(Phase.ISSUING)
    leaf, crossed = pki.split_bundle(doors.serving.material.chain)
    assert pki.is_issued_by(leaf, new.certificate)
    assert crossed == new.cross_signed


NOW = datetime(2026, 1, 1, tzinfo=UTC)
OLD, NEW = (
    pki.create_authority(
        CertificateSubject(name), pki.generate_key(), pki.random_serial(), NOW - timedelta(days=1), NOW + timedelta(days=1)
    ).certificate
    for name in ("old", "new")
)


class Session(Trustee):
    def __init__(self, trusted: frozenset[str] | None) -> None:
        self.trusted = trusted
        self.sent: list[tuple[float, bytes]] = []
        self.reconsidered = 0

    def reconsider(self) -> None:
        self.reconsidered += 1

    def push(self, bundle: bytes) -> None:
        self.sent.append((asyncio.get_running_loop().time(), bundle))


def test_bundle_that_changes_goes_to_all_that_lack_it_and_of_another_ca_every_session_is_told_once() -> None:
    async def work() -> tuple[Session, Session, Session]:
        bundle, standing = [OLD], [1]
        trusting = TrustBundlePush(fresh_store(), lambda: bundle[0], standing=lambda: tuple(standing))
        running = asyncio.create_task(trusting.run())
        taking, silent, gone = Session(fingerprints(OLD)), Session(None), Session(fingerprints(OLD))
        for session in (taking, silent, gone):
            trusting.look(session)
        await asyncio.sleep(2 * LOOK.total_seconds())
        assert not taking.sent
        trusting.leave(gone)
        standing[0] = 2
        for pem in (OLD + NEW, NEW):
            bundle[0] = pem
            await asyncio.sleep(2 * LOOK.total_seconds())
            taking.trusted = fingerprints(pem)
            trusting.look(taking)
        await asyncio.sleep(3 * AGAIN.total_seconds())
        running.cancel()
        return taking, silent, gone

    taking, silent, gone = in_virtual_time(work())
    assert [pem for _, pem in taking.sent] == [OLD + NEW, NEW]
    assert silent.sent == gone.sent == []
    assert (taking.reconsidered, silent.reconsidered, gone.reconsidered) == (1, 1, 0)


def test_ten_thousand_that_come_at_once_are_served_evenly() -> None:
    async def work() -> list[Session]:
        trusting = TrustBundlePush(fresh_store(), lambda: NEW)
        sessions = [Session(fingerprints(OLD)) for _ in range(10_000)]
        running = asyncio.create_task(trusting.run())
        for session in sessions:
            trusting.look(session)
        await asyncio.sleep(10_000 / PER_SECOND + 1)
        running.cancel()
        return sessions

    times = sorted(at for session in in_virtual_time(work()) for at, _ in session.sent)
    assert len(times) == 10_000
    busiest = max(
        sum(at <= other < at + 1 for other in times[index : index + 200]) for index, at in enumerate(times[:-200:100])
    )
    assert busiest <= PER_SECOND + 1


def test_an_agent_that_does_not_take_it_is_sent_it_again_after_a_while_and_not_before() -> None:
    async def work() -> Session:
        trusting = TrustBundlePush(fresh_store(), lambda: NEW)
        running = asyncio.create_task(trusting.run())
        session = Session(fingerprints(OLD))
        for _ in range(60):
            trusting.look(session)
            await asyncio.sleep(AGAIN.total_seconds() / 20)
        running.cancel()
        return session

    sent = in_virtual_time(work()).sent
    assert 3 <= len(sent) <= 4
    assert all(later[0] - earlier[0] >= AGAIN.total_seconds() for earlier, later in pairwise(sent))


class Following:
    """One replica that follows; `acts` ends when it acts upon the CA that was made. Times are the loop's, in seconds."""

    def __init__(self) -> None:
        self.store, self._issuer = Bell(), RotatingIssuer()
        self._follower = AuthorityFollower(self.store, self._issuer, SealedKeys(self.store, SEAL), "one")
        self._made, _ = make_authority(Lifetimes(), START)

    def commit(self) -> None:
        self.store.transact(authorities.adopt, Made(self._made.certificate, None))

    def acted(self, *steps: tuple[float, str]) -> float:
        """When it acts upon the CA; until then these methods of the store, or of ours, are called at their times."""

        async def told() -> float:
            loop, acting = asyncio.get_running_loop(), asyncio.Event()
            self._issuer.listen(acting.set)
            following = asyncio.create_task(self._follower.run())
            for at, name in steps:
                await asyncio.sleep(at - loop.time())
                getattr(self, name)()
            async with asyncio.timeout(timedelta(minutes=1).total_seconds()):
                await acting.wait()
            following.cancel()
            return loop.time()

        return in_virtual_time(told())

    def ring(self) -> None:
        self.store.ring()

    def lose(self) -> None:
        self.store.failure = UnavailableError("the database is away")

    def come_back(self) -> None:
        """With the CA, which another replica has committed."""
        self.store.failure = None
        self.commit()


def test_a_change_that_shows_a_moment_after_its_word_is_followed_soon() -> None:
    assert Following().acted((7.0, "ring"), (7.2, "commit")) <= 7.0 + SOON.total_seconds() * JITTER


def test_a_replica_that_could_not_look_looks_again_soon_though_word_comes_by_itself() -> None:
    acting = Following().acted((7.0, "lose"), (7.1, "ring"), (8.0, "come_back"))
    assert acting <= 8.0 + LOOK_EVERY.total_seconds() * JITTER
