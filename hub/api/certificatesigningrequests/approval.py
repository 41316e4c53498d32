"""Built-in approvals: renewals of agents in good standing, and certificates of registered add-ons.

Sources: OCM's CSR approver (the requester is the subject; exact parts, never a prefix), architecture D9. Operators' rules are
in `hub.api.approvalrules`.
"""

from datetime import datetime

from hub.api.certificates import CertificateRecord, Purpose
from hub.api.managedclusters import cluster as clusters
from hub.api.meta import document as doc
from machinery.identity import OPERATOR_GROUP, SUBJECT_PREFIX, AgentId, CertificateSubject, parse_agent_user
from machinery.meta.objects import Document

ADDON_PREFIX = f"{SUBJECT_PREFIX}cluster:"


def is_renewal(requester: CertificateRecord, subject: CertificateSubject) -> bool:
    """Whether an agent requests a certificate for exactly its own identity."""
    return requester.purpose is Purpose.AGENT and requester.user == subject.common_name


def is_in_good_standing(requester: CertificateRecord, cluster: Document | None, own: AgentId | None, now: datetime) -> bool:
    """Whether the cluster is accepted, `requester` is its own agent, and the certificate is not revoked.

    `own`: the cluster's own agent.
    """
    return (
        cluster is not None
        and clusters.is_accepted(cluster)
        and not doc.is_deleting(cluster)
        and requester.agent == own
        and requester.revoked_at is None
        and requester.not_before <= now
    )


def is_an_addons(subject: CertificateSubject) -> bool:
    """Whether a registered subject contains no name of an operator or of an agent of any cluster."""
    if parse_agent_user(subject.common_name) is not None or OPERATOR_GROUP in subject.organizations:
        return False
    names = (each for each in subject.organizations if each.startswith(SUBJECT_PREFIX))
    return all(name.startswith(ADDON_PREFIX) for name in names)
