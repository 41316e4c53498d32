"""Names and certificate subjects as OCM defines them. Only this module builds or parses identities.

Sources: OCM's certificate subjects (CN `system:open-cluster-management:<cluster>:<agent>`) and Kubernetes' name rules. Parsing
is strict: a subject must have exactly the expected parts. It is never matched by prefix, because that caused OCM's
CVE-2026-4740.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NewType

from machinery.errors import InvalidError

ClusterName = NewType("ClusterName", str)
AgentId = NewType("AgentId", str)
AddOnName = NewType("AddOnName", str)
HubId = NewType("HubId", str)
CredentialId = NewType("CredentialId", str)
SerialNumber = NewType("SerialNumber", int)

SUBJECT_PREFIX = "system:open-cluster-management:"
ADDONS_PREFIX = "system:open-cluster-management:addon:"
"""Prefix of OCM's groups for add-ons. One group contains the agents of one add-on on all clusters."""
ALL_CLUSTERS_GROUP = "system:open-cluster-management:managed-clusters"
BOOTSTRAP_USER_PREFIX = "system:bootstrap:"
RECOVERY_USER_PREFIX = "system:recovery:"
BOOTSTRAP_GROUP = "system:bootstrappers:managedcluster"
OPERATOR_GROUP = "system:masters"
AUTHENTICATED_GROUP = "system:authenticated"
UNAUTHENTICATED_GROUP = "system:unauthenticated"
SERVICE_ACCOUNT_PREFIX = "system:serviceaccount:"
SERVICE_ACCOUNTS_GROUP = "system:serviceaccounts"
AGENT_ID_ALPHABET = "bcdfghjklmnpqrstvwxz2456789"
AGENT_ID_LENGTH = 5

_DNS_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
MAX_LABEL = 63
SIGNER = "kubernetes.io/kube-apiserver-client"
CLUSTER_LABEL = "open-cluster-management.io/cluster-name"


@dataclass(frozen=True, slots=True)
class CertificateSubject:
    """The subject of a certificate: the CN, and the unordered O and OU entries."""

    common_name: str
    organizations: frozenset[str] = frozenset()
    units: frozenset[str] = frozenset()


def cluster_name(text: str) -> ClusterName:
    """Parse a cluster name. It must be a DNS label, because a namespace has the same name. Raises InvalidError."""
    if len(text) > MAX_LABEL or not _DNS_LABEL.fullmatch(text):
        msg = (
            f'cluster name "{text[:80]}" is not valid: use 1 to 63 lower-case letters, digits and "-", '
            "beginning and ending with a letter or digit"
        )
        raise InvalidError(msg)
    return ClusterName(text)


def agent_id(text: str) -> AgentId:
    """Parse an agent id. It must be a DNS label. Raises InvalidError."""
    if len(text) > MAX_LABEL or not _DNS_LABEL.fullmatch(text):
        msg = f'agent id "{text[:80]}" is not valid: use 1 to 63 lower-case letters, digits and "-"'
        raise InvalidError(msg)
    return AgentId(text)


def cluster_group(cluster: ClusterName) -> str:
    return SUBJECT_PREFIX + cluster


def agent_subject(cluster: ClusterName, agent: AgentId) -> CertificateSubject:
    return CertificateSubject(
        common_name=f"{SUBJECT_PREFIX}{cluster}:{agent}", organizations=frozenset((cluster_group(cluster), ALL_CLUSTERS_GROUP))
    )


def recovery_subject(cluster: ClusterName, agent: AgentId) -> CertificateSubject:
    """Return the subject of an agent's recovery certificate. It has no group, so a Kubernetes API grants it no rights."""
    return CertificateSubject(common_name=f"{RECOVERY_USER_PREFIX}{cluster}:{agent}")


def addon_group(cluster: ClusterName, addon: AddOnName) -> str:
    return f"{SUBJECT_PREFIX}cluster:{cluster}:addon:{addon}"


def addon_user(cluster: ClusterName, addon: AddOnName, agent: str) -> str:
    return f"{addon_group(cluster, addon)}:agent:{agent}"


def addon_subject(cluster: ClusterName, addon: AddOnName, agent: str) -> CertificateSubject:
    """Return the default subject of an add-on's certificate. `agent`: the name of the add-on's agent."""
    return CertificateSubject(
        common_name=addon_user(cluster, addon, agent), organizations=frozenset((addon_group(cluster, addon),))
    )


def bootstrap_user(credential: CredentialId) -> str:
    return BOOTSTRAP_USER_PREFIX + credential


def parse_bootstrap_user(user: str) -> CredentialId | None:
    """Return the id of the bootstrap credential that `user` names; None if it is another kind of user."""
    credential = user.removeprefix(BOOTSTRAP_USER_PREFIX)
    return CredentialId(credential) if credential != user else None


def bootstrap_subject(credential: CredentialId) -> CertificateSubject:
    return CertificateSubject(common_name=bootstrap_user(credential), organizations=frozenset((BOOTSTRAP_GROUP,)))


def parse_agent_user(user: str) -> tuple[ClusterName, AgentId] | None:
    """Return the cluster name and the agent id in the CN `user`; None if `user` is not exactly the CN of an agent."""
    if not user.startswith(SUBJECT_PREFIX):
        return None
    cluster, _, agent = user.removeprefix(SUBJECT_PREFIX).partition(":")
    try:
        return cluster_name(cluster), agent_id(agent)
    except InvalidError:
        return None


def service_account_user(namespace: str, name: str) -> str:
    return f"{SERVICE_ACCOUNT_PREFIX}{namespace}:{name}"


def service_account_groups(namespace: str) -> tuple[str, ...]:
    return SERVICE_ACCOUNTS_GROUP, f"{SERVICE_ACCOUNTS_GROUP}:{namespace}"


def is_reserved(user: str, groups: Iterable[str]) -> bool:
    """Whether the user name or a group is one that only the hub may assign: to agents, add-ons or bootstrap credentials."""
    prefixes = (SUBJECT_PREFIX, BOOTSTRAP_USER_PREFIX, RECOVERY_USER_PREFIX, BOOTSTRAP_GROUP)
    return any(name.startswith(prefixes) for name in (user, *groups))
