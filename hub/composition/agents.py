"""Builds the gRPC door, with the parts that store heartbeats and sessions."""

from dataclasses import dataclass

from hub.access.attestations import Attestor
from hub.composition.core import HubCore
from hub.grpc_door.gate import QUIET, CallAttributes, Gate
from hub.grpc_door.server import RpcDoor
from hub.grpc_door.session.acknowledgements import BeatRate
from hub.grpc_door.session.changes import ChangeSubscriptions
from hub.grpc_door.session.context import DoorContext
from hub.grpc_door.session.drain import Age, Cordon
from hub.grpc_door.session.report_writer import Clocks
from hub.grpc_door.session.sessions import Sessions
from hub.grpc_door.session.trust_bundle_push import TrustBundlePush
from hub.heartbeat import BeatBuffer, HeartbeatCoverage
from hub.https_door.callers.authentication import account_tokens
from hub.metrics.doors import add_agents
from machinery.apiserver.authn.issuer_keys import HttpsDocuments
from machinery.runtime.health import READINESS


@dataclass(frozen=True, slots=True)
class AgentsDoor:
    """The gRPC door. `coverage.since` returns the time since which beats can be stored; earlier silence does not count."""

    door: RpcDoor
    parts: DoorContext
    coverage: HeartbeatCoverage


async def build_agents_door(core: HubCore) -> AgentsDoor:
    context, access, resources = core.context, core.access, core.resources
    settings, clock, store = context.settings, context.clock, resources.store
    issuer, hub_id = resources.issuer, resources.hub_id
    beats = BeatBuffer(store, clock, settings.flush_window)
    coverage = HeartbeatCoverage(store, clock, resources.replica, lambda: beats.storing)
    await coverage.mark()
    sessions = Sessions(store, resources.replica)
    parts = DoorContext(
        hub_id=hub_id,
        issuer=issuer,
        store=store,
        clock=clock,
        peers=access.peers,
        beats=beats,
        feed=ChangeSubscriptions(store),
        sessions=sessions,
        cordon=Cordon(settings.connection_age_grace, sessions.all),
        clocks=Clocks(store, settings.clock_skew_limit),
        gate=Gate(clock, min(QUIET, settings.shutdown_grace)),
        auditor=access.auditor,
        limits=access.limits,
        beat_rate=BeatRate(settings.beat_interval, settings.beats_per_second, sessions.__len__),
        default_lease_duration=settings.default_lease_duration,
        join_labels=settings.join_labels,
        standby_interval=settings.standby_interval,
        age=Age(settings.connection_age, settings.connection_age_grace),
        attributes=CallAttributes(settings.api_group_suffix),
        tokens=account_tokens(hub_id, resources.token_keys),
        unattended_recovery=settings.recovery == "automatic",
        authorities=lambda: issuer.snapshot.authorities,
        trust_push=TrustBundlePush(store, lambda: issuer.trust_bundle, authorities=lambda: issuer.snapshot.authorities),
        attestor=Attestor(store, hub_id, HttpsDocuments.with_authorities, clock, core.attestation),
    )
    door = RpcDoor(settings.grpc_listen.host, settings.grpc_listen.port, core.certificates.doors.serving, parts)
    context.server.add_door(door)
    context.server.health.add("drained", parts.cordon.ready, endpoints=READINESS)
    context.server.flush.add("heartbeats", beats.flush)
    context.add_task("heartbeats", beats.run)
    context.add_task("coverage", coverage.run)
    context.add_task("clocks", parts.clocks.run)
    context.add_task("streams", parts.feed.run)
    context.add_task("trust", parts.trust_push.run)
    context.add_task("sessions", sessions.run)
    context.add_task("cordon", parts.cordon.run)
    if not settings.is_alone:
        context.add_task("sessions elsewhere", sessions.follow_others)
    context.inspection.add("sessions", lambda: _open_sessions(parts))
    context.inspection.add("heartbeats", lambda: {"held": len(beats), "storing": beats.storing})
    add_agents(context.metrics, parts)
    return AgentsDoor(door, parts, coverage)


def _open_sessions(parts: DoorContext) -> dict[str, object]:
    counts: dict[str, object] = {"open": len(parts.sessions), "calls in flight": parts.gate.in_flight}
    return counts | {f"{each.cluster} {each.agent}": each.id for each in parts.sessions.all()}
