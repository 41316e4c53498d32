"""Decides whether the stored hub kubeconfig is usable for a session. Finds the first flaw in the order of OCM's checks.

In addition to OCM's checks, the certificate must already be valid (not before) and match the key, and its hub must be the hub
of the bootstrap kubeconfig. `now` is the hub's time, so that an agent with a wrong clock does not discard a valid credential.
The agent never repairs a credential with a flaw: it logs the flaw and registers again.
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
ORIGIN = "bootstrap-ca.crt"
"""Key of a secret: the CA of the bootstrap kubeconfig at registration, if the hub has announced another CA since then."""
LEFT = "left"
"""Key of the owner's secret. If it is present, the cluster has left its hubs."""
HUB_ID = "hub-id"
"""Key of the owner's secret: the id of the hub that has issued the credential in it."""
EPOCH = "epoch"
"""Key of the owner's secret: the epoch, which orders the agent's changes of owner."""


class Flaw(Enum):
    ABSENT = "absent"
    INCOMPLETE = "incomplete"
    GARBLED = "garbled"
    OTHER_HUB = "other hub"
    OTHER_SUBJECT = "other subject"
    OUTLIVED = "outlived"
    """The hub is retiring the CA that has signed the certificate. A recovery certificate may still be usable."""
    UNRECORDED = "unrecorded"
    """The hub was restored from a backup that is older than the certificate. A recovery certificate may still be usable."""
    WRONG_KEY = "wrong key"
    NOT_YET_VALID = "not yet valid"
    EXPIRED = "expired"
    REJECTED = "rejected"
    """The hub rejects the credential for another reason."""
    REVOKED = "revoked"
    """The hub has revoked the credential permanently. The agent does not use it again."""


@dataclass(frozen=True, slots=True)
class CredentialFinding:
    """A flaw of a stored credential, with its description for the log."""

    flaw: Flaw
    message: str
    serial: SerialNumber | None = None
    """Serial of the certificate, if the flaw applies to this certificate alone."""

    def applies_to(self, stored: "StoredCredential") -> bool:
        """Whether this flaw is a revocation and `stored` contains the revoked certificate. Other flaws are not permanent."""
        same = bool(stored.chain) and stored.chain is not None and stored.chain[0].serial == self.serial
        return self.flaw is Flaw.REVOKED and same

    @property
    def about_time(self) -> bool:
        """Whether the finding depends on the clock. Such a finding counts only if the hub's time is known."""
        return self.flaw in (Flaw.EXPIRED, Flaw.NOT_YET_VALID)


@dataclass(frozen=True, slots=True)
class HubEntry:
    """The fields of a kubeconfig that identify its hub, and `known`. If a field except `known` differs, the hub differs."""

    cluster: str
    """Name of the cluster entry that the current context selects."""
    server: str
    ca: bytes
    grpc_server: str
    hub_id: HubId
    grpc_ca: bytes = b""
    proxy_url: str = field(default="", repr=False)
    known: bytes = field(default=b"", repr=False, compare=False)
    """CAs (PEM) that verify the hub now. `ca` and `grpc_ca`: the CAs of the bootstrap kubeconfig at registration."""

    def difference(self, other: "HubEntry") -> str:
        """Return the name of the first field that differs; empty: both entries identify the same hub."""
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
        """Return the CAs with which to compare `other`: its own, or this entry's if `known` contains all of them."""
        theirs = (other.ca, other.grpc_ca)
        named = blocks(b"\n".join(theirs))
        return (self.ca, self.grpc_ca) if named and named <= blocks(self.known) else theirs


def blocks(pem: bytes) -> frozenset[bytes]:
    """Return the base64 text of each certificate in `pem`, without line breaks."""
    return frozenset(b"".join(rest.partition(END)[0].split()) for rest in pem.split(BEGIN)[1:] if END in rest)


class CertificateView(Protocol):
    """The fields of a certificate that the functions in `spoke.domain` read."""

    @property
    def serial(self) -> SerialNumber: ...

    @property
    def subject(self) -> CertificateSubject: ...

    @property
    def public_key(self) -> bytes:
        """The public key (DER SubjectPublicKeyInfo)."""

    @property
    def not_before(self) -> datetime: ...

    @property
    def not_after(self) -> datetime: ...


@dataclass(frozen=True, slots=True)
class StoredCredential:
    """The content of the hub kubeconfig secret. A part that cannot be parsed is None."""

    present: frozenset[str]
    hub: HubEntry | None = None
    chain: Sequence[CertificateView] | None = None
    public_key: bytes | None = None
    """DER SubjectPublicKeyInfo of the stored private key."""
    names: tuple[str, str] = ("", "")


def present_keys(contents: Mapping[str, bytes]) -> frozenset[str]:
    return frozenset(name for name, content in contents.items() if content.strip())


def judge(stored: StoredCredential, hub: HubEntry | None, names: AgentNames, now: datetime) -> CredentialFinding | None:
    """Return the first flaw of the stored credential; None: no flaw.

    `hub`: the hub of the bootstrap kubeconfig; None: there is no bootstrap kubeconfig, so the hub is not compared.
    """
    return _completeness(stored) or _origin(stored, hub) or _certificate(stored, names, now)


def damage(stored: StoredCredential) -> CredentialFinding | None:
    """Return why no hub can accept the credential: it is incomplete, unreadable, or its key does not match; None: no flaw."""
    return _completeness(stored) or _pairing(tuple(stored.chain or ()), stored.public_key)


def _completeness(stored: StoredCredential) -> CredentialFinding | None:
    if not stored.present & {KUBECONFIG, CERTIFICATE, KEY}:
        return CredentialFinding(Flaw.ABSENT, "there is no hub kubeconfig yet")
    missing = [key for key in (KUBECONFIG, KEY, CERTIFICATE) if key not in stored.present]
    if missing:
        return CredentialFinding(Flaw.INCOMPLETE, f"the hub kubeconfig secret is incomplete: {', '.join(missing)} missing")
    unreadable = [
        key
        for key, part in ((KUBECONFIG, stored.hub), (KEY, stored.public_key), (CERTIFICATE, stored.chain or None))
        if part is None
    ]
    if unreadable:
        return CredentialFinding(
            Flaw.GARBLED, f"the hub kubeconfig secret cannot be read: {', '.join(unreadable)} cannot be parsed"
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
        return CredentialFinding(Flaw.WRONG_KEY, "the certificate does not belong to the stored key")
    return None


def validity(chain: Sequence[CertificateView], now: datetime) -> CredentialFinding | None:
    """Return a flaw if a certificate of the chain is not yet valid or has expired at `now` (hub time)."""
    for certificate in chain:
        if now > certificate.not_after:
            return CredentialFinding(
                Flaw.EXPIRED, f"the certificate expired at {format_time(certificate.not_after)}; it is {format_time(now)}"
            )
        if now < certificate.not_before:
            return CredentialFinding(
                Flaw.NOT_YET_VALID, f"the certificate begins at {format_time(certificate.not_before)}; it is {format_time(now)}"
            )
    return None
