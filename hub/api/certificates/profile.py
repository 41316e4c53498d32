"""Permitted profiles by purpose: the last check before a signature, of the profile and of the holder in its record.

A profile that fails this check is a defect of the calling use case; nothing is signed.

purpose    subject                                           alternative names
AGENT      the agent's, of the holder                        none
RECOVERY   the recovery subject, of the holder               none
ADDON      no name of others: see `claims_anothers`          DNS names only
BOOTSTRAP  the credential's                                  none
OPERATOR   no agent's, add-on's or credential's              none
LOGIN      the same                                          none
SERVING    has no holder: not signed this way

All begin between five minutes and two days before now (peers' clocks differ), and end after now.
"""

from datetime import datetime, timedelta

from hub.api.certificates.certificate import BACKDATED, CertificateHolder, Profile, Purpose
from machinery.identity import (
    ADDONS_PREFIX,
    BOOTSTRAP_GROUP,
    BOOTSTRAP_USER_PREFIX,
    OPERATOR_GROUP,
    RECOVERY_USER_PREFIX,
    SUBJECT_PREFIX,
    CertificateSubject,
    ClusterName,
    agent_subject,
    bootstrap_subject,
    is_reserved,
    recovery_subject,
)

EARLIEST = timedelta(days=2)
"""Limit for backdating, so that a hub whose database's clock jumped does not sign certificates from before its existence."""


def refusals(profile: Profile, holder: CertificateHolder, now: datetime) -> list[str]:
    """Reasons why this profile may not be signed; empty if it may."""
    named = profile.dns_names and profile.purpose is not Purpose.ADDON
    rules = (
        (now - EARLIEST <= profile.not_before <= now - BACKDATED, "it does not begin five minutes before now"),
        (profile.not_after > now, "it has ended already"),
        (not named and not profile.ip_addresses, "it has alternative names that its purpose has not"),
        (_is_its_holders(profile, holder), f'its subject is none of purpose "{profile.purpose}" for its holder'),
    )
    return [finding for fine, finding in rules if not fine]


def _is_its_holders(profile: Profile, holder: CertificateHolder) -> bool:
    """Whether the subject matches the purpose and the holder."""
    subject, cluster, agent = profile.subject, holder.cluster, holder.agent
    match profile.purpose:
        case Purpose.AGENT if cluster is not None and agent is not None:
            return subject == agent_subject(cluster, agent)
        case Purpose.RECOVERY if cluster is not None and agent is not None:
            return subject == recovery_subject(cluster, agent)
        case Purpose.BOOTSTRAP if holder.credential is not None:
            return subject == bootstrap_subject(holder.credential)
        case Purpose.ADDON if cluster is not None and holder.addon is not None:
            return not claims_anothers(subject, cluster)
        case Purpose.OPERATOR | Purpose.LOGIN:
            return cluster is None and agent is None and not is_reserved(subject.common_name, subject.organizations)
        case _:
            return False


def claims_anothers(subject: CertificateSubject, cluster: ClusterName) -> bool:
    """Whether the subject of an add-on of `cluster` contains a name that an add-on may not have.

    These are names of operators, agents, credentials, and add-ons of other clusters. The hub's servers ignore them for add-ons,
    but other servers that trust this CA read only the names.
    """
    own = (f"{SUBJECT_PREFIX}cluster:{cluster}:", ADDONS_PREFIX)
    foreign = (SUBJECT_PREFIX, BOOTSTRAP_USER_PREFIX, RECOVERY_USER_PREFIX, BOOTSTRAP_GROUP)
    names = (subject.common_name, *subject.organizations)
    return any(name == OPERATOR_GROUP or (name.startswith(foreign) and not name.startswith(own)) for name in names)
