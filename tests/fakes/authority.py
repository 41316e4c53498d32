"""CAs that are not the hub's, and issuers whose certificates are readable words or that skip the check of the profile."""

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, cast

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import NameOID

from hub.api.certificateauthorities.authority import AuthorityId, AuthorityRecord, Phase
from hub.api.certificates import CertificateHolder, CertificateRecord, IssuedCertificate, Lifetimes, Profile, Purpose
from hub.issuer.local import LocalIssuer, make_authority
from hub.issuer.rotating import AuthoritySnapshot, RotatingIssuer
from hub.ports import Transaction
from hub.ports.identities import Issuer, LoginIssuer
from hub.registry.certificateauthorities.service import authority_id
from machinery import pki
from machinery.client.kubeconfig import Credential
from machinery.identity import CertificateSubject, SerialNumber
from machinery.runtime.clock import SystemClock

DAY = timedelta(days=1)


def _authority(name: str, key: bytes) -> pki.CertificateAuthority:
    now = SystemClock().now()
    return pki.create_authority(CertificateSubject(name), key, pki.random_serial(), now - DAY, now + 9 * DAY)


@dataclass(frozen=True)
class OtherCA:
    """`certificate` is its own, in PEM."""

    name: str = "other-ca"
    key: bytes = field(default_factory=pki.generate_key, repr=False)
    authority: pki.CertificateAuthority = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "authority", _authority(self.name, self.key))

    @property
    def certificate(self) -> bytes:
        return self.authority.certificate

    def issue(self, user: str, *groups: str, lifetime: timedelta = DAY) -> Credential:
        now, key = SystemClock().now(), pki.generate_key()
        subject = CertificateSubject(user, frozenset(groups))
        begin = min(now, now + lifetime) - timedelta(minutes=5)
        plan = pki.Plan(subject, pki.public_key_of(key), pki.random_serial(), begin, now + lifetime)
        return Credential(self.authority.sign(plan), key)


Key = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey
BEGUN = datetime(2026, 1, 1, tzinfo=UTC)
TEN_YEARS = timedelta(days=3650)


def rsa_key() -> rsa.RSAPrivateKey:
    """As kubeadm makes them."""
    return rsa.generate_private_key(65537, 2048)


def pem_of(key: Key, form: serialization.PrivateFormat = serialization.PrivateFormat.PKCS8) -> bytes:
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())


def self_signed(
    key: Key, name: str = "kubernetes", *, is_ca: bool = True, identified: bool = True, lives: timedelta = TEN_YEARS
) -> bytes:
    """A certificate over `key` in PEM. `identified`: with a subject key identifier."""
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(BEGUN)
        .not_valid_after(BEGUN + lives)
        .add_extension(x509.BasicConstraints(ca=is_ca, path_length=None), critical=True)
    )
    if identified:
        builder = builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    return builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


@dataclass
class Generations:
    """`issuer` knows the CAs that were made; each is signed across by the one before it."""

    issuer: RotatingIssuer = field(default_factory=RotatingIssuer)
    authorities: list[AuthorityRecord] = field(default_factory=list)
    keys: dict[AuthorityId, LocalIssuer] = field(default_factory=dict)

    def add(self, phase: Phase) -> AuthorityRecord:
        now = SystemClock().now()
        made, key = make_authority(Lifetimes(), now)
        crossed = self.keys[self.authorities[-1].id].cross_sign(made.certificate) if self.authorities else None
        one, begun = authority_id(made.certificate), now + len(self.authorities) * timedelta(seconds=1)
        self.authorities.append(AuthorityRecord(one, made.certificate, phase, begun, now, cross_signed=crossed))
        self.keys[one] = LocalIssuer(pki.CertificateAuthority(made.certificate, key))
        self.take()
        return self.authorities[-1]

    def turn(self, index: int, phase: Phase, **more: Any) -> None:
        """Another phase for the CA that was made at this place."""
        self.authorities[index] = replace(self.authorities[index], phase=phase, **more)

    def take(self) -> None:
        self.issuer.take(AuthoritySnapshot(tuple(self.authorities), dict(self.keys)))


class WordIssuer(Issuer):
    """Signs by writing down the profile, and remembers it; `failure` is raised instead, of `failing` alone if given."""

    def __init__(self) -> None:
        self.issued: list[tuple[Profile, SerialNumber]] = []
        self.failure: Exception | None = None
        self.failing: Purpose | None = None

    def issue(self, profile: Profile, serial: SerialNumber, now: object) -> IssuedCertificate:  # noqa: ARG002 - signs at once
        if self.failure is not None and self.failing in (None, profile.purpose):
            raise self.failure
        self.issued.append((profile, serial))
        return IssuedCertificate(serial, f"{profile.purpose} {profile.subject.common_name}\n".encode())

    @property
    def trust_bundle(self) -> bytes:
        return b"trust\n"


def rotating_issuer(own: Issuer, *logins: LoginIssuer) -> RotatingIssuer:
    """A hub's issuer whose current CA is `own`."""
    issuer, one = RotatingIssuer(), Generations().add(Phase.ISSUING)
    issuer.take(AuthoritySnapshot((one,), {one.id: cast("LocalIssuer", own)}))
    for each in logins:
        issuer.add_login_issuer(each)
    return issuer


def sign_anything(tx: Transaction, issuer: Issuer, profile: Profile, holder: CertificateHolder) -> IssuedCertificate:
    """As `hub.registry.certificates.sign`, without its look at the profile."""
    serial = SerialNumber(pki.random_serial())
    issued = issuer.issue(profile, serial, tx.now)
    tx.certificates.add(
        CertificateRecord(
            serial=serial,
            purpose=profile.purpose,
            user=profile.subject.common_name,
            groups=tuple(sorted(profile.subject.organizations)),
            not_before=profile.not_before,
            not_after=profile.not_after,
            key_hash=pki.key_hash(profile.public_key),
            issued_at=tx.now,
            cluster=holder.cluster,
            agent=holder.agent,
            addon=holder.addon,
            credential=holder.credential,
            signed_by=issued.signed_by,
        )
    )
    return issued
