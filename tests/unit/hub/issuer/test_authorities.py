"""Which issuer signs what, the CA that comes, changes and goes, the doors' certificates, and how fast a new CA is known."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from hub.access.revocation_poller import NOTIFICATION_DELAY
from hub.api.certificateauthorities.authority import Phase
from hub.api.certificates import CertificateHolder, IssuedCertificate, Lifetimes, Profile, Purpose, claims_anothers, refusals
from hub.extensions.kube_cert_agent.authority import KubernetesIssuer
from hub.issuer.key_storage import SealedKeys
from hub.issuer.local import LocalIssuer, ServingNames, make_authority
from hub.issuer.rotating import RotatingIssuer
from hub.ports.identities import LoginIssuer
from hub.registry import certificates
from hub.registry.certificateauthorities import service as authorities
from hub.registry.certificateauthorities.service import NewAuthority
from hub.replica.authorities import LOOK_EVERY, AuthorityFollower
from hub.replica.serving_certificate import DoorsCertificate, Files, given_certificate, own_certificate
from machinery import identity, pki
from machinery.errors import ForbiddenError, InvalidError, UnavailableError
from machinery.identity import CertificateSubject, addon_subject, agent_subject, bootstrap_subject, recovery_subject
from machinery.runtime.clock import ManualClock, SystemClock
from machinery.runtime.directory import DataDirectory
from tests.checks import check_refusal, check_refusal_of, check_results, present, refusal
from tests.fakes import authority
from tests.fakes.databases import SEAL
from tests.fakes.inline_store import Bell, InlineStore
from tests.fakes.registration import AGENT, EDGE
from tests.fakes.virtual_time import START, in_virtual_time

NOW = datetime(2026, 11, 22, tzinfo=UTC)
SERIAL = identity.SerialNumber(0x1234567890ABCDEF1234567890ABCDEF)
NAMES = ServingNames(("hub.example.com", "localhost"), ("127.0.0.1",))
JITTER = 1.1  # looks keep apart from those of other replicas


def profile(purpose: Purpose = Purpose.LOGIN, user: str = "ann", *groups: str) -> Profile:
    subject, five = CertificateSubject(user, frozenset(groups)), timedelta(minutes=5)
    return Profile(purpose, subject, pki.public_key_of(pki.generate_key()), NOW - five, NOW + five)


class OneIssuer(LoginIssuer):
    """Signs with its name, or fails."""

    def __init__(self, name: str, failure: Exception | None = None) -> None:
        self._name = name
        self._failure = failure

    @property
    def name(self) -> str:
        return self._name

    def issue_login(self, _profile: Profile, serial: identity.SerialNumber, _now: datetime) -> IssuedCertificate:
        if self._failure is not None:
            raise self._failure
        return IssuedCertificate(serial, self.name.encode(), self.name)


def kubernetes(
    key: authority.Key | None = None, lives: timedelta = authority.TEN_YEARS, *, identified: bool = True
) -> KubernetesIssuer:
    issuer, key = KubernetesIssuer(), key or authority.rsa_key()
    issuer.set_authority(authority.self_signed(key, lives=lives, identified=identified), authority.pem_of(key))
    return issuer


def test_the_first_issuer_that_can_signs_and_otherwise_each_failure_is_named() -> None:
    own = authority.WordIssuer()

    def sign(*logins: LoginIssuer) -> IssuedCertificate:
        return authority.rotating_issuer(own, *logins).issue(profile(), SERIAL, NOW)

    assert (sign().signed_by, sign(OneIssuer("one"), OneIssuer("two", AssertionError("it was asked"))).signed_by) == ("", "one")
    for error in (UnavailableError("away"), KeyError("x")):
        assert sign(OneIssuer("one", error), OneIssuer("two")).signed_by == "two"
    own.failure = InvalidError("it is broken")
    check_refusal(InvalidError, sign, match=r"^hub: it is broken$")
    away = OneIssuer("one", UnavailableError("away"))
    check_refusal(UnavailableError, sign, away, match=r"^\[one: away, hub: it is broken\]$")
    own.failure = ForbiddenError("no")
    check_refusal(ForbiddenError, sign, OneIssuer("one", ForbiddenError("no")), match=r"^\[one: no, hub: no\]$")
    with pytest.raises(RuntimeError, match=r"^\[one: away, two: lint, hub: no\]$"):
        sign(away, OneIssuer("two", RuntimeError("lint")))


def test_the_hubs_own_ca_alone_signs_what_is_no_login() -> None:
    issuer = kubernetes()
    assert not hasattr(issuer, "issue"), "it cannot stand where an Issuer is wanted"
    assert not hasattr(issuer, "trust_bundle")
    for purpose in set(Purpose) - {Purpose.LOGIN}:
        own = authority.WordIssuer()
        signing = authority.rotating_issuer(own, issuer)
        assert signing.issue(profile(purpose), SERIAL, NOW).chain == f"{purpose} ann\n".encode()
        own.failure = UnavailableError("away")
        check_refusal(UnavailableError, signing.issue, profile(purpose), SERIAL, NOW, match=r"^hub: away$")
        check_refusal(InvalidError, issuer.issue_login, profile(purpose), SERIAL, NOW, match="only operators' logins")


def test_a_login_is_signed_by_the_kubernetes_ca_first_and_by_the_hubs_own_then() -> None:
    issuer, own, key = KubernetesIssuer(), authority.WordIssuer(), authority.rsa_key()
    signing = authority.rotating_issuer(own, issuer)
    assert signing.issue(profile(), SERIAL, NOW).chain == b"login ann\n", "no CA is known: the hub's own signs"
    issuer.set_authority(authority.self_signed(key), authority.pem_of(key))
    issued, facts = signing.issue(profile(), SERIAL, NOW), pki.parse_certificate(issuer.certificate)
    assert issued.signed_by == f"kubernetes/{facts.key_hash[:16]}"
    assert pki.is_issued_by(issued.chain, issuer.certificate)
    assert signing.counts() == {"signed login by hub": 1, "signed login by kubernetes": 1, "failed login by kubernetes": 1}


def test_a_login_of_the_kubernetes_ca_has_the_form_that_kubernetes_expects_and_no_name_that_it_reserves() -> None:
    signing = authority.rotating_issuer(authority.WordIssuer(), kubernetes())
    for user, *groups in (("ann", "system:masters"), ("system:node:one",), ("ann", "dev", "system:nodes")):
        assert signing.issue(profile(Purpose.LOGIN, user, *groups), SERIAL, NOW).chain == f"login {user}\n".encode()
    facts = pki.parse_certificate(kubernetes().issue_login(profile(Purpose.LOGIN, "ann", "dev", "ops"), SERIAL, NOW).chain)
    assert (facts.subject.common_name, facts.subject.organizations) == ("ann", frozenset(("dev", "ops")))
    assert (facts.serial, facts.client_auth, facts.server_auth, facts.is_ca) == (SERIAL, True, False, False)
    assert facts.not_after - facts.not_before == timedelta(minutes=10)
    old = pki.parse_certificate(kubernetes(identified=False).issue_login(profile(), SERIAL, NOW).chain)
    assert old.authority_key_id is None, "a CA without a key identifier signs too"
    ending = kubernetes(lives=NOW + timedelta(minutes=1) - authority.BEGUN)
    check_refusal(UnavailableError, ending.issue_login, profile(), SERIAL, NOW, match="ends before this certificate would")
    assert ending.issue_login(replace(profile(), not_after=NOW + timedelta(seconds=30)), SERIAL, NOW).serial == SERIAL


def pair(name: str = "kubernetes") -> tuple[bytes, bytes]:
    key = ec.generate_private_key(ec.SECP256R1())
    return authority.self_signed(key, name), authority.pem_of(key)


def test_an_issuer_goes_through_good_and_bad_pairs_and_holds_the_last_good_one() -> None:
    """Pinniped's ten steps of a dynamic CA."""
    issuer, seen = KubernetesIssuer(), list[bytes]()
    issuer.listen(seen.append)
    one, other = pair(), pair("other")
    assert (issuer.certificate, issuer.signer) == (b"", "")
    for refused in ((one[0], b""), (b"", one[1])):  # only a certificate, only a key
        check_refusal(InvalidError, issuer.set_authority, *refused)
    assert (issuer.certificate, seen) == (b"", [])
    good = (one, one, other)  # the same again
    for pairs in good:
        issuer.set_authority(*pairs)
        assert issuer.certificate == pairs[0]
    bad: list[tuple[bytes, bytes]] = [(b"bad", other[1]), (other[0], b"bad"), (one[0], other[1])]
    for refused in bad:
        check_refusal(InvalidError, issuer.set_authority, *refused)
        assert (issuer.certificate, seen) == (other[0], [each[0] for each in good]), (
            "the old state stays, no listener is called"
        )
    issuer.set_authority(*one)
    assert (issuer.certificate, seen[-1], len(seen)) == (one[0], one[0], 4)


