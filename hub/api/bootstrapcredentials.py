"""Bootstrap credentials: permitted cluster names, validity, number of uses; attestation of a first registration.

A credential is a client certificate, or a bearer token `<id>.<secret>` of which only a hash is stored. The secret is long and
random, so the hash needs no salt.

Each agent of each cluster needs one use. A use is held once the certificate request is stored, and spent when the certificate
is issued. It is given back if the request is denied, fails or is deleted. An admitted cluster name without a request also holds
a use, until its ManagedCluster is deleted.

Attestation: the API server of a managed cluster is the issuer of its ServiceAccount tokens. A token that this issuer has signed
for the hub's audience proves that the caller is from that cluster. The cluster's name is then bound to the issuer, not to the
first caller.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from fnmatch import fnmatchcase
from hashlib import sha256
from typing import Any

from machinery.errors import ForbiddenError
from machinery.identity import AgentId, ClusterName, CredentialId, SerialNumber
from machinery.meta.timestamps import format_time

FAILED = "attestation failed: see the reason in the hub's audit log"
ANY_SUBJECT = "system:serviceaccount:*"


class AttestationError(ForbiddenError):
    """A failed attestation. The caller gets a fixed message; `why` is for the audit log."""

    def __init__(self, why: str) -> None:
        super().__init__(FAILED)
        self.why = why


@dataclass(frozen=True, slots=True)
class AttestationRequirement:
    """The issuer whose token a first registration must present.

    `keys`: the issuer's key set (JWKS) as JSON; "": the hub fetches it by the issuer's discovery, and verifies TLS with the CAs
    in `authority` (PEM; "": the system's). `audience`: "" means the hub's own. `subject`: a shell pattern that the whole
    subject must match.
    """

    issuer: str
    keys: str = field(default="", repr=False)
    authority: str = field(default="", repr=False)
    audience: str = ""
    subject: str = ANY_SUBJECT

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> "AttestationRequirement":
        return cls(**{name: str(document[name]) for name in cls.__slots__ if document.get(name)})

    def document(self) -> dict[str, str]:
        return {name: text for name in self.__slots__ if (text := getattr(self, name))}

    def includes(self, subject: str) -> bool:
        return fnmatchcase(subject, self.subject)


@dataclass(frozen=True, slots=True)
class Attested:
    """A verified token: its issuer, its subject, and the id (`kid`) of the signing key."""

    issuer: str
    subject: str
    key: str
    pinned: frozenset[str] = frozenset()
    """Ids of the keys that an operator gave; empty if the keys come from the issuer's discovery."""


@dataclass(frozen=True, slots=True)
class Binding:
    """The issuer to which a cluster's name is bound by its first attested registration."""

    cluster: ClusterName
    issuer: str
    subject: str
    key: str
    bound_at: datetime


def check_binding(binding: Binding | None, attested: Attested) -> None:
    """Raise AttestationError if the name is bound to another issuer, subject or key.

    Different issuers without public discovery often have the same name, so the name alone proves nothing. Therefore, if an
    operator has configured keys of the issuer, these keys must include the key to which the name is bound.
    """
    if binding is None:
        return
    if (binding.issuer, binding.subject) != (attested.issuer, attested.subject):
        raise AttestationError(
            f'cluster "{binding.cluster}" is bound to {binding.subject} of issuer {binding.issuer}, and the token is for '
            f"{attested.subject} of {attested.issuer}"
        )
    if attested.pinned and binding.key not in attested.pinned:
        raise AttestationError(
            f'cluster "{binding.cluster}" is bound to a key of issuer {binding.issuer} that is not among its configured keys'
        )


NEW_KUBECONFIG_ADVICE = "get a new bootstrap kubeconfig (`hubctl create bootstrap-kubeconfig`)"

DELETED = "Deleted"
"""Revocation reason of a credential that an operator deleted."""


@dataclass(frozen=True, slots=True)
class CredentialBounds:
    """Limits of a bootstrap credential that `CredentialRecord` does not contain, and the labels and set of its new clusters."""

    patterns: tuple[str, ...] = ()
    """Shell patterns. The whole cluster name must match one of them. Empty: any name."""
    cluster_set: str | None = None
    """The set for new clusters; the credential cannot act for clusters of other sets."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """Labels for a cluster that joins with the credential. They override the agent's labels."""
    attestation: AttestationRequirement | None = None
    """Required attestation; None: the hub's setting applies."""
    account: str = ""
    """Uid of the ServiceAccount whose TokenRequest created the credential. Deleting the ServiceAccount revokes the
    credential."""


UNBOUND = CredentialBounds()


def matches_names(cluster: ClusterName, patterns: Sequence[str]) -> bool:
    """Whether the name matches one of the shell patterns, or there are no patterns."""
    return not patterns or any(fnmatchcase(cluster, glob) for glob in patterns)


@dataclass(frozen=True, slots=True)
class CredentialRecord:
    """One bootstrap credential. The record of a client certificate of this credential contains the id of the credential.

    `cluster`: the only permitted name; None: any name that `bounds` permit. `uses`: largest number of agents; None: unlimited.
    """

    id: CredentialId
    cluster: ClusterName | None
    uses: int | None
    created_at: datetime
    expires_at: datetime
    created_by: str
    revoked_at: datetime | None = None
    token_hash: str | None = None
    """Hex SHA-256 of the bearer token; None if the credential is a client certificate."""
    bounds: CredentialBounds = UNBOUND
    revoked_by: str | None = None
    revoked_reason: str | None = None

    @property
    def is_hidden(self) -> bool:
        """Whether the credential was deleted: revoked and no longer listed."""
        return self.revoked_reason == DELETED

    def admits(self, cluster: ClusterName) -> bool:
        if self.cluster is not None:
            return self.cluster == cluster
        return matches_names(cluster, self.bounds.patterns)

    @property
    def scope(self) -> str:
        """Description of the clusters that the credential admits."""
        names = f'cluster "{self.cluster}"' if self.cluster is not None else ", ".join(self.bounds.patterns) or "any name"
        return f'{names} in the set "{self.bounds.cluster_set}"' if self.bounds.cluster_set else names


@dataclass(frozen=True, slots=True)
class CredentialUse:
    """One use of a bootstrap credential, held or spent. `request`: the certificate request that holds or has spent the use."""

    credential: CredentialId
    cluster: ClusterName
    agent: AgentId
    request: str
    held_at: datetime
    issued_at: datetime | None = None
    serial: SerialNumber | None = None


@dataclass(frozen=True, slots=True)
class UseCount:
    """Numbers of uses. `issued`: spent. `held`: held by requests. `names`: held by cluster names that have no request."""

    issued: int = 0
    held: int = 0
    names: int = 0

    @property
    def taken(self) -> int:
        return self.issued + self.held + self.names


class CredentialPhase(StrEnum):
    ACTIVE = "Active"
    USED_UP = "UsedUp"
    EXPIRED = "Expired"
    REVOKED = "Revoked"


def phase(record: CredentialRecord, issued: int, now: datetime) -> CredentialPhase:
    """Return the phase of a credential with `issued` spent uses: the first of Revoked, UsedUp and Expired that applies.

    Active if none applies.
    """
    if record.revoked_at is not None:
        return CredentialPhase.REVOKED
    if record.uses is not None and issued >= record.uses:
        return CredentialPhase.USED_UP
    return CredentialPhase.EXPIRED if now >= record.expires_at else CredentialPhase.ACTIVE


TOKEN_ALPHABET = "abcdefghijklmnopqrstuvwxyz0123456789"  # noqa: S105 - letters, not a secret
TOKEN_SECRET_LENGTH = 32
_TOKEN = re.compile(rf"([0-9a-f]{{16}})\.[a-z0-9]{{{TOKEN_SECRET_LENGTH}}}")


def token_of(credential: CredentialId, secret: str) -> str:
    return f"{credential}.{secret}"


def token_id(token: str) -> CredentialId | None:
    """Return the credential id in a bootstrap token; None if it is not a bootstrap token."""
    found = _TOKEN.fullmatch(token)
    return None if found is None else CredentialId(found[1])


def token_hash(token: str) -> str:
    """Return the hex SHA-256 of a bootstrap token, which the hub stores."""
    return sha256(token.encode()).hexdigest()


def end_reason(record: CredentialRecord, now: datetime) -> str:
    """Return why the credential is no longer valid; "" if it is valid."""
    if record.revoked_at is not None:
        return f"the bootstrap credential {record.id} is revoked: {NEW_KUBECONFIG_ADVICE}"
    if now >= record.expires_at:
        return f"the bootstrap credential {record.id} expired at {format_time(record.expires_at)}: {NEW_KUBECONFIG_ADVICE}"
    return ""


def check(record: CredentialRecord, cluster: ClusterName, now: datetime) -> None:
    """Raise ForbiddenError unless the credential may act for `cluster`."""
    if why := end_reason(record, now):
        raise ForbiddenError(why)
    check_name(record, cluster)


def check_name(record: CredentialRecord, cluster: ClusterName) -> None:
    """Raise ForbiddenError unless the credential is for a cluster of this name."""
    if record.cluster is not None and record.cluster != cluster:
        raise ForbiddenError(f'the bootstrap credential {record.id} is for cluster "{record.cluster}", not for "{cluster}"')
    if not record.admits(cluster):
        patterns = ", ".join(record.bounds.patterns)
        raise ForbiddenError(
            f'the bootstrap credential {record.id} is for cluster names that match {patterns}, and "{cluster}" does not'
        )


def no_use_error(record: CredentialRecord, tally: UseCount) -> ForbiddenError:
    """Return the error for an agent if all uses of the credential are taken."""
    if record.uses is not None and tally.issued >= record.uses:
        spent = "its only use was" if record.uses == 1 else f"its {record.uses} uses were"
        return ForbiddenError(
            f"the bootstrap credential {record.id} is used up: {spent} spent on other agents; {NEW_KUBECONFIG_ADVICE}"
        )
    waiting = tally.held + tally.names
    return ForbiddenError(
        f"the bootstrap credential {record.id} has no use left: of {record.uses}, {tally.issued} are spent and {waiting} are "
        f"held for agents that wait for a decision: deny or delete one of their requests, or {NEW_KUBECONFIG_ADVICE}"
    )
