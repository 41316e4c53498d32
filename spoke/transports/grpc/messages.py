"""Converts between protobuf messages and the agent's values."""

from collections.abc import Sequence
from datetime import UTC, timedelta
from typing import TypedDict

from grpc import aio

from machinery.identity import AddOnName, HubId
from machinery.meta.conditions import Condition
from machinery.observability import tracing
from machinery.wire.registration.v1 import registration_pb2 as registration
from machinery.wire.session.v1 import session_pb2 as session
from spoke.domain.addon import CSR, KUBE_SIGNER, AddOn, AddOnRegistration
from spoke.domain.hubs import HubState, ListedHub
from spoke.domain.names import AgentIdentity
from spoke.domain.report import AgentEvent, ClusterReport, ExternalEndpoint, ManagedNamespace
from spoke.domain.schedule import RequestedRenewal
from spoke.ports.hub import CSRState, Desired, Drain, StandbyAnswer

_STATES = {
    registration.FollowRequestResponse.STATE_PENDING: "pending",
    registration.FollowRequestResponse.STATE_APPROVED: "approved",
    registration.FollowRequestResponse.STATE_DENIED: "denied",
    registration.FollowRequestResponse.STATE_FAILED: "failed",
    registration.FollowRequestResponse.STATE_ISSUED: "issued",
}
_HUB_STATES = {
    HubState.READY: session.Hub.STATE_READY,
    HubState.NOT_ACCEPTED: session.Hub.STATE_NOT_ACCEPTED,
    HubState.REGISTERING: session.Hub.STATE_REGISTERING,
    HubState.DENIED: session.Hub.STATE_DENIED,
    HubState.UNREACHABLE: session.Hub.STATE_UNREACHABLE,
    HubState.REVOKED: session.Hub.STATE_LOST,
    HubState.LOST: session.Hub.STATE_LOST,
}
VERDICTS = {None: session.VERDICT_UNSPECIFIED, True: session.VERDICT_AVAILABLE, False: session.VERDICT_UNAVAILABLE}
"""Maps the agent's verdict to its protobuf enum. True: the API server answers; False: it does not; None: unknown."""
DEFAULT_LEASE = timedelta(seconds=60)


class _Named(TypedDict):
    cluster_name: str
    agent_id: str
    cluster_uid: str


def named(agent: AgentIdentity) -> _Named:
    return {"cluster_name": agent.cluster, "agent_id": agent.agent, "cluster_uid": agent.cluster_uid}


def carried() -> aio.Metadata | None:
    """Return the trace context for the hub as gRPC metadata; None if there is no trace."""
    sent = tracing.carried()
    return aio.Metadata(*sent) if sent else None


def request_state(answer: registration.FollowRequestResponse) -> CSRState | None:
    """Return the state of a request; None if this release of the agent does not know the state."""
    state = _STATES.get(answer.state)
    if state is None:
        return None
    return CSRState(
        state=state,
        reason=answer.reason,
        message=answer.message,
        certificate=answer.certificate,
        recovery_certificate=answer.recovery_certificate,
        hub_time=answer.hub_time.ToDatetime(UTC) if answer.HasField("hub_time") else None,
    )


def desired_of(message: session.Desired) -> Desired:
    lease = message.lease_duration.ToTimedelta() if message.HasField("lease_duration") else timedelta()
    return Desired(
        accepted=message.accepted,
        lease_duration=lease or DEFAULT_LEASE,
        addons=tuple(_addon(addon) for addon in message.addons),
        deleting=message.deleting,
        renewal=_renewal(message),
        namespaces=tuple(ManagedNamespace(entry.name, entry.cluster_set) for entry in message.managed_namespaces),
        second_agent=message.second_agent,
    )


def _renewal(message: session.Desired) -> RequestedRenewal | None:
    within = message.renew_within.ToTimedelta() if message.HasField("renew_within") else None
    before = message.renew_addons_before.ToDatetime(UTC) if message.HasField("renew_addons_before") else None
    return RequestedRenewal(within, before) if within is not None or before is not None else None


def _addon(message: session.AddOn) -> AddOn:
    return AddOn(
        name=AddOnName(message.name),
        install_namespace=message.install_namespace,
        hosting_cluster_name=message.hosting_cluster_name,
        health_check_mode=message.health_check_mode or "Lease",
        registrations=tuple(
            AddOnRegistration(
                signer_name=entry.signer_name,
                user=entry.user,
                groups=tuple(entry.groups),
                organization_units=tuple(entry.organization_units),
                driver=(entry.driver or CSR) if entry.signer_name == KUBE_SIGNER else "",
            )
            for entry in message.registrations
        ),
        deleting=message.deleting,
        account_uid=message.token_account_uid,
    )


def drain_of(message: session.Drain) -> Drain:
    after = message.reconnect_after.ToTimedelta() if message.HasField("reconnect_after") else timedelta()
    return Drain(reconnect_after=after, reason=message.reason, target=HubId(message.target_hub_id) or None)


def hubs_of(hubs: Sequence[ListedHub]) -> session.Hubs:
    listed = session.Hubs()
    for hub in hubs:
        entry = listed.hubs.add(hub_id=hub.hub_id, name=hub.name, url=hub.url, state=_HUB_STATES[hub.state])
        if hub.credential_ends_at is not None:
            entry.credential_ends_at.FromDatetime(hub.credential_ends_at)
    return listed


def standby_answer(answer: registration.StandByResponse) -> StandbyAnswer:
    return StandbyAnswer(
        accepted=answer.accepted,
        epoch=answer.epoch,
        time=answer.hub_time.ToDatetime(UTC),
        trust_bundle=answer.trust_bundle,
        again_after=answer.again_after.ToTimedelta() if answer.HasField("again_after") else None,
        renew_within=answer.renew_within.ToTimedelta() if answer.HasField("renew_within") else None,
    )


def encode_report(report: ClusterReport, sequence: int) -> session.StatusReport:
    return session.StatusReport(
        sequence=sequence,
        conditions=conditions_of(report.conditions),
        capacity=dict(report.capacity),
        allocatable=dict(report.allocatable),
        kubernetes_version=report.kubernetes_version,
        claims=[session.Claim(name=claim.name, value=claim.value) for claim in report.claims],
        complete=report.complete,
        node_count=report.node_count,
        client_configs=[session.ClientConfig(url=endpoint.url, ca_bundle=endpoint.ca_bundle) for endpoint in report.endpoints],
        managed_namespaces=[
            session.ManagedNamespace(
                name=each.namespace.name, cluster_set=each.namespace.cluster_set, conditions=conditions_of([each.condition])
            )
            for each in report.namespaces
        ],
    )


def event_of(news: AgentEvent) -> session.Event:
    return session.Event(type=news.type, reason=news.reason, message=news.message, addon_name=news.addon)


def conditions_of(conditions: Sequence[Condition]) -> list[session.Condition]:
    return [
        session.Condition(type=entry.type, status=entry.status, reason=entry.reason, message=entry.message)
        for entry in conditions
    ]


def client_configs(endpoints: Sequence[ExternalEndpoint]) -> list[registration.ClientConfig]:
    return [registration.ClientConfig(url=endpoint.url, ca_bundle=endpoint.ca_bundle) for endpoint in endpoints]
