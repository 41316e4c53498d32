"""Who needs no human: renewals of a good standing, and names that an operator's rule lets in.

Sources: OCM's CSR approver (renewal: the requester is the subject; exact parts, never a prefix), architecture D9.
"""

from collections.abc import Iterable
from datetime import datetime
from fnmatch import fnmatchcase

from hub.domain import cluster as clusters
from hub.domain.certificate import CertificateRecord, Purpose
from hub.domain.change import Document
from machinery.identity import Subject


def matches_rule(name: str, globs: Iterable[str]) -> bool:
    """Whether an auto-approval rule (a shell pattern, case counts) lets this cluster name in."""
    return any(fnmatchcase(name, glob) for glob in globs)


def is_renewal(requester: CertificateRecord, subject: Subject) -> bool:
    """The requester asks for a certificate of exactly its own identity."""
    return requester.purpose is Purpose.AGENT and requester.user == subject.common_name


def renewal_is_due(requester: CertificateRecord, cluster: Document | None, now: datetime) -> bool:
    """A renewal that needs no human: its cluster is accepted, and neither it nor the certificate it came with is revoked."""
    return (
        cluster is not None and clusters.is_accepted(cluster) and requester.revoked_at is None and requester.not_before <= now
    )
