"""Is the stored hub kubeconfig good for a session? The first flaw found, in the order of OCM's checks, or none.

Beyond OCM's rows: a certificate must have begun (not before), must belong to the key, and its hub must be the one that the
bootstrap kubeconfig names. `now` is the hub's time: an agent whose own clock is wrong must not throw a good credential away.
A credential with a flaw is never repaired in place: the agent registers again and says which flaw made it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from typing import Protocol

from machinery.identity import CertificateSubject, HubId, SerialNumber
from machinery.meta.timestamps import format_time
from spoke.domain.names import AgentNames

KUBECONFIG = "kubeconfig"
CLUSTER_NAME = "cluster-name"
AGENT_NAME = "agent-name"
CERTIFICATE = "tls.crt"
KEY = "tls.key"
RECOVERY = "recovery.crt"
BEGIN, END = b"-----BEGIN CERTIFICATE-----", b"-----END CERTIFICATE-----"
TOKEN_FILE = "token"  # noqa: S105 - the name of a key
PENDING_KEY = "pending.key"
PENDING_REQUEST = "pending.csr"
REQUEST_NAME = "request-name"
TRUST = "trust.crt"
"""CAs of the hub that it told of after the kubeconfig was made, as earlier releases kept them."""
ORIGIN = "bootstrap-ca.crt"
"""The CA that the bootstrap kubeconfig named when the agent registered, where the hub has told of another since."""
LEFT = "left"
"""In the owner's secret: the cluster has left its hubs."""
HUB_ID = "hub-id"
"""In the owner's secret: the hub whose credential lies there."""
EPOCH = "epoch"
"""In the owner's secret: the order of the agent's changes of hub."""


class Flaw(Enum):
    """What is wrong with a credential."""

    ABSENT = "absent"
    INCOMPLETE = "incomplete"
    GARBLED = "garbled"
    OTHER_HUB = "other hub"
    OTHER_SUBJECT = "other subject"
    OUTLIVED = "outlived"
    """By its hub's CA: what that signed brings its agent back, and opens nothing else."""
    UNRECORDED = "unrecorded"
    """Its hub was restored from a backup of before it was issued: as with OUTLIVED."""
    WRONG_KEY = "wrong key"
    NOT_YET_VALID = "not yet valid"
    EXPIRED = "expired"
    REJECTED = "rejected"
    """The hub does not take it, whatever it looks like."""
    REVOKED = "revoked"
    """The hub has taken it back for good: it is not shown again."""


@dataclass(frozen=True, slots=True)
class CredentialFinding:
    """A flaw, in words for the log."""

    flaw: Flaw
    message: str
    serial: SerialNumber | None = None
    """Of the certificate that it is about, where no other may be taken for it."""

    def lasts(self, stored: "StoredCredential") -> bool:
        """Whether it is still true of what is stored: that a certificate is revoked never changes."""
        same = bool(stored.chain) and stored.chain is not None and stored.chain[0].serial == self.serial
        return self.flaw is Flaw.REVOKED and same

    @property
    def about_time(self) -> bool:
        """Depends on the clock: to be believed only in the hub's time."""
        return self.flaw in (Flaw.EXPIRED, Flaw.NOT_YET_VALID)


@dataclass(frozen=True, slots=True)
class HubEntry:
    """What a kubeconfig says of its hub: the fields whose change means another hub."""

    cluster: str
    """Name of the current context's cluster entry."""
    server: str
    ca: bytes
    grpc_server: str
    hub_id: HubId
    grpc_ca: bytes = b""
    proxy_url: str = field(default="", repr=False)
    known: bytes = field(default=b"", repr=False, compare=False)
    """PEM of the CAs that it is known by now, where that is not what the bootstrap kubeconfig named at registration."""

    def difference(self, other: "HubEntry") -> str:
        """The first field in which they differ, in words; empty: the same hub."""
        fields = {
            "hub id": (self.hub_id, other.hub_id),
            "cluster entry's name": (self.cluster, other.cluster),
            "server": (self.server, other.server),
            "gRPC server": (self.grpc_server, other.grpc_server),
            "proxy": (self.proxy_url, other.proxy_url),
            "certificate authority": ((self.ca, self.grpc_ca), self._authorities_of(other)),
        }
        return next((name for name, (mine, theirs) in fields.items() if mine != theirs), "")

    def _authorities_of(self, other: "HubEntry") -> tuple[bytes, bytes]:
        """Those of `other`; our own where it names none by which this hub is not known already."""
        theirs = (other.ca, other.grpc_ca)
        named = blocks(b"\n".join(theirs))
        return (self.ca, self.grpc_ca) if named and named <= blocks(self.known) else theirs