def test_unusable_pairs_are_refused_and_no_error_holds_a_key() -> None:
    key, short = ec.generate_private_key(ec.SECP256R1()), rsa.generate_private_key(65537, 1024)  # noqa: S505 - it is refused
    one, other = pair(), pair()
    for certificate, pem, words in (
        (authority.self_signed(key, is_ca=False), authority.pem_of(key), "not one of a certificate authority"),
        (one[0] + other[0], one[1], "more than one certificate"),
        (authority.self_signed(short), authority.pem_of(short), "2048 bits or more"),
    ):
        check_refusal(InvalidError, KubernetesIssuer().set_authority, certificate, pem, match=words)
    for taken in (authority.rsa_key(), ec.generate_private_key(ec.SECP384R1())):
        for form in (serialization.PrivateFormat.PKCS8, serialization.PrivateFormat.TraditionalOpenSSL):
            issuer = KubernetesIssuer()
            issuer.set_authority(authority.self_signed(taken), authority.pem_of(taken, form))
            assert issuer.signer, (taken, form)
    certificate, pem_key = pair()
    issuer = KubernetesIssuer()
    issuer.set_authority(certificate, pem_key)
    refused = present(refusal(InvalidError, issuer.set_authority, pair()[0], pem_key))
    assert pem_key.decode().splitlines()[1] not in repr(issuer) + str(refused) + repr(refused)
    assert pki.key_matches(issuer.certificate, pem_key)


