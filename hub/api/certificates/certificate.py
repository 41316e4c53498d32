"""Certificates as the hub decides and remembers them."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from machinery.identity import AddOnName, AgentId, CertificateSubject, ClusterName, CredentialId, SerialNumber

BACKDATED = timedelta(minutes=5)
"""How far a client's certificate begins before it is made, at least: peers' clocks differ."""


class Purpose(StrEnum):
    """What a certificate opens. A serial without a record opens nothing (later: only Recover)."""

    AGENT = "agent"
    RECOVERY = "recovery"
    ADDON = "addon"
    BOOTSTRAP = "bootstrap"
    OPERATOR = "operator"
    LOGIN = "login"
    """An operator's for minutes, given for a token."""
    SERVING = "serving"


AGENTS_PURPOSES = frozenset((Purpose.AGENT, Purpose.RECOVERY, Purpose.ADDON))
"""What a cluster and its add-ons hold."""


@dataclass(frozen=True, slots=True)
class Profile:
    """Every field of a certificate to be: from the hub's records; only the public key comes from the request."""

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
    """For whom a certificate is: what its record keeps beside the profile."""

    cluster: ClusterName | None = None
    agent: AgentId | None = None
    addon: AddOnName | None = None
    credential: CredentialId | None = None
    """See `CertificateRecord`."""
    request_uid: str | None = None


@dataclass(frozen=True, slots=True)
class IssuedCertificate:
    """PEM, leaf first. `signed_by` names the issuer and its CA, as records, status and logs tell it."""

    serial: SerialNumber
    chain: bytes
    signed_by: str = ""
    not_after: datetime | None = None
    """Where it ends when that is not where the profile does: no certificate outlives its CA."""


@dataclass(frozen=True, slots=True)
class CertificateRecord:
    """What the certificate with this serial opens."""

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
    """The bootstrap credential that this certificate is, or that its request came with; of a login for the token of a
    ServiceAccount, the account's uid."""
    request_uid: str | None = None
    revoked_at: datetime | None = None
    revoked_reason: str | None = None
    signed_by: str | None = None
    """Which issuer and CA; None: signed before that was recorded, by the hub's first CA."""

    @property
    def is_readopted(self) -> bool:
        """A recovery certificate that a restored hub had forgotten: every other came with a request."""
        return self.purpose is Purpose.RECOVERY and self.request_uid is None

    def is_open(self, now: datetime) -> bool:
        """Within its validity and not revoked."""
        return self.revoked_at is None and self.not_before <= now <= self.not_after


@dataclass(frozen=True, slots=True)
class Lifetimes:
    """How long certificates live, and how far a leaf's beginning lies back."""

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
    """The agent that came last among those with a certificate that stands. Renewing moves nobody forward.

    Of an agent that a restored hub has forgotten, the recovery certificate that it came back with is all that there is.
    """
    came: dict[AgentId, tuple[datetime, SerialNumber]] = {}
    standing: set[AgentId] = set()
    for record in records:
        if (record.purpose is Purpose.AGENT or record.is_readopted) and record.agent is not None:
            issued = (record.issued_at, record.serial)
            came[record.agent] = min(came.get(record.agent, issued), issued)
            standing.update((record.agent,) if record.revoked_at is None else ())
    return max(standing, key=lambda agent: came[agent], default=None)
