"""The composition root: the parts of a hub, each with its reason, in the order in which they are needed."""

from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import partial

import structlog

from hub import process
from hub.access import AccessLimits, Capacity, Peers
from hub.adminsecret import admin_secret
from hub.apiserver import verbosity as verbosity_page
from hub.apiserver.auditing import Auditing
from hub.apiserver.authorities import authorities_of
from hub.apiserver.credentials import HubAddress
from hub.apiserver.door import build_door
from hub.apiserver.entrance import account_tokens
from hub.apiserver.listener import HttpsDoor
from hub.apiserver.lists import RevocationLists
from hub.apiserver.login import LoginSettings
from hub.attesting import attestor_of
from hub.audit import auditing, remember_decision
from hub.auditing import database_url
from hub.authorities import rotation_of
from hub.ending import Ending, stop_times_of
from hub.foundation import laid
from hub.guests import ways_in
from hub.heartbeat import BeatBuffer, Hearing
from hub.hostcluster import HostCluster
from hub.inspection import add_checks, add_sections, checks_of, follow_orders, inspected, keep_log, verbosity_of
from hub.installation import Addresses, AdminKubeconfig, entry, lifetimes_of
from hub.issuer import IssuerChain, ServingNames
from hub.leading import leadership
from hub.metrics import Counted, add_metrics, told_metrics
from hub.ports import Store
from hub.replica import Heard, Measures, Presence, is_alone
from hub.roster import Controllers, OwnControllers
from hub.rpc.aging import Age
from hub.rpc.clocks import Clocks
from hub.rpc.cordon import Cordon
from hub.rpc.door import RpcDoor
from hub.rpc.feed import Feed as StreamFeed
from hub.rpc.gate import Gate
from hub.rpc.parts import Hub, Parts
from hub.rpc.sessions import Sessions
from hub.rpc.tempo import Tempo
from hub.rpc.trusting import Trusting
from hub.serving import doors_certificate
from hub.settings import Settings
from machinery.apiserver.draining import Draining
from machinery.apiserver.filters import Filters
from machinery.apiserver.limiting import Limiting
from machinery.apiserver.limits import REQUEST_LIMIT
from machinery.apiserver.loopback import Loopback, LoopbackClient
from machinery.apiserver.notyet import not_yet
from machinery.clock import Clock, SystemClock
from machinery.lifecycle.health import READINESS
from machinery.lifecycle.process import StopSignals
from machinery.lifecycle.server import Server
from machinery.product import version
from machinery.scheduler import Scheduler
from machinery.tasks import GuardedTasks

log = structlog.get_logger(__name__)

Extend = Callable[[Server, LoopbackClient], None]
"""Lets more take part in the hub's life: hooks, checks, doors. The client is the hub's own, for its API."""


def main(settings: Settings, extend: Extend | None = None) -> int:
    """Runs a hub until it is told to stop; the exit code. What keeps it from starting is said in one sentence."""
    return process.main(settings, lambda stack, ready: _serve(settings, stack, extend, ready))