def test_what_stands_in_the_way_is_reported_with_its_name(tmp_path: Path) -> None:
    place = tmp_path / "ca.key"
    place.mkdir()
    with pytest.raises(UnavailableError, match=f"{place} cannot be written: "):
        DataDirectory(tmp_path, "hub").write(place.name, b"a key")
    check_refusal(UnavailableError, DataDirectory(tmp_path, "hub").remove, place.name, match=f"{place} cannot be removed: ")


BEGIN, END = NOW - timedelta(minutes=5), NOW + timedelta(days=30)
OTHER, WORK, CREDENTIAL = identity.ClusterName("other"), identity.AddOnName("work"), identity.CredentialId("0123456789abcdef")
KEY = pki.public_key_of(pki.generate_key())
OF_AGENT, OF_ADDON = CertificateHolder(cluster=EDGE, agent=AGENT), CertificateHolder(cluster=EDGE, addon=WORK)
GOOD = {
    Purpose.AGENT: (agent_subject(EDGE, AGENT), OF_AGENT),
    Purpose.RECOVERY: (recovery_subject(EDGE, AGENT), OF_AGENT),
    Purpose.ADDON: (addon_subject(EDGE, WORK, "work"), OF_ADDON),
    Purpose.BOOTSTRAP: (bootstrap_subject(CREDENTIAL), CertificateHolder(cluster=EDGE, credential=CREDENTIAL)),
    Purpose.OPERATOR: (CertificateSubject("ann", frozenset((identity.OPERATOR_GROUP,))), CertificateHolder()),
    Purpose.LOGIN: (CertificateSubject("ann", frozenset(("admins",))), CertificateHolder()),
}


def profile_of(purpose: Purpose, subject: CertificateSubject | None = None) -> Profile:
    names = ("work.addon.open-cluster-management.io",) if purpose is Purpose.ADDON else ()
    return Profile(purpose, subject or GOOD[purpose][0], KEY, BEGIN, END, dns_names=names)


