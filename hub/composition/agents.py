"""The agents' door: gRPC, with heartbeats on their way to the database."""

from dataclasses import dataclass

from hub.apiserver.entrance import account_tokens
from hub.attesting import attestor_of
from hub.composition.access import Access
from hub.composition.certificates import Certificates
from hub.composition.context import BuildContext
from hub.composition.resources import Resources
from hub.heartbeat import BeatBuffer, Hearing
from hub.rpc.aging import Age
from hub.rpc.clocks import Clocks
from hub.rpc.cordon import Cordon
from hub.rpc.door import RpcDoor
from hub.rpc.feed import Feed
from hub.rpc.gate import QUIET, Gate
from hub.rpc.parts import Hub, Parts
from hub.rpc.sessions import Sessions
from hub.rpc.tempo import Tempo
from hub.rpc.trusting import Trusting
from machinery.lifecycle.health import READINESS
from machinery.product import version


@dataclass(frozen=True, slots=True)
class AgentsDoor:
    """`hearing`: since when heartbeats could be stored, which decides whose silence counts."""

    door: RpcDoor
    parts: Parts
    hearing: Hearing
    clocks: Clocks
    trusting: Trusting


async def build_agents_door(
    context: BuildContext, resources: Resources, certificates: Certificates, access: Access
) -> AgentsDoor:
    settings, clock, server = context.settings, context.clock, context.server
    store, issuer, hub_id = resources.store, resources.issuer, resources.hub_id
    beats = BeatBuffer(store, clock, settings.flush_window)
    hearing = Hearing(store, clock, resources.replica, lambda: beats.storing)
    await hearing.mark()
    sessions = Sessions(store, resources.replica)
    cordon = Cordon(settings.connection_age_grace, sessions.all)
    clocks = Clocks(store, settings.clock_skew_limit)
    trusting = Trusting(store, lambda: issuer.trust_bundle, standing=lambda: issuer.standing.authorities)
    parts = Parts(
        hub=Hub(hub_id, version(), issuer),
        store=store,
        clock=clock,
        peers=access.peers,
        beats=beats,
        feed=Feed(store),
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
