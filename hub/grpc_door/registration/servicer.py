"""The Registration service: registers clusters, issues their certificates, and serves the calls of registered agents."""

from collections.abc import AsyncIterator
from datetime import UTC, timedelta
from typing import Any

from hub.access.rules import (
    check_hub_reader,
    check_recovery_view,
    check_registration,
    check_request_view,
    recovering_agent,
    session_holder,
)
from hub.api.certificateauthorities.authority import checked_fingerprints
from hub.api.certificates import CertificateRecord, Purpose
from hub.api.certificatesigningrequests import AddOnRequest, Submission
from hub.api.managedclusters import admission
from hub.api.managedclusters.availability import Departure
from hub.api.managedclusters.cluster import Acceptance, ClientConfig, JoinRequest
from hub.grpc_door.messages import decoded_duration
from hub.grpc_door.registration.csr_follower import CSRFollower
from hub.grpc_door.session.calls import open_call
from hub.grpc_door.session.context import DoorContext
from hub.registry import deletion, owners, recovery
from hub.registry.certificatesigningrequests.submission import submit
from hub.registry.managedclusteraddons import service as addons
from hub.registry.managedclusters import actions, service as clusters
from machinery.errors import AlreadyExistsError, ForbiddenError, InvalidError, UnauthorizedError
from machinery.identity import AddOnName, AgentId, ClusterName, HubId, agent_id, cluster_name
from machinery.product import version
from machinery.wire.registration.v1 import registration_pb2 as wire
from machinery.wire.registration.v1.registration_pb2_grpc import RegistrationServicer

DEFAULT_LIFETIME = timedelta(hours=1)
SHORTEST_LIFETIME = timedelta(minutes=10)
LONGEST_LIFETIME = timedelta(days=366)
"""Limits of the lifetime of add-on tokens: the minimum of Kubernetes, and the time for which the hub keeps an old signing
key."""
_ACCEPTANCES = {
    Acceptance.ABSENT: wire.GetHubResponse.ACCEPTANCE_UNSPECIFIED,
    Acceptance.WAITING: wire.GetHubResponse.ACCEPTANCE_WAITING,
    Acceptance.ACCEPTED: wire.GetHubResponse.ACCEPTANCE_ACCEPTED,
    Acceptance.DENIED: wire.GetHubResponse.ACCEPTANCE_DENIED,
}


