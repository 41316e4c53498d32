"""The composition root: the parts of a hub, each with its reason, in the order in which they are needed."""

import asyncio
import gc
import os
import sys
from contextlib import AsyncExitStack
from datetime import datetime
from functools import partial

import structlog

from hub.access import Peers
from hub.apiserver.credentials import HubAddress
from hub.apiserver.door import build_door
from hub.apiserver.listener import HttpsDoor
from hub.domain.certificate import Lifetimes
from hub.heartbeat import BeatBuffer, Hearing
from hub.installation import Addresses, entry, find_seal, keep_admin_kubeconfig, keep_authority, keep_seal, settle
from hub.issuer import ServingNames
from hub.ports import Transaction
from hub.roster import Controllers
from hub.rpc.door import RpcDoor
from hub.rpc.feed import Feed as StreamFeed
from hub.rpc.gate import Gate
from hub.rpc.parts import Hub, Parts
from hub.rpc.sessions import Sessions
from hub.services import heartbeats, namespaces
from hub.settings import Settings
from hub.store import SqlStore
from machinery import logs, loop
from machinery.apiserver.health import HealthCheck
from machinery.clock import Clock, SystemClock
from machinery.directory import DataDirectory
from machinery.errors import MusterError
from machinery.lifecycle.health import READINESS, HealthChecks
from machinery.lifecycle.process import StopSignals
from machinery.lifecycle.server import Server, StartError, StopTimes
from machinery.product import version
from machinery.scheduler import Scheduler
from machinery.tasks import GuardedTasks, TaskEndedError
from machinery.tls import Serving

log = structlog.get_logger(__name__)

STARTED, FAILED = 0, 1
COLLECT_AFTER = (20_000, 20, 50)
PRIVATE = 0o077
"""The umask: what a hub writes, the database included, is its user's alone."""


def main(settings: Settings) -> int:
    """Runs a hub until it is told to stop; the exit code. What keeps it from starting is said in one sentence."""
    os.umask(PRIVATE)
    logs.configure(settings.log_level, settings.log_format)
    log.info("hub starting", version=version())
    # What is imported stays for good, and what thousands of sessions make for a moment is gone by itself: looking through both
    # for cycles every 700 objects was a fifth of a heartbeat's cost.
    gc.collect()
    gc.freeze()
    gc.set_threshold(*COLLECT_AFTER)
    try:
        loop.run(run(settings))
    except (StartError, MusterError, TaskEndedError) as error:
        log.critical("hub failed", error=str(error))
        sys.stderr.write(f"hub: {error}\n")
        return FAILED
    except Exception:
        log.exception("hub failed")
        return FAILED
    finally:
        logs.flush()
    return STARTED


