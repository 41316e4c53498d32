"""Checks of certificate signing requests. Sources: OCM's approver rules (exact subjects, CVE-2026-4740), ADR 0012."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Protocol

from hub.api.certificates import CertificateRecord
from machinery.errors import ForbiddenError, InvalidError
from machinery.identity import ALL_CLUSTERS_GROUP, AgentId, CertificateSubject, ClusterName, agent_subject, parse_agent_user


class RequestFacts(Protocol):
    """Content of a parsed CSR. `machinery.pki.check_request` returns it after checking signature and key."""

    @property
    def subject(self) -> CertificateSubject: ...

    @property
    def dns_names(self) -> tuple[str, ...]: ...

    @property
    def ip_addresses(self) -> tuple[str, ...]: ...

    @property
    def other_names(self) -> int: ...

    @property
    def other_attributes(self) -> tuple[str, ...]: ...


def check_subject(facts: RequestFacts, expected: CertificateSubject, dns_names: tuple[str, ...] = ()) -> None:
    """Raise InvalidError, which names the correction, unless the CSR has exactly the expected subject and permitted names."""
    if facts.subject != expected or facts.other_attributes:
        raise InvalidError(
            f"the subject of the certificate request is {_words(facts.subject)[:400]}, expected is {_words(expected)}: "
            "create a request with exactly this subject"
        )
    foreign = sorted({*facts.dns_names} - {*dns_names}) + list(facts.ip_addresses)
    if foreign or facts.other_names:
        listed = ", ".join(foreign)[:200] or "names of other types"
        raise InvalidError(f"the certificate request has names that are not its own ({listed}): create one without them")


def claimed_agent(facts: RequestFacts) -> tuple[ClusterName, AgentId]:
    """Return cluster and agent from a CSR's subject. The subject may lack the group of all clusters. Raises InvalidError."""
    claimed = parse_agent_user(facts.subject.common_name)
    if claimed is None:
        raise InvalidError(
            f"the subject of the certificate request is {_words(facts.subject)[:400]}, which is not an agent of a cluster"
        )
    expected = agent_subject(*claimed)
    full = replace(facts.subject, organizations=facts.subject.organizations | {ALL_CLUSTERS_GROUP})
    if full != expected:
        check_subject(facts, expected)
    return claimed


def _words(subject: CertificateSubject) -> str:
    return " ".join((f"CN={subject.common_name}", *(f"O={one}" for one in sorted(subject.organizations))))


def check_key_is_new(cluster: ClusterName, known: Iterable[CertificateRecord]) -> None:
    """Raise ForbiddenError if the key belongs to another identity or a revoked certificate. `known`: records with the key."""
    for record in known:
        if record.cluster != cluster or (record.credential is not None and record.agent is None):
            raise ForbiddenError("the key of the certificate request is already used by another identity: create a new key")
        if record.revoked_at is not None:
            raise ForbiddenError("the key of the certificate request belongs to a revoked certificate: create a new key")
