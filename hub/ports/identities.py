"""Ports for CAs and their keys, certificate records, agents' trust, bootstrap credentials, and the signing of certificates."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

from hub.api.bootstrapcredentials import Binding, CredentialRecord, CredentialUse, UseCount
from hub.api.certificateauthorities.authority import AgentTrust, AuthorityId, AuthorityRecord, Follower, HeldCertificate
from hub.api.certificates import CertificateRecord, IssuedCertificate, Profile, Purpose
from machinery.identity import AgentId, ClusterName, CredentialId, SerialNumber
from machinery.pki import RevocationList


class CertificateRecords(Protocol):
    """One record per serial number that the hub signs, committed before the certificate is returned."""

    def add(self, record: CertificateRecord) -> None: ...

    def by_serial(self, serial: SerialNumber) -> CertificateRecord | None: ...

    def of_cluster(self, cluster: ClusterName) -> Sequence[CertificateRecord]: ...

    def ends(self, among: Collection[ClusterName]) -> Mapping[ClusterName, datetime]:
        """Return, for each of these clusters, the latest end of validity of its agent certificates that are not revoked."""

    def of_request(self, request_uid: str) -> Sequence[CertificateRecord]:
        """Return the certificates of one CertificateSigningRequest: one, and for an agent also a recovery certificate."""

    def of_key(self, key_hash: str) -> Sequence[CertificateRecord]:
        """Return all records of certificates for the public key with this hash."""

    def of_credential(self, credential: CredentialId) -> Sequence[CertificateRecord]:
        """The client certificates of one bootstrap credential."""

    def of_account(self, account: str) -> Sequence[CertificateRecord]:
        """Return the logins that were issued for tokens of the ServiceAccount with this uid (`account`)."""

    def forget_logins(self, ended_before: datetime, limit: int) -> int:
        """Delete at most `limit` records of logins that ended before this instant; return their number.

        A certificate without a record is not accepted.
        """

    def ended(self, before: datetime, limit: int) -> Sequence[SerialNumber]:
        """Return the serial numbers of at most `limit` certificates whose validity ended before this instant.

        The first certificate of an agent for each purpose is never included, because it determines which agent is the newest.
        """

    def forget(self, serials: Collection[SerialNumber]) -> int:
        """Delete these records; return the number of deleted records."""

    def revoke(self, serials: Collection[SerialNumber], at: datetime, reason: str) -> None: ...

    def revoked_since(self, moment: datetime) -> Mapping[SerialNumber, str]:
        """Return the reasons of the revocations that were written at `moment` or later, by serial number."""

    def revoked(self, ended_after: datetime) -> Sequence[CertificateRecord]:
        """Return the revoked certificates whose validity ends after this time, ordered by serial number."""


class Credentials(Protocol):
    """Bootstrap credentials, the cluster names that each has admitted, and their uses."""

    def add(self, record: CredentialRecord) -> None: ...

    def by_id(self, credential: CredentialId) -> CredentialRecord | None: ...

    def admitted(self, credential: CredentialId) -> frozenset[ClusterName]: ...

    def has_admitted(self, credential: CredentialId, cluster: ClusterName) -> bool: ...

    def admit(self, credential: CredentialId, cluster: ClusterName, at: datetime) -> None: ...

    def forget_name(self, cluster: ClusterName, credential: CredentialId | None = None) -> None:
        """Remove this name from the admitted names of one credential (None: of all). Spent uses stay spent."""

    def uses(self, credential: CredentialId) -> Sequence[CredentialUse]:
        """Return the held and the spent uses of a credential, oldest first."""

    def use_of(self, credential: CredentialId, cluster: ClusterName, agent: AgentId) -> CredentialUse | None: ...

    def keep_use(self, use: CredentialUse) -> None:
        """Add or replace the use of this agent."""

    def drop_use(self, use: CredentialUse) -> None: ...

    def tally(self, credential: CredentialId) -> UseCount:
        """Return the counts of a credential's uses. `UseCount.names` counts admitted cluster names without a recorded use."""

    def use_counts(self) -> Mapping[CredentialId, UseCount]:
        """Return the counts of uses of each credential that has at least one use."""

    def revoke(self, credential: CredentialId, at: datetime, *, by: str = "", reason: str = "") -> None:
        """Revoke a credential. If it is already revoked, its time, user and reason stay."""

    def hide(self, credential: CredentialId) -> None:
        """Hide a revoked credential from the API, as deleted. The reason of its revocation is then DELETED."""

    def revoked_since(self, moment: datetime) -> Sequence[CredentialId]:
        """Credentials whose revocation was written at `moment` or later."""

    def all(self) -> Sequence[CredentialRecord]: ...

    def valid_for(self, cluster: ClusterName, at: datetime) -> Sequence[CredentialRecord]:
        """Return the credentials that admit this cluster name and are neither revoked nor expired at `at`, oldest first."""

    def forget_ended(self, before: datetime) -> int:
        """Delete credentials that expired or were revoked before this time, with their uses; return their number."""


class Bindings(Protocol):
    """The attestation issuer to which each cluster name is bound."""

    def of(self, cluster: ClusterName) -> Binding | None: ...

    def bind(self, binding: Binding) -> None:
        """Store the binding of a cluster name that has no binding yet."""

    def release(self, cluster: ClusterName) -> None: ...


