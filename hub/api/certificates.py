"""Certificates: purposes, profiles, records, and the last check before a signature.

If a profile fails the check, the calling use case has a defect, and the hub signs nothing. Permitted profiles:

purpose    subject                                           alternative names
AGENT      the subject of the holder's agent                 none
RECOVERY   the recovery subject of the holder's agent        none
ADDON      no name of others: see `claims_anothers`          DNS names only
BOOTSTRAP  the subject of the holder's credential            none
OPERATOR   no name of an agent, add-on or credential         none
LOGIN      as for OPERATOR                                   none
SERVING    has no holder: `refusals` refuses it

All certificates begin between five minutes and two days before now (peers' clocks differ), and end after now.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from machinery import identity

BACKDATED = timedelta(minutes=5)
"""A client certificate starts at least this long before its issuance, because peers' clocks differ."""


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
    subject: identity.CertificateSubject
    public_key: bytes
    """The public key (DER SubjectPublicKeyInfo)."""
    not_before: datetime
    not_after: datetime
    dns_names: tuple[str, ...] = ()
    ip_addresses: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CertificateHolder:
    """The holder of a certificate. The certificate's record contains the fields of its Profile and of its holder."""

    cluster: identity.ClusterName | None = None
    agent: identity.AgentId | None = None
    addon: identity.AddOnName | None = None
    credential: identity.CredentialId | None = None
    """The bootstrap credential, as in `CertificateRecord`."""
    request_uid: str | None = None


@dataclass(frozen=True, slots=True)
class IssuedCertificate:
    """An issued certificate. `chain`: PEM, leaf first. `signed_by`: the issuer and its CA, as in records, status and logs."""

    serial: identity.SerialNumber
    chain: bytes
    signed_by: str = ""
    not_after: datetime | None = None
    """The certificate's end, which is never after the end of its CA; None: the end in the profile."""


@dataclass(frozen=True, slots=True)
class CertificateRecord:
    """What the certificate with this serial number authorizes."""

    serial: identity.SerialNumber
    purpose: Purpose
    user: str
    groups: tuple[str, ...]
    not_before: datetime
    not_after: datetime
    key_hash: str
    """Hex SHA-256 of the DER SubjectPublicKeyInfo."""
    issued_at: datetime
    cluster: identity.ClusterName | None = None
    agent: identity.AgentId | None = None
    addon: identity.AddOnName | None = None
    credential: identity.CredentialId | None = None
    """Id of the bootstrap credential that this certificate belongs to, or that its request used.

    In the record of a login with a ServiceAccount's token, this is the uid of the account.
    """
    request_uid: str | None = None
    revoked_at: datetime | None = None
    revoked_reason: str | None = None
    signed_by: str = ""
    """Names of the issuer and of its CA, as in `IssuedCertificate`."""

    @property
    def is_readopted(self) -> bool:
        """Whether a restored hub has readopted this recovery certificate. All other recovery certificates have a request."""
        return self.purpose is Purpose.RECOVERY and self.request_uid is None

    def is_open(self, now: datetime) -> bool:
        """Whether the certificate is valid now and not revoked."""
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


def own_agent(records: Sequence[CertificateRecord]) -> identity.AgentId | None:
    """Return the last registered agent among those with an unrevoked certificate; None: no agent. Renewals are not counted.

    The recovery certificate of a readopted agent counts too, because the agent has no other certificate.
    """
    came: dict[identity.AgentId, tuple[datetime, identity.SerialNumber]] = {}
    standing: set[identity.AgentId] = set()
    for record in records:
        if (record.purpose is Purpose.AGENT or record.is_readopted) and record.agent is not None:
            issued = (record.issued_at, record.serial)
            came[record.agent] = min(came.get(record.agent, issued), issued)
            standing.update((record.agent,) if record.revoked_at is None else ())
    return max(standing, key=lambda agent: came[agent], default=None)


EARLIEST = timedelta(days=2)
"""Limit for backdating, so that after a jump of the database's clock no certificate begins before the hub existed."""


def refusals(profile: Profile, holder: CertificateHolder, now: datetime) -> list[str]:
    """Return the reasons why this profile may not be signed; empty if the profile may be signed."""
    named = profile.dns_names and profile.purpose is not Purpose.ADDON
    rules = (
        (now - EARLIEST <= profile.not_before <= now - BACKDATED, "it begins less than 5 minutes or more than 2 days ago"),
        (profile.not_after > now, "it has ended already"),
        (not named and not profile.ip_addresses, "its purpose permits no such alternative names"),
        (_is_its_holders(profile, holder), f'its subject does not fit the purpose "{profile.purpose}" and the holder'),
    )
    return [finding for fine, finding in rules if not fine]


def _is_its_holders(profile: Profile, holder: CertificateHolder) -> bool:
    subject, cluster, agent = profile.subject, holder.cluster, holder.agent
    match profile.purpose:
        case Purpose.AGENT if cluster is not None and agent is not None:
            return subject == identity.agent_subject(cluster, agent)
        case Purpose.RECOVERY if cluster is not None and agent is not None:
            return subject == identity.recovery_subject(cluster, agent)
        case Purpose.BOOTSTRAP if holder.credential is not None:
            return subject == identity.bootstrap_subject(holder.credential)
        case Purpose.ADDON if cluster is not None and holder.addon is not None:
            return not claims_anothers(subject, cluster)
        case Purpose.OPERATOR | Purpose.LOGIN:
            return cluster is None and agent is None and not identity.is_reserved(subject.common_name, subject.organizations)
        case _:
            return False


def claims_anothers(subject: identity.CertificateSubject, cluster: identity.ClusterName) -> bool:
    """Whether the subject of an add-on of `cluster` contains a name that an add-on may not have.

    These are names of operators, agents, credentials, and add-ons of other clusters. The hub identifies an add-on by the
    record of its certificate. Other servers that trust this CA have no record, and would believe the names.
    """
    own = (f"{identity.SUBJECT_PREFIX}cluster:{cluster}:", identity.ADDONS_PREFIX)
    foreign = (identity.SUBJECT_PREFIX, identity.BOOTSTRAP_USER_PREFIX, identity.RECOVERY_USER_PREFIX, identity.BOOTSTRAP_GROUP)
    names = (subject.common_name, *subject.organizations)
    return any(name == identity.OPERATOR_GROUP or (name.startswith(foreign) and not name.startswith(own)) for name in names)
