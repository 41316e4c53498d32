"""The composition root: the parts of a hub, each with its reason, in the order in which they are needed."""

import asyncio
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import structlog

from hub.controllers import acceptance, approval, availability, cleanup, compaction, issuance
from hub.controllers.acceptance import Acceptance
from hub.controllers.approval import Approval
from hub.controllers.availability import Availability
from hub.controllers.batch import TOGETHER, Batched
from hub.controllers.cleanup import RequestCleanup
from hub.controllers.compaction import Compaction
from hub.controllers.feed import Feed, Route
from hub.controllers.issuance import Issuance
from hub.domain.certificate import Lifetimes
from hub.domain.change import MANAGED_CLUSTERS, REQUESTS, Document, Key, Kind
from hub.installation import Addresses, entry, keep_admin_kubeconfig, settle
from hub.issuer import LocalIssuer, ServingNames
from hub.ports import Issuer, Store, Transaction
from hub.services import heartbeats
from hub.settings import Settings
from hub.store import SqlStore
from machinery import logs
from machinery.clock import Clock, SystemClock
from machinery.controller import Controller
from machinery.directory import DataDirectory
from machinery.errors import MusterError
from machinery.identity import ClusterName, HubId
from machinery.lifecycle.health import READINESS
from machinery.lifecycle.process import StopSignals
from machinery.lifecycle.server import Server, StartError, StopTimes
from machinery.product import version
from machinery.scheduler import Scheduler, Timetable
from machinery.tasks import GuardedTasks
from machinery.tls import Serving

log = structlog.get_logger(__name__)

STARTED, FAILED = 0, 1
PRIVATE = 0o077
"""The umask: what a hub writes, the database included, is its user's alone."""
PERIODIC = "all"
"""The one key of a periodic controller."""
PERIOD = timedelta(minutes=5)
SYNCED_WITHIN = timedelta(seconds=60)


def main(settings: Settings) -> int:
    """Runs a hub until it is told to stop; the exit code. What keeps it from starting is said in one sentence."""
    os.umask(PRIVATE)
    logs.configure(settings.log_level, settings.log_format)
    log.info("hub starting", version=version())
    try:
        asyncio.run(run(settings))
    except (StartError, MusterError) as error:
        log.critical("hub stopped", error=str(error))
        sys.stderr.write(f"hub: {error}\n")
        return FAILED
    except Exception:
        log.exception("hub failed")
        return FAILED
    finally:
        logs.flush()
    return STARTED


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


class Controllers:
    """What the hub does by itself. They live in a group of their own, so that they end before the doors do."""

    def __init__(self, store: Store, issuer: Issuer, settings: Settings, lifetimes: Lifetimes, started: datetime) -> None:
        globs = settings.auto_approve
        # spec.hubAcceptsClient -> condition HubAcceptedManagedCluster; the rule that accepts without a human
        accepting = Acceptance(store, globs)
        self._acceptance = Controller(acceptance.NAME, accepting)
        # renewals, and names of the rule -> condition Approved
        approving = Approval(store, globs)
        self._approval = Controller(approval.NAME, approving)
        # approved -> certificate
        issuing = Issuance(store, issuer, lifetimes)
        self._issuance = Controller(issuance.NAME, issuing)
        # silence -> Unknown, when a grace ends; as many at once as share a commit
        judging = Availability(store, window=settings.flush_window, since=lambda: started)
        self._availability = Controller(availability.NAME, judging, workers=16)
        # what is over goes
        self._cleanup = Controller(cleanup.NAME, RequestCleanup(store, settings.finished_requests))
        self._compaction = Controller(compaction.NAME, Compaction(store, settings.watch_window))
        # where keys come from
        self._feed = Feed(
            store,
            (
                _together(MANAGED_CLUSTERS, accepting, self._acceptance, accepting.wanted),
                _together(REQUESTS, approving, self._approval, approval.wanted),
                _together(REQUESTS, issuing, self._issuance, issuance.wanted),
                Route(MANAGED_CLUSTERS, lambda key: self._availability.enqueue(ClusterName(key.name))),
            ),
        )

    def wake(self, timetable: Timetable) -> None:
        """Puts what is done periodically on the timetable."""
        for controller in (self._cleanup, self._compaction):
            timetable.every(PERIOD, partial(controller.enqueue, PERIODIC), name=controller.name, jitter=0.25, at_once=True)

    async def start(self, tasks: GuardedTasks) -> None:
        """Returns when every object there is was looked at once. Raises TimeoutError when that cannot be done in time."""
        everyone: Sequence[Controller[Any]] = (
            self._acceptance,
            self._approval,
            self._issuance,
            self._availability,
            self._cleanup,
            self._compaction,
        )
        for controller in everyone:
            tasks.start(controller.name, controller.run())
        tasks.start("feed", self._feed.run())
        async with asyncio.timeout(SYNCED_WITHIN.total_seconds()):
            await self._feed.synced.wait()


