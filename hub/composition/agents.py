"""The gRPC door of agents, with the path of heartbeats to the database."""

from dataclasses import dataclass

from hub.composition.access import Access
from hub.composition.attestation import attestor_of
from hub.composition.certificates import CertificateSection
from hub.composition.context import BuildContext
from hub.composition.resources import Resources
from hub.grpc_door.calls import QUIET, Gate
from hub.grpc_door.server import RpcDoor
from hub.grpc_door.session.acknowledgements import Tempo
from hub.grpc_door.session.changes import ChangeSubscriptions
from hub.grpc_door.session.clock_reports import Clocks
from hub.grpc_door.session.context import DoorContext, HubIdentity
from hub.grpc_door.session.drain import Age, Cordon
from hub.grpc_door.session.sessions import Sessions
from hub.grpc_door.session.trust_bundle_push import TrustBundlePush
from hub.heartbeat import BeatBuffer, HeartbeatCoverage
from hub.https_door.callers.authenticator_chain import account_tokens
from machinery.lifecycle.health import READINESS
from machinery.product import version


@dataclass(frozen=True, slots=True)
class AgentsDoor:
    """`hearing`: since when heartbeats could be stored, which decides whether silence counts."""

    door: RpcDoor
    parts: DoorContext
    hearing: HeartbeatCoverage
    clocks: Clocks
    trusting: TrustBundlePush


async def build_agents_door(
    context: BuildContext, resources: Resources, certificates: CertificateSection, access: Access
) -> AgentsDoor:
    settings, clock, server = context.settings, context.clock, context.server
    store, issuer, hub_id = resources.store, resources.issuer, resources.hub_id
    beats = BeatBuffer(store, clock, settings.flush_window)
    hearing = HeartbeatCoverage(store, clock, resources.replica, lambda: beats.storing)
    await hearing.mark()
    sessions = Sessions(store, resources.replica)
    cordon = Cordon(settings.connection_age_grace, sessions.all)
    clocks = Clocks(store, settings.clock_skew_limit)
    trusting = TrustBundlePush(store, lambda: issuer.trust_bundle, standing=lambda: issuer.standing.authorities)
    parts = DoorContext(
        hub=HubIdentity(hub_id, version(), issuer),
        store=store,
        clock=clock,
        peers=access.peers,
        beats=beats,
        feed=ChangeSubscriptions(store),
        sessions=sessions,
        cordon=cordon,
        clocks=clocks,
        gate=Gate(clock, min(QUIET, settings.shutdown_grace)),
        auditor=access.auditor,
        limits=access.limits,
        tempo=Tempo(settings.beat_interval, settings.beats_per_second, sessions.__len__),
        default_lease_duration=settings.default_lease_duration,
        join_labels=settings.join_labels,
        standby_interval=settings.standby_interval,
        age=Age(settings.connection_age, settings.connection_age_grace),
        group_suffix=settings.api_group_suffix,
        tokens=account_tokens(hub_id, resources.token_keys),
        unattended_recovery=settings.recovery == "automatic",
        authorities=lambda: issuer.standing.authorities,
        trusting=trusting,
        attestor=attestor_of(settings, store, hub_id, clock),
    )
    door = RpcDoor(settings.grpc_listen.host, settings.grpc_listen.port, certificates.doors.serving, parts)
    server.health.add("drained", cordon.ready, endpoints=READINESS)
    server.flush.add("heartbeats", beats.flush)
    server.add_door(door)
    return AgentsDoor(door, parts, hearing, clocks, trusting)