def blocks(pem: bytes) -> frozenset[bytes]:
    """The certificates of a PEM file, however they are laid out."""
    return frozenset(b"".join(rest.partition(END)[0].split()) for rest in pem.split(BEGIN)[1:] if END in rest)


class CertificateView(Protocol):
    """What the rules need of one certificate."""

    @property
    def serial(self) -> SerialNumber: ...

    @property
    def subject(self) -> CertificateSubject: ...

    @property
    def public_key(self) -> bytes:
        """DER SubjectPublicKeyInfo."""

    @property
    def not_before(self) -> datetime: ...

    @property
    def not_after(self) -> datetime: ...


@dataclass(frozen=True, slots=True)
class StoredCredential:
    """What was read from the hub kubeconfig secret; None where a part is there but cannot be read."""

    present: frozenset[str]
    """Names of the non-empty keys."""
    hub: HubEntry | None = None
    chain: Sequence[CertificateView] | None = None
    public_key: bytes | None = None
    """DER SubjectPublicKeyInfo of the stored private key."""
    names: tuple[str, str] = ("", "")


def present_keys(contents: Mapping[str, bytes]) -> frozenset[str]:
    return frozenset(name for name, content in contents.items() if content.strip())


def judge(stored: StoredCredential, hub: HubEntry | None, names: AgentNames, now: datetime) -> CredentialFinding | None:
    """The first flaw of the stored credential, or None when it is good. `hub` None: no bootstrap kubeconfig to compare with."""
    return _completeness(stored) or _origin(stored, hub) or _certificate(stored, names, now)


def damage(stored: StoredCredential) -> CredentialFinding | None:
    """What makes the stored credential useless anywhere and at any time; None when it is whole."""
    return _completeness(stored) or _pairing(tuple(stored.chain or ()), stored.public_key)


def _completeness(stored: StoredCredential) -> CredentialFinding | None:
    if not stored.present & {KUBECONFIG, CERTIFICATE, KEY}:
        return CredentialFinding(Flaw.ABSENT, "there is no hub kubeconfig yet")
    missing = [key for key in (KUBECONFIG, KEY, CERTIFICATE) if key not in stored.present]
    if missing:
        return CredentialFinding(Flaw.INCOMPLETE, f"the hub kubeconfig secret is half-written: {', '.join(missing)} missing")
    unreadable = [
        key
        for key, part in ((KUBECONFIG, stored.hub), (KEY, stored.public_key), (CERTIFICATE, stored.chain or None))
        if part is None
    ]
    if unreadable:
        return CredentialFinding(
            Flaw.GARBLED, f"the hub kubeconfig secret cannot be read: {', '.join(unreadable)} is not what it should be"
        )
    return None


def _origin(stored: StoredCredential, hub: HubEntry | None) -> CredentialFinding | None:
    if hub is None or stored.hub is None:
        return None
    difference = stored.hub.difference(hub)
    if difference:
        return CredentialFinding(Flaw.OTHER_HUB, f"the bootstrap kubeconfig names another hub: its {difference} is different")
    return None


def _certificate(stored: StoredCredential, names: AgentNames, now: datetime) -> CredentialFinding | None:
    chain = tuple(stored.chain or ())
    if chain[0].subject.common_name != names.subject.common_name:
        return CredentialFinding(
            Flaw.OTHER_SUBJECT,
            f'the certificate is for "{chain[0].subject.common_name}", '
            f'this is cluster "{names.cluster}", agent "{names.agent}"',
        )
    return _pairing(chain, stored.public_key) or validity(chain, now)


def _pairing(chain: Sequence[CertificateView], public_key: bytes | None) -> CredentialFinding | None:
    if chain[0].public_key != public_key:
        return CredentialFinding(Flaw.WRONG_KEY, "the certificate does not belong to the key beside it")
    return None


def validity(chain: Sequence[CertificateView], now: datetime) -> CredentialFinding | None:
    """Whether every certificate of the chain has begun and has not ended at `now`, in hub time."""
    for certificate in chain:
        if now > certificate.not_after:
            return CredentialFinding(
                Flaw.EXPIRED, f"the certificate expired at {format_time(certificate.not_after)}; it is {format_time(now)}"
            )
        if now < certificate.not_before:
            return CredentialFinding(
                Flaw.NOT_YET_VALID,
                f"the certificate begins at {format_time(certificate.not_before)}; it is {format_time(now)}",
            )
    return None
