"""Observability of a running hub: health checks, log level, traces and the debug report."""

import asyncio
import os
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack, suppress
from datetime import timedelta

from hub.grpc_door.session.context import DoorContext
from hub.https_door.server import HttpsServer
from hub.ports import Store
from hub.registry.hubreplicas import service as orders
from hub.replica.leader_election import Leading
from hub.settings import HubSettings
from hub.store import SqlStore
from machinery import product
from machinery.apiserver.http.draining import Draining
from machinery.apiserver.http.health import HealthCheck
from machinery.apiserver.http.loopback import Loopback
from machinery.errors import UnavailableError
from machinery.lifecycle.debug import DebugSignal, DebugSocket, Inspection
from machinery.lifecycle.health import LIVENESS, READINESS, HealthChecks, LoopProgress, SharedCheck
from machinery.lifecycle.process import Verbosity, VerbositySignal
from machinery.observability import logs, telemetry
from machinery.runtime.clock import Clock
from machinery.runtime.event_loop import until_tick

FLUSH_EVERY = timedelta(seconds=60)
FLUSHED_WITHIN = timedelta(minutes=2)
LOOK_EVERY = timedelta(seconds=2)
DATABASE_EVERY = timedelta(milliseconds=900)
"""Below one second, the interval of the readiness check, each of which queries the database."""


def inspected(settings: HubSettings, stack: AsyncExitStack) -> Inspection:
    """The debug report, available from the start of the process and also when the event loop hangs."""
    inspection = Inspection(asyncio.get_running_loop())
    stack.enter_context(DebugSignal(inspection))
    if settings.debug_socket is not None:
        stack.enter_context(DebugSocket(settings.debug_socket, inspection))
    return inspection


def verbosity_of(settings: HubSettings, stack: AsyncExitStack) -> Verbosity:
    """The log level of this process, set by SIGUSR2 or by an operator's order (see `follow_orders`)."""
    verbosity = Verbosity(settings.log_level)
    stack.enter_context(VerbositySignal(verbosity))
    return verbosity


async def follow_orders(store: Store, verbosity: Verbosity) -> None:
    """Apply an operator's order about the log level, for ever. Without a database the level stays."""
    while True:
        with suppress(UnavailableError):
            order = await store.look(orders.standing_log_level)
            verbosity.order(None if order is None else order.level)
        await asyncio.sleep(until_tick(LOOK_EVERY))


def traces_of(settings: HubSettings) -> telemetry.TraceExporter | None:
    """The exporter of spans; None if no endpoint is configured."""
    if settings.trace_endpoint is None:
        return None
    return telemetry.TraceExporter(
        f"{product.NAME}-hub", settings.trace_endpoint, settings.trace_share, os.environ.get("POD_NAME", "")
    )


def add_checks(health: HealthChecks, store: SqlStore, loopback: Loopback, clock: Clock) -> LoopProgress:
    """Register the hub's own health checks. Returns the progress that `keep_log` reports.

    An unavailable database makes the hub unready, but does not fail liveness, because a restart would not help.
    """
    log_progress = LoopProgress(clock, FLUSHED_WITHIN)
    health.add("log", log_progress)
    health.add("loopback-serving-certificate", loopback.check(clock), endpoints=LIVENESS)
    health.add("database", SharedCheck(store.check, clock, every=DATABASE_EVERY), endpoints=READINESS)
    return log_progress


async def keep_log(progress: LoopProgress) -> None:
    """Flush the log periodically, for ever, and report progress."""
    while True:
        await asyncio.to_thread(logs.flush)
        progress.beat()
        await asyncio.sleep(FLUSH_EVERY.total_seconds())


def checks_of(health: HealthChecks) -> list[HealthCheck]:
    """The hub's health checks in the form of the HTTPS door."""
    return [
        HealthCheck(probe.name, probe.ask, tuple(endpoint.value for endpoint in probe.endpoints), probe.group)
        for probe in health.probes()
        if probe.name != "ping"
    ]


def add_sections(
    inspection: Inspection, agents: DoorContext, operators: HttpsServer, draining: Draining, leading: Leading
) -> None:
    """Add sections to the debug report: counters, and the clusters with a session. They contain no secrets."""
    counted: Mapping[str, Callable[[], Mapping[str, object]]] = {
        "sessions": lambda: (
            {"open": len(agents.sessions), "calls in flight": agents.gate.in_flight}
            | {f"{each.cluster} {each.agent}": each.id for each in agents.sessions.all()}
        ),
        "requests": lambda: {"in flight": draining.in_flight},
        "watches": lambda: {"open": len(operators.server.watches)} | operators.server.watches.by_resource(),
        "heartbeats": lambda: {"held": len(agents.beats), "storing": agents.beats.storing},
        "leadership": leading.snapshot,
        "controller queues": leading.waiting,
        "limits": agents.limits.snapshot,
        "logins": operators.exchange.snapshot,
        "audit": lambda: {str(trail["sink"]): trail for trail in agents.auditor.snapshot()},
    }
    for name, section in counted.items():
        inspection.add(name, section)
