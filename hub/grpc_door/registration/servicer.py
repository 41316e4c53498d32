"""The Registration service: registers clusters and issues their certificates."""

from collections.abc import AsyncIterator
from datetime import timedelta
from functools import partial
from typing import Any

from hub.access.rules import check_hub_reader, check_recovery_view, check_registration, check_request_view, recovering_agent
from hub.api.certificates import CertificateRecord, Purpose
from hub.api.certificatesigningrequests import AddOnRequest, Submission
from hub.api.managedclusters import admission as joinlabels
from hub.api.managedclusters.cluster import Acceptance, ClientConfig, JoinRequest
from hub.grpc_door.errors import aborting
from hub.grpc_door.messages import decoded_duration
from hub.grpc_door.registration.agent_calls import check_gone, issue_addon_token, leave, returning_holder, stand_by
from hub.grpc_door.registration.csr_follower import CSRFollower
from hub.grpc_door.session.calls import open_call, unary
from hub.grpc_door.session.context import DoorContext
from hub.registry import recovery
from hub.registry.certificatesigningrequests.submission import submit
from hub.registry.managedclusters import service as clusters
from machinery.errors import AlreadyExistsError, UnauthorizedError
from machinery.identity import AddOnName, agent_id, cluster_name
from machinery.product import version
from machinery.wire.registration.v1 import registration_pb2 as wire
from machinery.wire.registration.v1.registration_pb2_grpc import RegistrationServicer

_ACCEPTANCES = {
    Acceptance.ABSENT: wire.GetHubResponse.ACCEPTANCE_UNSPECIFIED,
    Acceptance.WAITING: wire.GetHubResponse.ACCEPTANCE_WAITING,
    Acceptance.ACCEPTED: wire.GetHubResponse.ACCEPTANCE_ACCEPTED,
    Acceptance.DENIED: wire.GetHubResponse.ACCEPTANCE_DENIED,
}