def test_profile_of_each_purpose_is_signed_for_its_holder_alone() -> None:
    check_results(lambda purpose: refusals(profile_of(purpose), GOOD[purpose][1], NOW), [(purpose, []) for purpose in GOOD])
    assert {*GOOD, Purpose.SERVING} == {*Purpose}
    serving = Profile(Purpose.SERVING, CertificateSubject("muster-hub"), KEY, BEGIN, END, dns_names=("hub.example",))
    assert refusals(serving, CertificateHolder(), NOW), "a serving certificate is not recorded"
    rows = (
        (Purpose.AGENT, agent_subject(OTHER, AGENT), OF_AGENT),
        (Purpose.AGENT, agent_subject(EDGE, identity.AgentId("agent-2")), OF_AGENT),
        (Purpose.AGENT, CertificateSubject("ann", frozenset((identity.OPERATOR_GROUP,))), OF_AGENT),
        (Purpose.AGENT, agent_subject(EDGE, AGENT), CertificateHolder(cluster=EDGE)),
        (Purpose.AGENT, agent_subject(EDGE, AGENT), CertificateHolder()),
        (Purpose.RECOVERY, agent_subject(EDGE, AGENT), OF_AGENT),
        (Purpose.RECOVERY, recovery_subject(OTHER, AGENT), OF_AGENT),
        (Purpose.BOOTSTRAP, bootstrap_subject(CREDENTIAL), CertificateHolder(cluster=EDGE)),
        (Purpose.BOOTSTRAP, bootstrap_subject(identity.CredentialId("f" * 16)), CertificateHolder(credential=CREDENTIAL)),
        (Purpose.ADDON, addon_subject(EDGE, WORK, "work"), CertificateHolder(cluster=EDGE)),
        (Purpose.ADDON, agent_subject(EDGE, AGENT), OF_ADDON),
        (Purpose.OPERATOR, agent_subject(EDGE, AGENT), CertificateHolder()),
        (Purpose.OPERATOR, CertificateSubject("ann", frozenset((identity.BOOTSTRAP_GROUP,))), CertificateHolder()),
        (Purpose.OPERATOR, CertificateSubject("ann"), OF_AGENT),
        (Purpose.LOGIN, CertificateSubject("ann", frozenset((identity.ALL_CLUSTERS_GROUP,))), CertificateHolder()),
        (Purpose.LOGIN, recovery_subject(EDGE, AGENT), CertificateHolder()),
    )
    expected = [(*row, [f'its subject does not fit the purpose "{row[0]}" and the holder']) for row in rows]
    check_results(lambda purpose, subject, holder: refusals(profile_of(purpose, subject), holder, NOW), expected)


def test_other_names_other_beginnings_and_past_ends_are_refused() -> None:
    def changed(purpose: Purpose, **more: Any) -> list[str]:
        return refusals(replace(profile_of(purpose), **more), GOOD[purpose][1], NOW)

    for purpose in {*GOOD} - {Purpose.ADDON}:
        for more in ({"dns_names": ("hub.example",)}, {"ip_addresses": ("127.0.0.1",)}):
            assert changed(purpose, **more) == ["its purpose permits no such alternative names"], (purpose, more)
    for begin in (NOW, NOW - timedelta(minutes=4, seconds=59), NOW + timedelta(hours=1), NOW - timedelta(days=3)):
        assert changed(Purpose.AGENT, not_before=begin) == ["it begins less than 5 minutes or more than 2 days ago"], begin
    assert changed(Purpose.AGENT, not_after=NOW) == ["it has ended already"]
    rows = (
        (addon_subject(EDGE, WORK, "work"), False),
        (
            CertificateSubject("ann", frozenset(("g", "system:authenticated", "system:open-cluster-management:addon:work"))),
            False,
        ),
        (addon_subject(OTHER, WORK, "work"), True),
        (CertificateSubject("ann", frozenset((identity.OPERATOR_GROUP,))), True),
        (CertificateSubject(identity.OPERATOR_GROUP), True),
        (agent_subject(EDGE, AGENT), True),
        (CertificateSubject("ann", frozenset((identity.ALL_CLUSTERS_GROUP,))), True),
        (recovery_subject(EDGE, AGENT), True),
        (bootstrap_subject(CREDENTIAL), True),
        (CertificateSubject("ann", frozenset((identity.BOOTSTRAP_GROUP,))), True),
    )
    check_results(lambda subject: claims_anothers(subject, EDGE), rows)


def test_defect_of_a_service_or_an_unusable_key_signs_and_records_nothing(store: InlineStore, clock: ManualClock) -> None:
    issuer, now = authority.WordIssuer(), clock.now()
    subject = agent_subject(OTHER, AGENT)
    profile = replace(profile_of(Purpose.AGENT, subject), not_before=now - timedelta(minutes=5), not_after=END)
    check_refusal(RuntimeError, store.transact, certificates.sign, issuer, profile, OF_AGENT, match="its subject does not fit")
    assert (issuer.issued, store.transact(lambda tx: tx.certificates.of_cluster(EDGE))) == ([], [])
    own = LocalIssuer(make_authority(Lifetimes(), now)[0])
    with pytest.raises(InvalidError, match="the public key cannot be read"):
        store.transact(certificates.admit_operator, "ann", b"no key", own, Lifetimes())


class _ShortIssuer(authority.WordIssuer):
    end = NOW

    def issue(self, profile: Profile, serial: identity.SerialNumber, now: object) -> IssuedCertificate:
        return replace(super().issue(profile, serial, now), not_after=self.end)