async def _serve(  # noqa: PLR0915 - the parts in one list
    settings: Settings, stack: AsyncExitStack, extend: Extend | None, ready_to_serve: Callable[[], None]
) -> None:
    clock: Clock = SystemClock()
    lifetimes = lifetimes_of(settings)
    addresses = Addresses.of(settings)
    server = Server(clock, stop_times_of(settings), livez_grace=settings.livez_grace)

    # who may ask it to stop, from the first moment on
    stop = stack.enter_context(StopSignals())
    ending = Ending(stop.requested)
    # who may ask what it does, from the first moment on, and also when it hangs
    inspection, verbosity = inspected(settings, stack), verbosity_of(settings, stack)
    # what it counts, also while it waits for its database
    counted = await told_metrics(settings, stack)

    # what it stands on: its files, its database, its keys, its place among the replicas
    ground = await laid(settings, lifetimes, clock, stack, stop.requested)
    store, issuer, replica, hub_id = ground.store, ground.issuer, ground.replica, ground.hub_id
    files = ground.directory
    # who signs what: the hub's own CA, and operators' logins that of the cluster it runs in, where that is turned on
    host = HostCluster(settings, clock)
    signing = IssuerChain(issuer, host.issuers)

    # what both doors show to who connects
    names = ServingNames(addresses.dns_names, addresses.ip_addresses)
    shown = doors_certificate(settings, files.path, names, issuer, lifetimes=lifetimes, clock=clock)
    serving = shown.serving
    # the operator's way in
    cluster = entry(hub_id, addresses, issuer.trust_bundle, settings.api_group_suffix)
    way_in = AdminKubeconfig(files, store, signing, cluster, lifetimes=lifetimes, clock=clock)
    issuer.listen(way_in.look)
    admin = await way_in.keep()

    # who connects, by certificate: one memory for both doors
    peers = Peers(store, clock, signers=lambda: issuer.standing.authorities)
    # beats on their way to the database
    beats = BeatBuffer(store, clock, settings.flush_window)
    # which silence is the agents', and which is ours
    hearing = Hearing(store, clock, replica, lambda: beats.storing)
    await hearing.mark()
    # who did what at both doors; what was answered is remembered before the process ends
    auditor = await stack.enter_async_context(auditing(settings, store, replica, clock, on_end=ending.failed))
    # how much of it at once, at both doors
    limits = AccessLimits(clock, capacity_of(settings))
    # what agents' clocks say
    clocks = Clocks(store, settings.clock_skew_limit)
    # which agents have a session here, and whether any may
    sessions = Sessions(store, replica)
    cordon = Cordon(settings.connection_age_grace, sessions.all)
    server.health.add("drained", cordon.ready, endpoints=READINESS)
    # the door for agents
    agents = Parts(
        hub=Hub(hub_id, version(), issuer),
        store=store,
        clock=clock,
        peers=peers,
        beats=beats,
        feed=StreamFeed(store),
        sessions=sessions,
        cordon=cordon,
        clocks=clocks,
        gate=Gate(clock),
        auditor=auditor,
        limits=limits,
        tempo=Tempo(settings.beat_interval, settings.beats_per_second, sessions.__len__),
        default_lease_duration=settings.default_lease_duration,
        join_labels=settings.join_labels,
        standby_interval=settings.standby_interval,
        age=Age(settings.connection_age, settings.connection_age_grace),
        group_suffix=settings.api_group_suffix,
        tokens=account_tokens(hub_id, ground.token_keys),
        unattended_recovery=settings.recovery == "automatic",
        authorities=lambda: issuer.standing.authorities,
        trusting=(trusting := Trusting(store, lambda: issuer.trust_bundle, standing=lambda: issuer.standing.authorities)),
        attestor=attestor_of(settings, store, hub_id, clock),
    )
    door = RpcDoor(settings.grpc_listen.host, settings.grpc_listen.port, serving, agents)
    server.add_door(door)

    # what the hub does by itself, in a group of its own that ends before the doors do
    own = OwnControllers(shown.renew)
    working = await stack.enter_async_context(GuardedTasks("own controllers", on_end=ending.failed))
    own.start(working)
    # wakes what is done periodically
    timetable = await stack.enter_async_context(Scheduler())
    own.wake(timetable)
    # what rules decide is remembered
    decided = partial(remember_decision, auditor)
    # another CA takes the place of the one that issues, when an operator wants it
    rotation = rotation_of(issuer, ground.ring, settings, lifetimes, clock)

    def in_term(fenced: Store) -> Controllers:
        host.lead(fenced)
        return Controllers(
            fenced, signing, settings, lifetimes, clock=clock, since=hearing.since, decided=decided, rotation=rotation
        )

    # what one replica does for all of them, while it leads; the lock is released before the doors close
    leading = await stack.enter_async_context(
        leadership(
            settings,
            database_url(settings),
            replica,
            store,
            in_term,
            clock=clock,
            timetable=timetable,
            on_end=ending.failed,
        )
    )
    server.post_start.add("controllers", leading.begin)
    server.pre_shutdown.add("controllers", leading.stop)

    # the hub as a client of its own API
    loopback = Loopback.fresh(clock.now())
    loopback.shown_by(serving.context)
    itself = await stack.enter_async_context(LoopbackClient(loopback, settings.https_listen.host, settings.https_listen.port))
    if extend is not None:
        extend(server, itself)

    # the door for operators and tools; last, because it answers for the health of all the others
    log_progress = add_checks(server.health, store, loopback, clock)
    server.health.add("serving-certificate", shown.check, endpoints=READINESS)
    installed = server.paths.expect("api groups")
    draining = Draining(loopback)
    cas = authorities_of(store, settings.api_group_suffix, patience=settings.ca_rotation_patience, cannot=ground.ring.cannot)
    operators = build_door(
        store,
        signing,
        peers.identify,
        HubAddress(hub_id, cluster.server, str(addresses.grpc)),
        clock=clock,
        lifetimes=lifetimes,
        checks=checks_of(server.health),
        group_suffix=settings.api_group_suffix,
        clock_skew_limit=settings.clock_skew_limit,
        default_lease_duration=settings.default_lease_duration,
        revocations=peers.listen,
        filters=Filters(
            paths=(not_yet(lambda: server.signals.mux_and_discovery_complete.signaled),),
            gate=(draining.gate,),
            in_flight=(draining.counted, RevocationLists(store, issuer, clock)),  # the lists are public
            audit=(Auditing(auditor),),
            limits=(Limiting(limits.place, limits.rates, clock, REQUEST_LIMIT, limits.watches),),
        ),
        loopback=loopback,
        token_keys=ground.token_keys,
        ways_in=(*await ways_in(settings, serving, clock, stack), *host.ways_in(serving, peers.identify, peers.former)),
        login=LoginSettings(settings.login_rate, settings.login_burst, settings.audit_login_names, issuer),
        others=(cas,),
        attests=settings.attestation == "required",
        join_labels=settings.join_labels,
        metrics=counted.scrape,
        pages={verbosity_page.PATH: verbosity_page.LogLevel(store, verbosity, replica)},
    )
    await operators.prepare()  # the roles that every hub has
    installed()
    server.add_door(HttpsDoor(operators, draining, settings.https_listen.host, settings.https_listen.port, serving.context))
    add_sections(inspection, agents, operators, draining, leading)
    watch_loop = add_metrics(
        counted, Counted(server, store, agents, operators, draining, leading, issuer, signing, shown, settings.disk_reserve)
    )
    inspection.add("issuers", signing.snapshot)
    inspection.add("kube-cert-agent", host.snapshot)
    # what is buffered goes into the database before the doors close
    server.flush.add("heartbeats", beats.flush)
    server.flush.add("audit", auditor.flush)
    # and that it serves is no longer so
    told = Measures(clock, sessions=lambda: len(agents.sessions), watches=lambda: len(operators.server.watches))
    heard = Heard(given_up=agents.sessions.say_again, drained=cordon.order)
    presence = Presence(store, ground.me, server.signals, told, heard)
    server.flush.add("replica", presence.leave)

    # what runs beside the doors for as long as they serve; one that falls ends the hub, in order
    tasks = await stack.enter_async_context(GuardedTasks("hub", on_end=ending.failed))
    tasks.start("revocations", peers.run())
    tasks.start("certificate authorities", ground.follower.run())
    tasks.start("serving certificate", shown.run())
    tasks.start("admin kubeconfig", way_in.run())
    tasks.start("admin secret", (await admin_secret(settings, way_in, issuer, stack)).run())
    tasks.start("heartbeats", beats.run())
    tasks.start("hearing", hearing.run())
    tasks.start("clocks", clocks.run())
    tasks.start("streams", agents.feed.run())
    tasks.start("trust", trusting.run())
    tasks.start("sessions", agents.sessions.run())
    tasks.start("presence", presence.run())
    tasks.start("cordon", cordon.run())
    if not is_alone(settings):
        tasks.start("sessions elsewhere", agents.sessions.follow_others())
    tasks.start("watches", operators.run())
    tasks.start("log", keep_log(log_progress))
    tasks.start("event loop", watch_loop())
    tasks.start("log level", follow_orders(store, verbosity))

    where = {"data": str(files.path), "admin_kubeconfig": str(admin), "server": cluster.server}
    log.info("hub is set up", hub=hub_id, replica=replica, **where)
    await host.start(store, lambda: leading.leadership.term is not None, stack, ending.failed)
    ready_to_serve()
    await server.prepare().run(ending.wait)


def capacity_of(settings: Settings) -> Capacity:
    return Capacity(
        read_only=settings.max_requests_inflight,
        mutating=settings.max_mutating_requests_inflight,
        lifelines=settings.max_lifelines_inflight,
        registrations=settings.max_registrations_inflight,
        sessions=settings.max_session_starts_inflight,
        reports=settings.max_status_reports_inflight,
        sessions_per_cluster=settings.max_sessions_per_cluster,
        watches=settings.max_watches,
        watches_each=settings.max_watches_per_identity,
        rate=settings.identity_rate,
        burst=settings.identity_burst,
    )
