"""Who needs no human by the hub's own rules: renewals of a good standing, and add-ons as they are registered.

Sources: OCM's CSR approver (the requester is the subject; exact parts, never a prefix), architecture D9. What operators add to
that is in `hub.api.approvalrules.rule`.
"""

from datetime import datetime

from hub.api.certificates.certificate import CertificateRecord, Purpose
from hub.api.managedclusters import cluster as clusters
from hub.api.meta import document as doc
from hub.api.meta.change import Document
from machinery.identity import OPERATOR_GROUP, SUBJECT_PREFIX, AgentId, CertificateSubject, parse_agent_user

ADDON_PREFIX = f"{SUBJECT_PREFIX}cluster:"


def is_renewal(requester: CertificateRecord, subject: CertificateSubject) -> bool:
    """The requester asks for a certificate of exactly its own identity."""
    return requester.purpose is Purpose.AGENT and requester.user == subject.common_name


def is_in_good_standing(requester: CertificateRecord, cluster: Document | None, own: AgentId | None, now: datetime) -> bool:
    """An agent whose cluster is accepted, that no other has taken the place of, and whose certificate is not revoked.

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
    """Whether a registered subject claims nobody else's name: no operator's, and none of an agent's of any cluster."""
    if parse_agent_user(subject.common_name) is not None or OPERATOR_GROUP in subject.organizations:
        return False
    names = (each for each in subject.organizations if each.startswith(SUBJECT_PREFIX))
    return all(name.startswith(ADDON_PREFIX) for name in names)
