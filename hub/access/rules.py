"""What a certificate opens, by the purpose in its serial's record. Pure functions; names are compared whole, never by prefix.

purpose      Registration of a cluster          Session         the HTTPS door
BOOTSTRAP    its cluster (none bound: any)      no              `hub.access.rights`, and what roles say
AGENT        its own cluster                    its own         `hub.access.rights`, and what roles say
OPERATOR     no                                 no              what roles say; system:masters: all of it
LOGIN        nothing, not even which hub it is  no              what roles say, of names that the hub has put into its record
ADDON        no                                 no              what roles say
RECOVERY     Recover, for its own agent, alone  no              no
SERVING      nothing
"""

from hub.api.certificates.certificate import CertificateRecord, Purpose
from machinery.errors import ForbiddenError, UnauthorizedError
from machinery.identity import OPERATOR_GROUP, AgentId, ClusterName, addon_group, addon_user


def check_registration(record: CertificateRecord, cluster: ClusterName) -> None:
    """Raises ForbiddenError unless the holder may register, or renew for, `cluster`."""
    if record.purpose is Purpose.BOOTSTRAP and record.cluster in (None, cluster):
        return
    if record.purpose is Purpose.AGENT and record.cluster == cluster:
        return
    if record.purpose in (Purpose.BOOTSTRAP, Purpose.AGENT):
        raise ForbiddenError(f'this certificate is for cluster "{record.cluster}" and cannot act for cluster "{cluster}"')
    raise _wrong_purpose(record, "register a cluster")


def check_agents_door(record: CertificateRecord) -> None:
    """Raises ForbiddenError when the holder has nothing to ask there, whatever he asks."""
    if record.purpose is Purpose.LOGIN:
        raise _wrong_purpose(record, "ask anything at the agents' door")


def check_greeting(record: CertificateRecord) -> None:
    """Raises ForbiddenError unless the holder may ask who this hub is."""
    if record.purpose is Purpose.RECOVERY:
        raise _wrong_purpose(record, "do anything but recover")


def recovering_agent(record: CertificateRecord) -> tuple[ClusterName, AgentId]:
    """Cluster and agent of a recovery certificate. Raises ForbiddenError when this certificate is none."""
    if record.purpose is not Purpose.RECOVERY or record.cluster is None or record.agent is None:
        raise _wrong_purpose(record, "recover")
    return record.cluster, record.agent


def session_holder(record: CertificateRecord) -> tuple[ClusterName, AgentId]:
    """Cluster and agent of a session. Raises ForbiddenError when this certificate opens none."""
    if record.purpose is not Purpose.AGENT or record.cluster is None or record.agent is None:
        raise _wrong_purpose(record, "open a session")
    return record.cluster, record.agent


def check_request_view(record: CertificateRecord, *, requester: str, cluster: str) -> None:
    """Raises ForbiddenError unless the holder may follow a request that `requester` made for `cluster`."""
    if record.purpose in (Purpose.BOOTSTRAP, Purpose.AGENT) and (record.user == requester or record.cluster == cluster != ""):
        return
    raise ForbiddenError("this certificate request belongs to another requester")


def check_recovery_view(record: CertificateRecord, *, requester: str, cluster: str) -> None:
    """Raises ForbiddenError unless the holder may follow, while it recovers, a request that `requester` made."""
    if record.purpose is not Purpose.RECOVERY or record.user != requester or record.cluster != cluster:
        raise ForbiddenError("this certificate request belongs to another requester")


def check_operator(record: CertificateRecord) -> None:
    """Raises ForbiddenError unless the holder is an operator."""
    if record.purpose is not Purpose.OPERATOR:
        raise _wrong_purpose(record, "act as an operator")


def counted_names(record: CertificateRecord) -> tuple[str, tuple[str, ...]]:
    """User and groups of the holder on the HTTPS door, as far as they are his to have.

    An add-on's registration may name anybody: only names that begin with the add-on's own group count, whole parts of it. The
    operators' group counts in an operator's certificate alone. Raises UnauthorizedError: this certificate names nobody there.
    """
    if record.purpose in (Purpose.OPERATOR, Purpose.LOGIN):
        return record.user, record.groups
    if record.purpose is Purpose.ADDON and record.cluster is not None and record.addon is not None:
        own = addon_group(record.cluster, record.addon)
        user = record.user if record.user.startswith(f"{own}:") else addon_user(record.cluster, record.addon, record.addon)
        return user, tuple(group for group in record.groups if group == own or group.startswith(f"{own}:"))
    if record.purpose in (Purpose.AGENT, Purpose.BOOTSTRAP):
        return record.user, tuple(group for group in record.groups if group != OPERATOR_GROUP)
    raise UnauthorizedError(f'a certificate of purpose "{record.purpose}" opens nothing here')


def _wrong_purpose(record: CertificateRecord, what: str) -> ForbiddenError:
    return ForbiddenError(f'a certificate of purpose "{record.purpose}" cannot {what}')
