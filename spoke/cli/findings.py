"""Results of the checks of `spoke doctor`, with the advice for a failure."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from machinery.errors import DenialCause, ForbiddenError
from machinery.identity import RECOVERY_USER_PREFIX, ClusterName
from spoke.credentials.kubeconfigs import HubConnection
from spoke.domain.hubs import HubAcceptance
from spoke.ports.hub import HubInfo

CLOCKS_APART = timedelta(seconds=5)
"""Clocks of agent and hub count as in sync up to this difference (OCM's bound)."""
NEW_BOOTSTRAP = "make one with `hubctl create bootstrap-kubeconfig` and put it in its place; the agent then continues"
ACCEPT = "accept the cluster on the hub: hubctl accept {}"
DENIED = "see on the hub why (hubctl describe cluster {0}); if it may join: hubctl accept {0}, the agent then returns"


@dataclass(frozen=True, slots=True)
class DoctorStep:
    name: str
    ok: bool
    said: str
    advice: str = ""


def passed(name: str, said: str) -> DoctorStep:
    return DoctorStep(name, ok=True, said=said)


def failed(name: str, said: str, advice: str) -> DoctorStep:
    return DoctorStep(name, ok=False, said=said, advice=advice)


def met_hub(info: HubInfo, connection: HubConnection, now: datetime) -> DoctorStep:
    if info.hub_id and info.hub_id != connection.hub_id:
        said = f"another hub answers: its id is {info.hub_id}, the kubeconfig is for {connection.hub_id}"
        return failed("hub", said, NEW_BOOTSTRAP)
    apart = info.time - now
    if abs(apart) > CLOCKS_APART:
        ahead = "ahead of" if apart > timedelta() else "behind"
        said = f"it answers, but its clock is {abs(apart).total_seconds():.0f} s {ahead} this machine's"
        return failed("hub", said, "set the clocks: certificates and leases are judged by time")
    return passed("hub", f"it answers, version {info.version or 'unknown'}, and takes this credential")


def forbidden(error: ForbiddenError, connection: HubConnection) -> DoctorStep:
    """Return the result of the check for a hub that answers with Forbidden.

    A hub gives this answer if the cluster is denied, and to a valid recovery certificate. Otherwise the answer shows that the
    agent uses the wrong credential.
    """
    if error.denial_cause is DenialCause.CLUSTER_DENIED:
        return failed("hub", error.message, DENIED.format("NAME"))
    if connection.chain and connection.certificate.subject.common_name.startswith(RECOVERY_USER_PREFIX):
        return passed("hub", f"it knows this credential: {error.message}")
    return failed("hub", error.message, "see at the hub what this credential is for: hubctl diagnose cluster NAME")


def accepted(cluster: ClusterName, acceptance: HubAcceptance) -> DoctorStep:
    if acceptance is HubAcceptance.DENIED:
        return failed("acceptance", f'the hub denies cluster "{cluster}", which it accepted before', DENIED.format(cluster))
    if acceptance is HubAcceptance.WAITING:
        return failed("acceptance", f'the hub has not accepted cluster "{cluster}" yet', ACCEPT.format(cluster))
    return passed("acceptance", f'the hub has accepted cluster "{cluster}"')


def advice_on(text: str) -> str:
    if "was denied" in text:
        return "see on the hub why (hubctl get csr); if it may join: hubctl accept NAME, the agent then asks again"
    if "is denied" in text:
        return DENIED.format("NAME")
    if "accept" in text:
        return ACCEPT.format("NAME")
    return "approve its request on the hub: hubctl get csr" if "approved" in text else "its log says more"


def words_of(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "no answer in time"
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
