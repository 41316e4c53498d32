"""Who may connect: certificates by serial, bootstrap credentials, and who signs."""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Protocol

from hub.api.bootstrapcredentials.attestation import Binding
from hub.api.bootstrapcredentials.credential import CredentialRecord, CredentialUse, UseCount
from hub.api.certificates.certificate import CertificateRecord, IssuedCertificate, Profile
from machinery.identity import AgentId, ClusterName, CredentialId, SerialNumber
from machinery.pki import RevocationList


class CertificateRecords(Protocol):
    """A record for every serial the hub ever signed, made before the signature leaves."""

    def add(self, record: CertificateRecord) -> None: ...

    def by_serial(self, serial: SerialNumber) -> CertificateRecord | None: ...

    def of_cluster(self, cluster: ClusterName) -> Sequence[CertificateRecord]: ...

    def of_request(self, request_uid: str) -> Sequence[CertificateRecord]:
        """What was issued for one CertificateSigningRequest: at most one agent certificate and its recovery certificate."""

    def of_key(self, key_hash: str) -> Sequence[CertificateRecord]:
        """Every record over one public key."""

    def of_credential(self, credential: CredentialId) -> Sequence[CertificateRecord]:
        """The certificates that one bootstrap credential is."""

    def of_account(self, account: str) -> Sequence[CertificateRecord]:
        """The logins that were given for tokens of one ServiceAccount, by its uid."""

    def forget_logins(self, ended_before: datetime, limit: int) -> int:
        """Drops the records of logins that ended before this, at most `limit`; returns how many. Nothing opens without one."""

    def ended(self, before: datetime, limit: int) -> Sequence[SerialNumber]:
        """Certificates that ended before this, at most `limit`; but never the first one of an agent for a purpose.

        By that it is known which of a cluster's agents came last.
        """

    def forget(self, serials: Collection[SerialNumber]) -> int:
        """Drops these records; how many there were."""

    def revoke(self, serials: Collection[SerialNumber], at: datetime, reason: str) -> None: ...

    def revoked_since(self, moment: datetime) -> Mapping[SerialNumber, str]:
        """Serials whose revocation was written at `moment` or later, each with its reason."""

    def revoked(self, ended_after: datetime) -> Sequence[CertificateRecord]:
        """What is revoked and would have been good until after that instant, in the order of serials."""


class Credentials(Protocol):
    """Bootstrap credentials, the cluster names that each has admitted, and its uses."""

    def add(self, record: CredentialRecord) -> None: ...

    def by_id(self, credential: CredentialId) -> CredentialRecord | None: ...

    def admitted(self, credential: CredentialId) -> frozenset[ClusterName]: ...

    def has_admitted(self, credential: CredentialId, cluster: ClusterName) -> bool: ...

    def spent(self, credential: CredentialId) -> int:
        """How many cluster names it has admitted."""

    def admit(self, credential: CredentialId, cluster: ClusterName, at: datetime) -> None: ...

    def forget_name(self, cluster: ClusterName, credential: CredentialId | None = None) -> None:
        """From now on this credential (None: none at all) has not admitted this name. Uses that are spent stay so."""

    def uses(self, credential: CredentialId) -> Sequence[CredentialUse]:
        """Held and spent ones, oldest first."""

    def use_of(self, credential: CredentialId, cluster: ClusterName, agent: AgentId) -> CredentialUse | None: ...

    def keep_use(self, use: CredentialUse) -> None:
        """Adds the use of this agent, or puts it in the place of the one there is."""

    def drop_use(self, use: CredentialUse) -> None: ...

    def tally(self, credential: CredentialId) -> UseCount:
        """`names`: those that it has admitted and that no use is recorded for."""

    def tallies(self) -> Mapping[CredentialId, UseCount]:
        """Of every credential that has any."""

    def revoke(self, credential: CredentialId, at: datetime, *, by: str = "", reason: str = "") -> None:
        """What is revoked already keeps its time, who and why."""

    def hide(self, credential: CredentialId) -> None:
        """Of one that is revoked: it was deleted, whatever it was revoked for."""

    def revoked_since(self, moment: datetime) -> Sequence[CredentialId]:
        """Credentials whose revocation was written at `moment` or later."""

    def all(self) -> Sequence[CredentialRecord]: ...

    def forget_ended(self, before: datetime) -> int:
        """Removes credentials that expired or were revoked before, with their uses; returns how many."""


class Bindings(Protocol):
    """Which issuer each cluster's name is bound to."""

    def of(self, cluster: ClusterName) -> Binding | None: ...

    def bind(self, binding: Binding) -> None:
        """For a name that is bound to none."""

    def release(self, cluster: ClusterName) -> None: ...


class Issuer(Protocol):
    """Signs what the services decided. It checks nothing about who asked."""

    def issue(self, profile: Profile, serial: SerialNumber, now: datetime) -> IssuedCertificate:
        """A certificate for `profile`, linted before and after signing."""

    @property
    def trust_bundle(self) -> bytes:
        """PEM of what peers should trust now. It changes when the CA is rotated: ask each time, and keep no copy."""


class ListSigner(Protocol):
    """Signs the revocation lists of the hub's CAs: of those that are trusted still, whether or not they sign certificates."""

    @property
    def authorities(self) -> Sequence[str]:
        """The CAs by the name that records have (`signed_by`), the oldest first: records without a name are its own."""

    def sign_list(self, authority: str, content: RevocationList) -> bytes:
        """The list of one of `authorities` in DER. Raises NotFoundError for another."""


class LoginIssuer(Protocol):
    """A CA that others trust, who do not hear of revocations: it signs operators' logins, and is no `Issuer`."""

    @property
    def name(self) -> str:
        """As errors and counts call it."""

    def issue_login(self, profile: Profile, serial: SerialNumber, now: datetime) -> IssuedCertificate:
        """Raises UnavailableError (it has no CA now), InvalidError (it does not sign such a profile)."""


class AuthorityKeeper(Protocol):
    """Where a CA that was found is put, with its key, for those who sign with it."""

    def set(self, certificate: bytes, key: bytes) -> None:
        """PEM. Raises InvalidError when they are no pair or no CA's; then nothing has changed."""

    def unset(self) -> None:
        """Has nobody sign with it any more."""

    @property
    def signer(self) -> str:
        """The CA that is held now, as records of certificates name it; empty: none."""
