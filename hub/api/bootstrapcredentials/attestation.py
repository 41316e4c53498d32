"""Attestation of a first registration: a token of the cluster's own issuer proves the cluster's identity.

The API server of a managed cluster signs tokens of its ServiceAccounts. A token with this hub as its only audience, signed with
the keys of that issuer, proves that the caller is from that cluster. The cluster's name is then bound to the issuer, not to the
first caller.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from fnmatch import fnmatchcase
from typing import Any

from machinery.errors import ForbiddenError
from machinery.identity import ClusterName

FAILED = "attestation failed: the hub's audit log says why"
ANY_SUBJECT = "system:serviceaccount:*"


class AttestationError(ForbiddenError):
    """Returned to callers as one fixed message; `why` goes to the audit log."""

    def __init__(self, why: str) -> None:
        super().__init__(FAILED)
        self.why = why


@dataclass(frozen=True, slots=True)
class Demand:
    """An issuer whose tokens prove that a cluster is the one that a credential is for.

    `keys`: its key set (JWKS) as JSON; "": fetched by the issuer's discovery, over TLS that is verified with `authority` (PEM;
    "": the system's). `audience`: "" means the hub's own. `subject`: a shell pattern that the whole subject must match.
    """

    issuer: str
    keys: str = field(default="", repr=False)
    authority: str = field(default="", repr=False)
    audience: str = ""
    subject: str = ANY_SUBJECT

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> "Demand":
        return cls(**{name: str(document[name]) for name in cls.__slots__ if document.get(name)})

    def document(self) -> dict[str, str]:
        return {name: text for name in self.__slots__ if (text := getattr(self, name))}

    def is_for(self, cluster: ClusterName, patterns: Sequence[str]) -> bool:
        """Whether the name matches one of the patterns, or there are none."""
        return not patterns or any(fnmatchcase(cluster, glob) for glob in patterns)

    def includes(self, subject: str) -> bool:
        return fnmatchcase(subject, self.subject)


@dataclass(frozen=True, slots=True)
class Attested:
    """A verified token: its issuer, its subject, and the thumbprint of the signing key."""

    issuer: str
    subject: str
    key: str
    pinned: frozenset[str] = frozenset()
    """Thumbprints of the keys that an operator gave; empty if they come from the issuer's discovery."""


@dataclass(frozen=True, slots=True)
class Binding:
    """The issuer to which a cluster's name is bound by its first attested registration."""

    cluster: ClusterName
    issuer: str
    subject: str
    key: str
    bound_at: datetime


def check_binding(binding: Binding | None, attested: Attested) -> None:
    """Raise AttestationError if the name is bound to another issuer or subject.

    Issuers without public discovery often share a name. If an operator gave the keys, they must include the key of the binding.
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
            f'cluster "{binding.cluster}" is bound to a key of issuer {binding.issuer} that is not among those given for it now'
        )