async def run(settings: Settings) -> None:
    """A whole hub, from its data directory to its doors. Raises StartError, MusterError, TaskEndedError."""
    clock: Clock = SystemClock()
    lifetimes = lifetimes_of(settings)
    addresses = Addresses.of(settings)
    server = Server(clock, StopTimes(delay=settings.shutdown_delay))
    async with AsyncExitStack() as stack:
        # who may ask it to stop, from the first moment on
        stop = stack.enter_context(StopSignals())
        ending = Ending(stop.requested)

        # all its files, and the proof that no other hub uses them
        directory = stack.enter_context(DataDirectory(settings.data_dir, "hub"))
        # the only truth
        seal, is_new = find_seal(directory, settings.secrets_key_file)
        store = SqlStore(database_url(settings), seal)
        stack.push_async_callback(store.close)
        await store.open()
        # who this hub is
        hub_id = await store.run(settle)
        # what it signs with
        issuer = await keep_authority(directory, store, lifetimes, clock.now())
        await keep_seal(directory, store, seal, is_new=is_new)
        # where objects that belong to no cluster lie
        await store.run(namespaces.ensure_standing)
        # nobody is connected yet, and nobody is silent
        started = await store.run(_begin)

        # what both doors show to who connects
        names = ServingNames(addresses.dns_names, addresses.ip_addresses)
        serving = Serving(issuer.serving(directory.path, names, lifetimes, clock.now()))
        # the operator's way in
        cluster = entry(hub_id, addresses, issuer.trust_bundle)
        admin = await keep_admin_kubeconfig(directory, store, issuer, cluster, lifetimes=lifetimes, now=clock.now())

        # who connects, by certificate: one memory for both doors
        peers = Peers(store, clock)
        # beats on their way to the database
        beats = BeatBuffer(store, clock, settings.flush_window)
        # which silence is the agents', and which is ours
        hearing = Hearing(clock, beats, started)
        # the door for agents
        agents = Parts(
            hub=Hub(hub_id, version(), issuer.trust_bundle),
            store=store,
            clock=clock,
            peers=peers,
            beats=beats,
            feed=StreamFeed(store),
            sessions=Sessions(store),
            gate=Gate(clock),
            beat_interval=settings.beat_interval,
            default_lease_duration=settings.default_lease_duration,
        )
        door = RpcDoor(settings.grpc_listen.host, settings.grpc_listen.port, serving, agents)
        server.add_door(door)

        # what the hub does by itself, in a group of its own that ends before the doors do
        def renew() -> None:
            serving.replace(issuer.serving(directory.path, names, lifetimes, clock.now()))

        controllers = Controllers(store, issuer, settings, lifetimes, since=hearing.since, renew=renew)
        working = await stack.enter_async_context(GuardedTasks("controllers", on_end=ending.failed))
        server.post_start.add("controllers", partial(controllers.start, working))
        server.pre_shutdown.add("controllers", working.stop)
        server.pre_shutdown.add("grpc-health", door.fall)  # the last one added is the first to run
        # wakes what is done periodically
        controllers.wake(await stack.enter_async_context(Scheduler()))

        # the door for operators and tools; last, because it answers for the health of all the others
        server.health.add("database", store.check, endpoints=READINESS)
        operators = build_door(
            store,
            issuer,
            peers.identify,
            HubAddress(hub_id, cluster.server, str(addresses.grpc)),
            clock=clock,
            lifetimes=lifetimes,
            checks=checks_of(server.health),
            revocations=peers.listen,
        )
        server.add_door(HttpsDoor(operators, settings.https_listen.host, settings.https_listen.port, serving.context))

        # what runs beside the doors for as long as they serve; one that falls ends the hub, in order
        tasks = await stack.enter_async_context(GuardedTasks("hub", on_end=ending.failed))
        tasks.start("revocations", peers.run())
        tasks.start("heartbeats", beats.run())
        tasks.start("hearing", hearing.run())
        tasks.start("streams", agents.feed.run())
        tasks.start("sessions", agents.sessions.run())
        tasks.start("watches", operators.run())

        log.info("hub is set up", hub=hub_id, data=str(directory.path), admin_kubeconfig=str(admin), server=cluster.server)
        await server.prepare().run(ending.wait)
    log.info("hub stopped")


class Ending:
    """Why a hub ends: it was asked to, or a part of it fell."""

    def __init__(self, requested: asyncio.Event) -> None:
        self._requested = requested
        self._failure: BaseException | None = None

    def failed(self, error: BaseException) -> None:
        self._failure = self._failure or error
        self._requested.set()

    async def wait(self) -> BaseException | None:
        await self._requested.wait()
        return self._failure


def _begin(tx: Transaction) -> datetime:
    """The database time from which beats can be stored. No session is open then."""
    heartbeats.close_all_sessions(tx)
    return tx.now


def lifetimes_of(settings: Settings) -> Lifetimes:
    return Lifetimes(
        agent=settings.agent_lifetime,
        recovery=settings.recovery_lifetime,
        bootstrap=settings.bootstrap_lifetime,
        serving=settings.serving_lifetime,
        ca=settings.ca_lifetime,
    )


def database_url(settings: Settings) -> str:
    if settings.database_url is not None:
        return settings.database_url.get_secret_value()
    return f"sqlite:///{settings.data_dir / 'hub.db'}"


def checks_of(health: HealthChecks) -> list[HealthCheck]:
    """The hub's health checks, as its HTTPS door answers for them."""
    return [
        HealthCheck(name, probe, tuple(endpoint.value for endpoint in endpoints))
        for name, probe, endpoints in health.probes()
        if name != "ping"
    ]