class Issuer(Protocol):
    """Signs certificates. It does not check whether the requester may have them."""

    def issue(self, profile: Profile, serial: SerialNumber, now: datetime) -> IssuedCertificate:
        """Issue a certificate for `profile`, with checks before and after the signature."""

    @property
    def trust_bundle(self) -> bytes:
        """PEM of the CAs that peers should trust now. Do not cache it: a CA rotation changes it."""


class ListSigner(Protocol):
    """Signs the revocation lists of the hub's CAs that are not retired, including CAs that no longer issue certificates."""

    @property
    def authorities(self) -> Sequence[str]:
        """Names of the CAs, oldest CA first, as in `signed_by` of certificate records."""

    def sign_list(self, authority: str, content: RevocationList) -> bytes:
        """Return the signed revocation list (DER) of the CA with this name. Raises NotFoundError if there is none."""


class LoginIssuer(Protocol):
    """A CA that signs only operators' logins: other servers trust it, and they do not receive the hub's revocations."""

    @property
    def name(self) -> str:
        """Name of the issuer in errors and metrics."""

    def issue_login(self, profile: Profile, serial: SerialNumber, now: datetime) -> IssuedCertificate:
        """Sign a login. Raises UnavailableError (no CA is loaded now) or InvalidError (it does not sign such a profile)."""


class AuthorityRecords(Protocol):
    """Records of all CAs that the hub ever had. A private key is stored only if an external key has sealed it."""

    def all(self) -> Sequence[AuthorityRecord]:
        """Return all records, in order of creation."""

    def put(self, authority: AuthorityRecord) -> None:
        """Add or replace a record, and wake up listeners of revocations on all replicas. A sealed key is kept."""

    def sealed_key(self, authority: AuthorityId) -> bytes | None: ...

    def keep_key(self, authority: AuthorityId, sealed: bytes | None) -> None:
        """Store the sealed key of an existing CA; None deletes it."""

    def followers(self) -> Sequence[Follower]:
        """Return, per replica and CA, the phase that the replica applies, and whether it has the key; also ended replicas."""

    def follow(self, replica: str, known: Sequence[Follower]) -> None:
        """Replace the rows of this replica: the phase that it applies for each CA, and whether it has the CA's key."""

    def signed(self, now: datetime) -> Mapping[tuple[str, Purpose], int]:
        """Return the number of certificates per signer and purpose that have neither expired nor been revoked."""

    def held(self, purpose: Purpose, now: datetime) -> Sequence[HeldCertificate]:
        """Return, for each agent, its newest certificate of this purpose that has neither expired nor been revoked."""

    def clusters_without_certificate(self, signed_by: str, reason: str, now: datetime) -> Sequence[ClusterName]:
        """Return the clusters whose agent certificates of this signer were revoked for `reason`, and that have no valid one."""

    def revoke_signed(self, signed_by: str, at: datetime, reason: str) -> int:
        """Revoke all unexpired certificates of this signer; return their number. Earlier revocations keep their reason."""


class Trusts(Protocol):
    """The newest `AgentTrust` of each agent of each cluster. Writes add no change-log row."""

    def get(self, cluster: ClusterName, agent: AgentId) -> AgentTrust | None: ...

    def all(self) -> Sequence[AgentTrust]:
        """Return all rows, ordered by the bytes of cluster and agent."""

    def ends(self) -> Mapping[ClusterName, datetime]:
        """Return, for each cluster, the end of validity of its agent's certificate; with several agents, the latest end."""

    def ending(self, moments: Sequence[datetime]) -> Sequence[int]:
        """Return, for each instant, the number of clusters whose end in `ends` is not later. A last value counts all."""

    def first_end(self, after: datetime) -> datetime | None:
        """Return the earliest value of `ends` after this instant; None: there is no such value."""

    def put(self, trust: AgentTrust) -> None:
        """Add or replace the row of this agent."""

    def forget(self, cluster: ClusterName) -> None: ...


@dataclass(frozen=True, slots=True)
class KeyPair:
    """Certificate and private key of a CA, both PEM."""

    certificate: bytes
    key: bytes = field(repr=False)


class KeyPlace(Protocol):
    """Key storage that is either shared by all replicas or local to one. All methods may raise MusterError."""

    async def find(self, authority: AuthorityId) -> KeyPair | None:
        """Return the stored certificate and key of this CA; None: they are not stored."""

    async def offered(self, known: Collection[AuthorityId]) -> KeyPair | None:
        """Return the stored CA that is not in `known`; of several, the newest; None: there is none.

        Either an operator stored it, or a leader that was killed before it recorded the CA.
        """

    async def keep(self, authority: AuthorityId, pair: KeyPair) -> None:
        """Store the pair, so that `find` returns it on every replica. Idempotent."""

    async def forget(self, authority: AuthorityId) -> None:
        """Delete the pair. Does nothing if it does not exist or the hub may not delete it."""

    @property
    def refusal(self) -> str | None:
        """The reason why this storage accepts no key, and what an operator must do; None if the storage accepts keys."""
        return None


class KeySecret(Protocol):
    """A Secret of the hub's own Kubernetes cluster, or of `--management-cluster`. All methods may raise MusterError."""

    async def read(self) -> Mapping[str, bytes]:
        """Return the entries of the Secret; without such a Secret, an empty mapping."""

    async def write(self, changes: Mapping[str, bytes | None]) -> None:
        """Set these entries and delete those that are None. Other entries stay. Creates the Secret if it does not exist."""