class RegistrationService(RegistrationServicer):
    """Each method authenticates, authorizes, decodes, calls one use case, and encodes the answer."""

    def __init__(self, parts: DoorContext) -> None:
        self._parts = parts
        self._attributes = parts.attributes
        self.follower = CSRFollower(parts)

    async def GetHub(self, request: wire.GetHubRequest, context: Any) -> wire.GetHubResponse:  # noqa: N802 - the method's name
        async with aborting(context):
            work = partial(self._get_hub, request)
            return await unary(self._parts, context, self._attributes.hub(), work, flow=context.peer())

    async def EnsureCluster(  # noqa: N802 - the method's name
        self, request: wire.EnsureClusterRequest, context: Any
    ) -> wire.EnsureClusterResponse:
        name, work = request.cluster_name, partial(self._ensure_cluster, request)
        async with aborting(context):
            return await unary(self._parts, context, self._attributes.cluster("create", "EnsureCluster", name), work, flow=name)

    async def SubmitRequest(  # noqa: N802 - the method's name
        self, request: wire.SubmitRequestRequest, context: Any
    ) -> wire.SubmitRequestResponse:
        work = partial(self._submit_request, request)
        async with aborting(context):
            return await unary(
                self._parts, context, self._attributes.request("create", "SubmitRequest"), work, flow=request.cluster_name
            )

    async def FollowRequest(  # noqa: N802 - the method's name
        self, request: wire.FollowRequestRequest, context: Any
    ) -> AsyncIterator[wire.FollowRequestResponse]:
        asked = self._attributes.request("watch", "FollowRequest", request.name)
        async with aborting(context), open_call(self._parts, context, asked) as call:
            async for answer in self.follower.follow(request.name, call, check_request_view):
                yield answer

    async def Recover(  # noqa: N802 - the method's name
        self, request: wire.RecoverRequest, context: Any
    ) -> AsyncIterator[wire.FollowRequestResponse]:
        async with aborting(context), open_call(self._parts, context, self._attributes.request("create", "Recover")) as call:
            recovering_agent(await returning_holder(self._parts, request, call))
            async with call.seat(request.cluster_name):
                call.made = await self._recover(request, await call.identify())
            async for answer in self.follower.follow(call.made, call, check_recovery_view):
                yield answer

    async def StandBy(self, request: wire.StandByRequest, context: Any) -> wire.StandByResponse:  # noqa: N802 - as above
        name, work = request.cluster_name, partial(stand_by, self._parts, request)
        async with aborting(context):
            asked = self._attributes.cluster("patch", "StandBy", name, "status")
            return await unary(self._parts, context, asked, work, flow=name)

    async def Leave(self, request: wire.LeaveRequest, context: Any) -> wire.LeaveResponse:  # noqa: N802 - as above
        name, work = request.cluster_name, partial(leave, self._parts, request)
        async with aborting(context):
            try:
                asked = self._attributes.cluster("delete", "Leave", name)
                return await unary(self._parts, context, asked, work, flow=name)
            except UnauthorizedError as error:
                return await check_gone(self._parts, context, request, error)

    async def IssueAddOnToken(  # noqa: N802 - the method's name
        self, request: wire.IssueAddOnTokenRequest, context: Any
    ) -> wire.IssueAddOnTokenResponse:
        name, work = request.cluster_name, partial(issue_addon_token, self._parts, request)
        async with aborting(context):
            asked = self._attributes.addon_token(name, f"{request.addon_name}-agent")
            return await unary(self._parts, context, asked, work, flow=name)

    async def _get_hub(self, request: wire.GetHubRequest, record: CertificateRecord) -> wire.GetHubResponse:
        check_hub_reader(record)
        parts = self._parts
        answer = wire.GetHubResponse(hub_id=parts.hub_id, version=version(), trust_bundle=parts.issuer.trust_bundle)
        answer.hub_time.FromDatetime(parts.clock.now())
        answer.attestation_audience = await parts.attestor.audience(record)
        if request.with_acceptance and record.purpose is Purpose.AGENT and record.cluster is not None:
            answer.acceptance = _ACCEPTANCES[await parts.store.read(clusters.acceptance, record.cluster)]
        return answer

    async def _ensure_cluster(
        self, request: wire.EnsureClusterRequest, record: CertificateRecord
    ) -> wire.EnsureClusterResponse:
        name = cluster_name(request.cluster_name)
        check_registration(record, name)
        joining = JoinRequest(
            name=name,
            cluster_uid=request.cluster_uid,
            agent=agent_id(request.agent_id) if request.agent_id else None,
            client_configs=tuple(ClientConfig(config.url, config.ca_bundle) for config in request.client_configs),
            annotations=dict(request.annotations),
            labels=joinlabels.permitted_join_labels(request.labels, self._parts.join_labels),
            credential=record.credential if record.purpose is Purpose.BOOTSTRAP else None,
            attested=await self._parts.attestor.attested(record, name, request.attestation),
        )
        try:
            joined = await self._parts.store.run(
                clusters.ensure, joining, record.user, lease_duration=self._parts.default_lease_duration
            )
        except AlreadyExistsError:
            await self._parts.store.run(clusters.note_duplicate, joining, record.user)
            raise
        return wire.EnsureClusterResponse(created=joined.created, accepted=joined.accepted, uid=joined.uid)

    async def _submit_request(
        self, request: wire.SubmitRequestRequest, record: CertificateRecord
    ) -> wire.SubmitRequestResponse:
        name = cluster_name(request.cluster_name)
        check_registration(record, name)
        addon = request.addon
        submission = Submission(
            cluster=name,
            agent=agent_id(request.agent_id),
            request=request.request,
            requester=record,
            cluster_uid=request.cluster_uid,
            requested_duration=_requested_duration(request),
            addon=AddOnRequest(AddOnName(addon.addon_name), addon.signer_name) if request.HasField("addon") else None,
            attested=await self._parts.attestor.attested(record, name, request.attestation),
        )
        return wire.SubmitRequestResponse(name=await self._parts.store.run(submit, submission))

    async def _recover(self, request: wire.RecoverRequest, record: CertificateRecord) -> str:
        asked = Submission(
            cluster=cluster_name(request.cluster_name),
            agent=agent_id(request.agent_id),
            request=request.request,
            requester=record,
            cluster_uid=request.cluster_uid,
            requested_duration=_requested_duration(request),
        )
        return await self._parts.store.run(recovery.recover, asked, unattended=self._parts.unattended_recovery)


def _requested_duration(request: wire.SubmitRequestRequest | wire.RecoverRequest) -> timedelta | None:
    return decoded_duration(request.requested_duration) if request.HasField("requested_duration") else None
