"""Results of the checks of `spoke doctor`, with the advice for a failure."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from machinery.errors import DenialCause, ForbiddenError
from machinery.identity import RECOVERY_USER_PREFIX, ClusterName
from machinery.meta.timestamps import format_time
from spoke.credentials.kubeconfigs import HubConnection, stored_texts
from spoke.ports.hub import HubAcceptance, HubInfo

CLOCKS_APART = timedelta(seconds=5)
"""Largest clock difference between agent and hub that counts as in sync (OCM's bound)."""
NEW_BOOTSTRAP = "make one with `hubctl create bootstrap-kubeconfig` and put it in its place; the agent goes on by itself"
ACCEPT = "accept the cluster on the hub: hubctl accept {}"
DENIED = "see on the hub why (hubctl describe cluster {0}); if it may join: hubctl accept {0}, and the agent returns by itself"
MAY_NOT = "see at the hub what this credential is for: hubctl diagnose cluster NAME"


@dataclass(frozen=True, slots=True)
class DoctorStep:
    """The result of one check."""

    name: str
    ok: bool
    said: str
    advice: str = ""
    """What to do when the check has failed."""


def met_hub(info: HubInfo, connection: HubConnection, now: datetime) -> DoctorStep:
    if info.hub_id and info.hub_id != connection.hub_id:
        said = f"another hub answers: its id is {info.hub_id}, the kubeconfig is for {connection.hub_id}"
        return DoctorStep("hub", ok=False, said=said, advice=NEW_BOOTSTRAP)
    apart = info.time - now
    if abs(apart) > CLOCKS_APART:
        ahead = "ahead of" if apart > timedelta() else "behind"
        said = f"it answers, but its clock is {abs(apart).total_seconds():.0f} s {ahead} this machine's"
        return DoctorStep("hub", ok=False, said=said, advice="set the clocks: certificates and leases are judged by time")
    return DoctorStep("hub", ok=True, said=f"it answers, version {info.version or 'not told'}, and takes this credential")


def forbidden(error: ForbiddenError, connection: HubConnection) -> DoctorStep:
    """A hub answers a valid recovery certificate with Forbidden here. Any other credential that gets it is the wrong one."""
    if error.verdict is DenialCause.CLUSTER_DENIED:
        return DoctorStep("hub", ok=False, said=error.message, advice=DENIED.format("NAME"))
    if connection.chain and connection.certificate.subject.common_name.startswith(RECOVERY_USER_PREFIX):
        return DoctorStep("hub", ok=True, said=f"it knows this credential: {error.message}")
    return DoctorStep("hub", ok=False, said=error.message, advice=MAY_NOT)


def accepted(cluster: ClusterName, acceptance: HubAcceptance) -> DoctorStep:
    name = "acceptance"
    if acceptance is HubAcceptance.DENIED:
        said = f'the hub denies cluster "{cluster}", which it accepted before'
        return DoctorStep(name, ok=False, said=said, advice=DENIED.format(cluster))
    if acceptance is HubAcceptance.WAITING:
        said = f'the hub has not accepted cluster "{cluster}" yet'
        return DoctorStep(name, ok=False, said=said, advice=ACCEPT.format(cluster))
    return DoctorStep(name, ok=True, said=f'the hub has accepted cluster "{cluster}"')


def advice_on(text: str) -> str:
    if "was denied" in text:
        return "see on the hub why (hubctl get csr); if it may join: hubctl accept NAME, and the agent asks again by itself"
    if "is denied" in text:
        return DENIED.format("NAME")
    if "accept" in text:
        return ACCEPT.format("NAME")
    return "approve its request on the hub: hubctl get csr" if "approved" in text else "its log says more"


def stored_credential(contents: Mapping[str, bytes], connection: HubConnection) -> DoctorStep:
    cluster, agent = stored_texts(contents)
    until = format_time(connection.certificate.not_after)
    return DoctorStep("stored credential", ok=True, said=f'agent "{agent}" of cluster "{cluster}", until {until}')


def words_of(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "no answer in time"
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