def test_the_record_ends_where_the_certificate_does(store: InlineStore) -> None:
    issued = store.transact(certificates.admit_operator, "ann", KEY, _ShortIssuer(), Lifetimes())
    assert present(store.transact(lambda tx: tx.certificates.by_serial(issued.serial))).not_after == _ShortIssuer.end


@dataclass
class Given:
    """Two files with a certificate of somebody else's CA, and that CA's."""

    folder: Path
    ca: authority.OtherCA

    @property
    def files(self) -> Files:
        return Files(self.folder / "tls.crt", self.folder / "tls.key", self.folder / "ca.crt")

    def write(self, *names: str, lifetime: timedelta = timedelta(days=1), usage: pki.Usage = pki.Usage.SERVER) -> bytes:
        now, key = SystemClock().now(), pki.generate_key()
        begin, end = min(now, now + lifetime) - timedelta(minutes=5), now + lifetime
        holder = CertificateSubject("hub"), pki.public_key_of(key), pki.random_serial()
        chain = self.ca.authority.sign(pki.Plan(*holder, begin, end, usage, names or ("x",)))
        self.files.chain.write_bytes(chain)
        self.files.key.write_bytes(key)
        (self.folder / "ca.crt").write_bytes(self.ca.certificate)
        return chain


@pytest.fixture
def given(tmp_path: Path) -> Given:
    return Given(tmp_path, authority.OtherCA())


@pytest.fixture
def generations() -> authority.Generations:
    generations = authority.Generations()
    generations.add(Phase.ISSUING)
    return generations


def shown(given: Given, generations: authority.Generations) -> DoorsCertificate:
    source = given_certificate(given.files, NAMES, generations.issuer, SystemClock())
    return DoorsCertificate(source, generations.issuer, SystemClock())


async def test_certificate_that_cannot_be_served_leaves_the_last_good_one(
    given: Given, generations: authority.Generations
) -> None:
    rows: tuple[tuple[Callable[[], object], str], ...] = (
        (lambda: given.files.key.write_bytes(pki.generate_key()), "a pair"),
        (lambda: given.files.chain.write_bytes(b"junk"), "no certificate can be read"),
        (lambda: given.files.chain.write_bytes(given.ca.certificate), "is a CA's own certificate"),
        (given.files.chain.unlink, "cannot be read: No such file"),
        (lambda: given.write("other.example.com"), "it is not for hub.example.com"),
        (lambda: given.write("hub.example.com", lifetime=-timedelta(hours=1)), "and not now"),
        (lambda: given.write("hub.example.com", usage=pki.Usage.CLIENT), "not for servers"),
        (lambda: (given.folder / "ca.crt").write_bytes(given.files.chain.read_bytes()), "that is not a CA's"),
    )
    given.write("other.example.com")
    with pytest.raises(InvalidError, match=r"it is not for 127\.0\.0\.1, hub\.example\.com|it is not for hub\.example\.com"):
        shown(given, generations)  # a hub does not start with it
    good, doors = given.write("hub.example.com"), shown(given, generations)
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


def test_certificate_follows_the_issuing_ca_whose_end_is_announced(tmp_path: Path, generations: authority.Generations) -> None:
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


class Following:
    """One replica that follows; `acts` ends when it acts upon the CA that was made. Times are the loop's, in seconds."""

    def __init__(self) -> None:
        self.store, self._issuer = Bell(), RotatingIssuer()
        self._follower = AuthorityFollower(self.store, self._issuer, SealedKeys(self.store, SEAL), "one")
        self._made, _ = make_authority(Lifetimes(), START)

    def commit(self) -> None:
        self.store.transact(authorities.adopt, NewAuthority(self._made.certificate, None))

    def acted(self, *steps: tuple[float, str]) -> float:
        """When it acts upon the CA; until then these methods of the store, or of ours, are called at their times."""

        async def reported() -> float:
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

        return in_virtual_time(reported())

    def ring(self) -> None:
        self.store.ring()

    def lose(self) -> None:
        self.store.failure = UnavailableError("the database is away")

    def come_back(self) -> None:
        """With the CA, which another replica has committed."""
        self.store.failure = None
        self.commit()


def test_a_change_that_shows_a_moment_after_its_word_is_followed_soon() -> None:
    assert Following().acted((7.0, "ring"), (7.2, "commit")) <= 7.0 + NOTIFICATION_DELAY.total_seconds() * JITTER


def test_a_replica_that_could_not_look_looks_again_soon_though_word_comes_by_itself() -> None:
    assert Following().acted((7.0, "lose"), (7.1, "ring"), (8.0, "come_back")) <= 8.0 + LOOK_EVERY.total_seconds() * JITTER
