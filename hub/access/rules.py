"""Permissions of a certificate by the purpose in its record. Pure functions.

Names are compared exactly. Exception: an add-on may use any name that begins with its group and a colon (`counted_names`).

purpose      Registration of a cluster          Session         the HTTPS door
BOOTSTRAP    its cluster (unbound: any)         no              `hub.access.rights`, and roles
AGENT        its own cluster                    its own         `hub.access.rights`, and roles
OPERATOR     no                                 no              roles; system:masters: everything
LOGIN        nothing, not even the hub's id     no              roles, by the names that the hub has put into its record
ADDON        no                                 no              roles
RECOVERY     only Recover, for its own agent    no              no
SERVING      nothing
"""

from hub.api.certificates import CertificateRecord, Purpose
from machinery.errors import ForbiddenError, UnauthorizedError
from machinery.identity import OPERATOR_GROUP, AgentId, ClusterName, addon_group, addon_user


def check_registration(record: CertificateRecord, cluster: ClusterName) -> None:
    """Raises ForbiddenError unless the holder may register `cluster` or renew its certificate."""
    if record.purpose is Purpose.BOOTSTRAP and record.cluster in (None, cluster):
        return
    if record.purpose is Purpose.AGENT and record.cluster == cluster:
        return
    if record.purpose in (Purpose.BOOTSTRAP, Purpose.AGENT):
        raise ForbiddenError(f'this certificate is for cluster "{record.cluster}" and cannot act for cluster "{cluster}"')
    raise _wrong_purpose(record, "register a cluster")


def check_agents_door(record: CertificateRecord) -> None:
    """Raises ForbiddenError if the holder may use no method of the gRPC door."""
    if record.purpose is Purpose.LOGIN:
        raise _wrong_purpose(record, "use the gRPC door")


def check_hub_reader(record: CertificateRecord) -> None:
    """Raises ForbiddenError unless the holder may ask for the identity of this hub."""
    if record.purpose is Purpose.RECOVERY:
        raise _wrong_purpose(record, "do anything except recover")


def recovering_agent(record: CertificateRecord) -> tuple[ClusterName, AgentId]:
    """Returns cluster and agent of a recovery certificate. Raises ForbiddenError for other certificates."""
    if record.purpose is not Purpose.RECOVERY or record.cluster is None or record.agent is None:
        raise _wrong_purpose(record, "recover")
    return record.cluster, record.agent


def session_holder(record: CertificateRecord) -> tuple[ClusterName, AgentId]:
    """Returns cluster and agent of a session. Raises ForbiddenError if the certificate cannot open one."""
    if record.purpose is not Purpose.AGENT or record.cluster is None or record.agent is None:
        raise _wrong_purpose(record, "open a session")
    return record.cluster, record.agent


def check_request_view(record: CertificateRecord, *, requester: str, cluster: str) -> None:
    """Raises ForbiddenError unless the holder may follow a certificate request that `requester` made for `cluster`."""
    if record.purpose in (Purpose.BOOTSTRAP, Purpose.AGENT) and (record.user == requester or record.cluster == cluster != ""):
        return
    raise ForbiddenError("this certificate request belongs to another requester")


def check_recovery_view(record: CertificateRecord, *, requester: str, cluster: str) -> None:
    """Raises ForbiddenError unless the holder may follow a request of `requester` for `cluster` during its recovery."""
    if record.purpose is not Purpose.RECOVERY or record.user != requester or record.cluster != cluster:
        raise ForbiddenError("this certificate request belongs to another requester")


def counted_names(record: CertificateRecord) -> tuple[str, tuple[str, ...]]:
    """Returns the user and groups with which the HTTPS door identifies the holder.

    An add-on's registration may request any name, but the door uses only the add-on's own group and names that begin with
    `<own group>:`. It uses the operators' group only from certificates of operators and logins. Raises UnauthorizedError for
    other purposes.
    """
    if record.purpose in (Purpose.OPERATOR, Purpose.LOGIN):
        return record.user, record.groups
    if record.purpose is Purpose.ADDON and record.cluster is not None and record.addon is not None:
        own = addon_group(record.cluster, record.addon)
        user = record.user if record.user.startswith(f"{own}:") else addon_user(record.cluster, record.addon, record.addon)
        return user, tuple(group for group in record.groups if group == own or group.startswith(f"{own}:"))
    if record.purpose in (Purpose.AGENT, Purpose.BOOTSTRAP):
        return record.user, tuple(group for group in record.groups if group != OPERATOR_GROUP)
    raise UnauthorizedError(f'a certificate of purpose "{record.purpose}" cannot authenticate here')


def _wrong_purpose(record: CertificateRecord, what: str) -> ForbiddenError:
    return ForbiddenError(f'a certificate of purpose "{record.purpose}" cannot {what}')