class RegistrationService(RegistrationServicer):
    """Each method authenticates, authorizes, decodes, calls one use case, and encodes the answer.

    Method names are those of the protocol. RegistrationInterceptor turns errors into statuses.
    """

    def __init__(self, parts: DoorContext) -> None:
        self._parts = parts
        self._attributes = parts.attributes
        self.follower = CSRFollower(parts)

    async def GetHub(self, request: wire.GetHubRequest, context: Any) -> wire.GetHubResponse:  # noqa: N802 - see the class
        parts = self._parts
        async with open_call(parts, context, self._attributes.hub(), flow=context.peer()) as (_, record):
            check_hub_reader(record)
            answer = wire.GetHubResponse(hub_id=parts.hub_id, version=version(), trust_bundle=parts.issuer.trust_bundle)
            answer.hub_time.FromDatetime(parts.clock.now())
            answer.attestation_audience = await parts.attestor.audience(record)
            if request.with_acceptance and record.purpose is Purpose.AGENT and record.cluster is not None:
                answer.acceptance = _ACCEPTANCES[await parts.store.read(clusters.acceptance, record.cluster)]
            return answer

    async def EnsureCluster(  # noqa: N802 - see the class
        self, request: wire.EnsureClusterRequest, context: Any
    ) -> wire.EnsureClusterResponse:
        parts = self._parts
        asked = self._attributes.cluster("create", "EnsureCluster", request.cluster_name)
        async with open_call(parts, context, asked, flow=request.cluster_name) as (call, record):
            name = cluster_name(request.cluster_name)
            check_registration(record, name)
            joining = JoinRequest(
                name=name,
                cluster_uid=request.cluster_uid,
                agent=agent_id(request.agent_id) if request.agent_id else None,
                client_configs=tuple(ClientConfig(config.url, config.ca_bundle) for config in request.client_configs),
                annotations=dict(request.annotations),
                labels=admission.permitted_join_labels(request.labels, parts.join_labels),
                credential=record.credential if record.purpose is Purpose.BOOTSTRAP else None,
                attested=await parts.attestor.attested(record, name, request.attestation),
            )
            try:
                joined = await parts.store.run(
                    clusters.ensure, joining, record.user, lease_duration=parts.default_lease_duration
                )
            except AlreadyExistsError:
                await parts.store.run(clusters.note_duplicate, joining, record.user)
                raise
            call.created = joined.created
            return wire.EnsureClusterResponse(created=joined.created, accepted=joined.accepted, uid=joined.uid)

    async def SubmitRequest(  # noqa: N802 - see the class
        self, request: wire.SubmitRequestRequest, context: Any
    ) -> wire.SubmitRequestResponse:
        parts, asked = self._parts, self._attributes.request("create", "SubmitRequest")
        async with open_call(parts, context, asked, flow=request.cluster_name) as (call, record):
            name = cluster_name(request.cluster_name)
            check_registration(record, name)
            of = request.addon if request.HasField("addon") else None
            addon = AddOnRequest(AddOnName(of.addon_name), of.signer_name) if of is not None else None
            attested = await parts.attestor.attested(record, name, request.attestation)
            submission = _submission(request, record, addon=addon, attested=attested)
            call.made, call.created = await parts.store.run(submit, submission), True
            return wire.SubmitRequestResponse(name=call.made)

    async def FollowRequest(  # noqa: N802 - see the class
        self, request: wire.FollowRequestRequest, context: Any
    ) -> AsyncIterator[wire.FollowRequestResponse]:
        asked = self._attributes.request("watch", "FollowRequest", request.name)
        async with open_call(self._parts, context, asked) as (call, _):
            async for answer in self.follower.follow(request.name, call, check_request_view):
                yield answer

    async def Recover(  # noqa: N802 - see the class
        self, request: wire.RecoverRequest, context: Any
    ) -> AsyncIterator[wire.FollowRequestResponse]:
        parts, asked = self._parts, self._attributes.request("create", "Recover")

        async def readopt(shown: bytes) -> None:
            cluster, agent = cluster_name(request.cluster_name), agent_id(request.agent_id)
            returning = recovery.Returning(shown, cluster, agent, request.cluster_uid, parts.default_lease_duration)
            await parts.store.run(recovery.readopt, returning)

        async with open_call(parts, context, asked, readopt=readopt) as (call, record):
            recovering_agent(record)
            async with call.seat(request.cluster_name):
                submission = _submission(request, await parts.peers.identify(call.shown))
                call.made = await parts.store.run(recovery.recover, submission, unattended=parts.unattended_recovery)
            async for answer in self.follower.follow(call.made, call, check_recovery_view):
                yield answer

    async def StandBy(self, request: wire.StandByRequest, context: Any) -> wire.StandByResponse:  # noqa: N802 - see the class
        parts = self._parts
        asked = self._attributes.cluster("patch", "StandBy", request.cluster_name, "status")
        async with open_call(parts, context, asked, flow=request.cluster_name) as (_, record):
            cluster = _own_cluster(record, request.cluster_name, request.agent_id)
            trusted = checked_fingerprints(request.trusted_authorities)
            departure = Departure(cluster, HubId(request.owner_hub_id), request.epoch, record.agent)
            state = await parts.store.run(owners.stand_by, departure, request.cluster_uid, parts.hub_id, record.user)
            parts.trust_push.note(record, trusted)
            answer = wire.StandByResponse(accepted=state.accepted, epoch=state.epoch, trust_bundle=parts.issuer.trust_bundle)
            answer.hub_time.FromDatetime(parts.clock.now())
            answer.again_after.FromTimedelta(parts.standby_interval)
            order, now = await parts.store.read(actions.wanted_renewal, cluster)
            if (within := parts.renew_within(record, order, now)) is not None:
                answer.renew_within.FromTimedelta(within)
            return answer

    async def Leave(self, request: wire.LeaveRequest, context: Any) -> wire.LeaveResponse:  # noqa: N802 - see the class
        parts, asked = self._parts, self._attributes.cluster("delete", "Leave", request.cluster_name)
        try:
            async with open_call(parts, context, asked, flow=request.cluster_name) as (_, record):
                if record.purpose is Purpose.BOOTSTRAP:
                    name, agent = cluster_name(request.cluster_name), agent_id(request.agent_id)
                    check_registration(record, name)
                    withdrawn = await parts.store.run(deletion.withdraw, name, agent, request.cluster_uid, record)
                    return wire.LeaveResponse(left=withdrawn.known, cluster_stays=withdrawn.cluster_stays)
                cluster = _own_cluster(record, request.cluster_name, request.agent_id)
                return wire.LeaveResponse(left=await parts.store.run(deletion.leave, cluster, request.cluster_uid, record.user))
        except UnauthorizedError:
            former = await parts.peers.former(parts.shown(context))
            if not deletion.has_left(former, request.cluster_name):
                raise
            return wire.LeaveResponse(left=False)  # an earlier Leave revoked the certificate, and its answer was lost

    async def IssueAddOnToken(  # noqa: N802 - see the class
        self, request: wire.IssueAddOnTokenRequest, context: Any
    ) -> wire.IssueAddOnTokenResponse:
        asked = self._attributes.addon_token(request.cluster_name, f"{request.addon_name}-agent")
        async with open_call(self._parts, context, asked, flow=request.cluster_name) as (_, record):
            return await issue_addon_token(self._parts, request, record)


