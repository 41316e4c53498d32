"""Certificates: purposes, profiles and records."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from machinery.identity import AddOnName, AgentId, CertificateSubject, ClusterName, CredentialId, SerialNumber

BACKDATED = timedelta(minutes=5)
"""Minimum time by which a client certificate's start precedes its issuance, since peers' clocks differ."""


class Purpose(StrEnum):
    """What a certificate authorizes. A serial number without a record authorizes nothing."""

    AGENT = "agent"
    RECOVERY = "recovery"
    ADDON = "addon"
    BOOTSTRAP = "bootstrap"
    OPERATOR = "operator"
    LOGIN = "login"
    """An operator's short-lived certificate, issued for a token."""
    SERVING = "serving"


AGENTS_PURPOSES = frozenset((Purpose.AGENT, Purpose.RECOVERY, Purpose.ADDON))
"""Purposes of the certificates of a cluster and its add-ons."""


@dataclass(frozen=True, slots=True)
class Profile:
    """All fields of a certificate to be signed. They come from the hub's records, except for the public key."""

    purpose: Purpose
    subject: CertificateSubject
    public_key: bytes
    """DER SubjectPublicKeyInfo."""
    not_before: datetime
    not_after: datetime
    dns_names: tuple[str, ...] = ()
    ip_addresses: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CertificateHolder:
    """For whom a certificate is issued; stored in its record besides the profile."""

    cluster: ClusterName | None = None
    agent: AgentId | None = None
    addon: AddOnName | None = None
    credential: CredentialId | None = None
    """As in `CertificateRecord`."""
    request_uid: str | None = None


@dataclass(frozen=True, slots=True)
class IssuedCertificate:
    """PEM chain, leaf first. `signed_by`: the issuer and its CA, as in records, status and logs."""

    serial: SerialNumber
    chain: bytes
    signed_by: str = ""
    not_after: datetime | None = None
    """Its end if that differs from the profile: no certificate outlives its CA."""


@dataclass(frozen=True, slots=True)
class CertificateRecord:
    """What the certificate with this serial number authorizes."""

    serial: SerialNumber
    purpose: Purpose
    user: str
    groups: tuple[str, ...]
    not_before: datetime
    not_after: datetime
    key_hash: str
    """Hex SHA-256 of the DER SubjectPublicKeyInfo."""
    issued_at: datetime
    cluster: ClusterName | None = None
    agent: AgentId | None = None
    addon: AddOnName | None = None
    credential: CredentialId | None = None
    """The bootstrap credential that this certificate is, or that its request used.

    For a login with a ServiceAccount's token: the uid of the account.
    """
    request_uid: str | None = None
    revoked_at: datetime | None = None
    revoked_reason: str | None = None
    signed_by: str | None = None
    """Issuer and CA. None: signed by the hub's first CA before signers were recorded."""

    @property
    def is_readopted(self) -> bool:
        """Whether it is a recovery certificate that a restored hub readopted; all others have a request."""
        return self.purpose is Purpose.RECOVERY and self.request_uid is None

    def is_open(self, now: datetime) -> bool:
        """Whether it is valid now and not revoked."""
        return self.revoked_at is None and self.not_before <= now <= self.not_after


@dataclass(frozen=True, slots=True)
class Lifetimes:
    """Validity periods of certificates, and how far their start is backdated."""

    agent: timedelta = timedelta(days=30)
    recovery: timedelta = timedelta(days=90)
    bootstrap: timedelta = timedelta(hours=1)
    serving: timedelta = timedelta(days=365)
    operator: timedelta = timedelta(days=365)
    login: timedelta = timedelta(minutes=5)
    ca: timedelta = timedelta(days=3650)
    backdate: timedelta = BACKDATED
    backdate_serving: timedelta = timedelta(hours=48)


def own_agent(records: Sequence[CertificateRecord]) -> AgentId | None:
    """The agent that registered last, among those with an unrevoked certificate. A renewal does not count as registration.

    A readopted agent has only its recovery certificate, which counts here.
    """
    came: dict[AgentId, tuple[datetime, SerialNumber]] = {}
    standing: set[AgentId] = set()
    for record in records:
        if (record.purpose is Purpose.AGENT or record.is_readopted) and record.agent is not None:
            issued = (record.issued_at, record.serial)
            came[record.agent] = min(came.get(record.agent, issued), issued)
            standing.update((record.agent,) if record.revoked_at is None else ())
    return max(standing, key=lambda agent: came[agent], default=None)
