"""Attestation of a first registration: which cluster it is that asks, by a token of its own issuer.

A managed cluster's API server signs tokens of its service accounts. One that is made for this hub alone (its audience) and is
signed with the keys of that issuer shows that whoever asks comes from that cluster; the name of a cluster is then bound to the
issuer, and not to whoever came first.
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
    """Said outside in one sentence, whatever was wrong. `why` is for the audit log."""

    def __init__(self, why: str) -> None:
        super().__init__(FAILED)
        self.why = why


@dataclass(frozen=True, slots=True)
class Demand:
    """An issuer whose tokens prove that a cluster is the one that a credential is for.

    `keys`: its key set (JWKS) as JSON; "": it is fetched from the issuer's discovery, over TLS that is checked with `authority`
    (PEM; "": the system's). `audience` "": the hub's own. `subject`: a shell pattern, which the whole subject must fit.
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
        """Of an issuer that is good for names that fit patterns; without any for every name."""
        return not patterns or any(fnmatchcase(cluster, glob) for glob in patterns)

    def includes(self, subject: str) -> bool:
        return fnmatchcase(subject, self.subject)


@dataclass(frozen=True, slots=True)
class Attested:
    """What a token that was found good says: who issued it and to whom, and the key that signed it (its thumbprint)."""

    issuer: str
    subject: str
    key: str
    pinned: frozenset[str] = frozenset()
    """The thumbprints of the keys that were given by an operator; none: the issuer's discovery told them."""


@dataclass(frozen=True, slots=True)
class Binding:
    """The issuer that a cluster's name is bound to, by its first registration that was attested."""

    cluster: ClusterName
    issuer: str
    subject: str
    key: str
    bound_at: datetime


def check_binding(binding: Binding | None, attested: Attested) -> None:
    """Raises AttestationError when the name is bound to another issuer or subject.

    Issuers that nobody can look up often share a name. Where keys are given by hand, those given must hold the one that the
    name was bound with.
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