async def issue_addon_token(
    parts: DoorContext, request: wire.IssueAddOnTokenRequest, record: CertificateRecord
) -> wire.IssueAddOnTokenResponse:
    """Issues a ServiceAccount token of an add-on, like TokenRequest of the HTTPS door, for agents that use only gRPC.

    Raises ForbiddenError for another cluster's agent, InvalidError for an invalid name or lifetime, and the errors of
    `addons.token_account`.
    """
    cluster, addon = cluster_name(request.cluster_name), AddOnName(request.addon_name)
    holder, _ = session_holder(record)
    if holder != cluster:
        raise ForbiddenError(f'this certificate is for cluster "{holder}" and cannot act for cluster "{cluster}"')
    asked = decoded_duration(request.requested_duration) if request.HasField("requested_duration") else DEFAULT_LIFETIME
    if asked < SHORTEST_LIFETIME:
        shortest, short = SHORTEST_LIFETIME.total_seconds(), asked.total_seconds()
        raise InvalidError(f"requested_duration is {short:.0f} s, but a token is valid for at least {shortest:.0f} s")
    account = await parts.store.read(addons.token_account, cluster, addon)
    begin = parts.clock.now().replace(microsecond=0)
    end = begin + min(asked, LONGEST_LIFETIME)
    token = parts.tokens(account.key.namespace, account.key.name, account.uid, begin=begin, end=end)
    answer = wire.IssueAddOnTokenResponse(token=token)
    answer.expires_at.FromDatetime(end.astimezone(UTC))
    return answer


def _own_cluster(record: CertificateRecord, cluster: str, agent: str) -> ClusterName:
    """Returns the certificate's cluster. Raises ForbiddenError if the certificate is of another cluster or agent."""
    own: tuple[ClusterName, AgentId] = session_holder(record)
    if own != (cluster, agent):
        raise ForbiddenError(
            f'this certificate is of agent "{own[1]}" of cluster "{own[0]}" and cannot speak for agent "{agent}" of "{cluster}"'
        )
    return own[0]


def _submission(
    request: wire.SubmitRequestRequest | wire.RecoverRequest, requester: CertificateRecord, **fields: Any
) -> Submission:
    """Decodes the certificate request in a SubmitRequest or Recover call. Raises InvalidError."""
    asked = decoded_duration(request.requested_duration) if request.HasField("requested_duration") else None
    cluster, agent = cluster_name(request.cluster_name), agent_id(request.agent_id)
    return Submission(cluster, agent, request.request, requester, request.cluster_uid, asked, **fields)
