"""Calls of registered agents: StandBy, Leave, tokens of add-ons, and recovery after a restore of the hub."""

from datetime import UTC, timedelta

from hub.access.rules import check_registration, session_holder
from hub.api.certificateauthorities.authority import checked_fingerprints
from hub.api.certificates import CertificateRecord, Purpose
from hub.api.managedclusters.availability import Departure
from hub.grpc_door.errors import Context
from hub.grpc_door.messages import decoded_duration
from hub.grpc_door.session.calls import RpcCall
from hub.grpc_door.session.context import DoorContext
from hub.registry import deletion, owners
from hub.registry.managedclusteraddons import service as addons
from hub.registry.managedclusters import actions
from hub.registry.recovery import Returning, readopt
from machinery.errors import DenialCause, ForbiddenError, InvalidError, UnauthorizedError
from machinery.identity import AddOnName, AgentId, ClusterName, HubId, agent_id, cluster_name
from machinery.wire.registration.v1 import registration_pb2 as wire

DEFAULT_LIFETIME = timedelta(hours=1)
SHORTEST_LIFETIME = timedelta(minutes=10)
LONGEST_LIFETIME = timedelta(days=366)
"""Limits of the lifetime: the shortest is Kubernetes', the longest is the time for which an old signing key is kept."""


async def stand_by(parts: DoorContext, request: wire.StandByRequest, record: CertificateRecord) -> wire.StandByResponse:
    cluster = check_own(record, request.cluster_name, request.agent_id)
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


async def leave(parts: DoorContext, request: wire.LeaveRequest, record: CertificateRecord) -> wire.LeaveResponse:
    if record.purpose is Purpose.BOOTSTRAP:
        name, agent = cluster_name(request.cluster_name), agent_id(request.agent_id)
        check_registration(record, name)
        withdrawn = await parts.store.run(deletion.withdraw, name, agent, request.cluster_uid, record)
        return wire.LeaveResponse(left=withdrawn.known, cluster_stays=withdrawn.cluster_stays)
    cluster = check_own(record, request.cluster_name, request.agent_id)
    return wire.LeaveResponse(left=await parts.store.run(deletion.leave, cluster, request.cluster_uid, record.user))


async def check_gone(
    parts: DoorContext, context: Context, request: wire.LeaveRequest, error: UnauthorizedError
) -> wire.LeaveResponse:
    """Answers a repeated Leave: the first one revoked the certificate, but its answer was lost. Otherwise raises `error`."""
    record = await parts.peers.former(parts.shown(context))
    if not deletion.has_left(record, request.cluster_name):
        raise error
    return wire.LeaveResponse(left=False)


def check_own(record: CertificateRecord, cluster: str, agent: str) -> ClusterName:
    """Returns the cluster if the certificate is its agent's. Raises ForbiddenError."""
    own: tuple[ClusterName, AgentId] = session_holder(record)
    if own != (cluster, agent):
        raise ForbiddenError(
            f'this certificate is of agent "{own[1]}" of cluster "{own[0]}" and cannot speak for agent "{agent}" of "{cluster}"'
        )
    return own[0]


async def returning_holder(parts: DoorContext, request: wire.RecoverRequest, call: RpcCall) -> CertificateRecord:
    """Returns the record of a recovering agent; readopts a certificate lost by a restore first. Raises UnauthorizedError."""
    try:
        return await call.identify()
    except UnauthorizedError as error:
        if error.verdict is not DenialCause.CERTIFICATE_LOST:
            raise
    returning = Returning(
        parts.shown(call.context),
        cluster_name(request.cluster_name),
        agent_id(request.agent_id),
        request.cluster_uid,
        parts.default_lease_duration,
    )
    await parts.store.run(readopt, returning)
    return await call.identify()


async def issue_addon_token(
    parts: DoorContext, request: wire.IssueAddOnTokenRequest, record: CertificateRecord
) -> wire.IssueAddOnTokenResponse:
    """Issues a ServiceAccount token of an add-on, as TokenRequest of the HTTPS door does, for agents that use only gRPC.

    Raises ForbiddenError for another cluster's agent, InvalidError, the errors of `addons.token_account`.
    """
    cluster, addon = cluster_name(request.cluster_name), AddOnName(request.addon_name)
    holder, _ = session_holder(record)
    if holder != cluster:
        raise ForbiddenError(f'this certificate is for cluster "{holder}" and cannot act for cluster "{cluster}"')
    asked = decoded_duration(request.requested_duration) if request.HasField("requested_duration") else DEFAULT_LIFETIME
    if asked < SHORTEST_LIFETIME:
        shortest, short = SHORTEST_LIFETIME.total_seconds(), asked.total_seconds()
        raise InvalidError(f"a token lives {shortest:.0f} s at least, and {short:.0f} s were asked for")
    account = await parts.store.read(addons.token_account, cluster, addon)
    begin = parts.clock.now().replace(microsecond=0)
    end = begin + min(asked, LONGEST_LIFETIME)
    token = parts.tokens(account.key.namespace, account.key.name, account.uid, begin=begin, end=end)
    answer = wire.IssueAddOnTokenResponse(token=token)
    answer.expires_at.FromDatetime(end.astimezone(UTC))
    return answer