def _together(kind: Kind, reconciler: Batched, controller: Controller[str], wanted: Callable[[Document], bool]) -> Route:
    """A route into a batched reconciler: the name waits there, the queue holds one key for all."""

    def enqueue(key: Key) -> None:
        reconciler.wants(key.name)
        controller.enqueue(TOGETHER)

    return Route(kind, enqueue, wanted)


def _begin(tx: Transaction) -> tuple[HubId, datetime]:
    """At a start: who this hub is, and the database time from which beats can be stored. No session is open yet."""
    heartbeats.close_all_sessions(tx)
    return settle(tx), tx.now


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


async def run(settings: Settings) -> None:
    """A whole hub, from its data directory to its doors. Raises StartError, MusterError, TaskEndedError."""
    clock: Clock = SystemClock()
    lifetimes = lifetimes_of(settings)
    addresses = Addresses.of(settings)
    server = Server(clock, StopTimes(delay=settings.shutdown_delay))
    async with AsyncExitStack() as stack:
        # who may ask it to stop, from the first moment on
        stop = stack.enter_context(StopSignals())
        # all its files, and the proof that no other hub uses them
        directory = stack.enter_context(DataDirectory(settings.data_dir, "hub"))
        # the only truth
        store = SqlStore(database_url(settings))
        stack.push_async_callback(store.close)
        await store.open()
        # who this hub is, and that nobody is connected to it yet
        hub_id, started = await store.run(_begin)
        # what it signs with, and shows to who connects
        issuer = LocalIssuer.open(directory.path, lifetimes, clock.now())
        names = ServingNames(addresses.dns_names, addresses.ip_addresses)
        Serving(issuer.serving(directory.path, names, lifetimes, clock.now()))
        # the operator's way in
        cluster = entry(hub_id, addresses, issuer.trust_bundle)
        admin = await keep_admin_kubeconfig(directory, store, issuer, cluster, lifetimes=lifetimes, now=clock.now())
        # wakes what is done periodically
        timetable = await stack.enter_async_context(Scheduler())
        ending = Ending(stop.requested)
        # everything that runs beside the doors; one that falls ends the hub
        await stack.enter_async_context(GuardedTasks("hub", on_end=ending.failed))
        # what the hub does by itself
        controllers = Controllers(store, issuer, settings, lifetimes, started)
        controllers.wake(timetable)
        working = await stack.enter_async_context(GuardedTasks("controllers", on_end=ending.failed))
        server.post_start.add("controllers", partial(controllers.start, working))
        server.pre_shutdown.add("controllers", working.stop)
        server.health.add("database", store.check, endpoints=READINESS)
        log.info("hub ready to serve", hub=hub_id, data=str(directory.path), admin_kubeconfig=str(admin))
        await server.prepare().run(ending.wait)
    log.info("hub stopped")
