"""Metrics of one replica: certificates, database, leader election, controllers and process; the metrics listener."""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from contextlib import AsyncExitStack
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any

import structlog
from aiohttp import web

from hub.audit import Auditor
from hub.issuer.rotating import RotatingIssuer
from hub.replica.leader_election import Leading
from hub.replica.serving_certificate import DoorsCertificate
from hub.settings import HubSettings
from hub.store import SqlStore
from machinery import pki
from machinery.apiserver.http.listener import serve
from machinery.lifecycle import usage
from machinery.lifecycle.server import Server
from machinery.lifecycle.startup import listening_failed
from machinery.observability.metrics import CONTENT_TYPE, Distribution, Registry, counter, gauge, histogram
from machinery.product import version
from machinery.runtime.event_loop import until_tick
from machinery.runtime.health import Endpoint

SIGNED = counter("hub_certificates_signed_total", "Certificates signed by this replica.", "purpose", "issuer")
SIGNING_FAILED = counter("hub_certificates_failed_total", "Signatures that an issuer could not make.", "purpose", "issuer")
SIGNING_SECONDS = histogram("hub_csr_sign_seconds", "Duration of a signature, with the checks before and after it.")
CA = gauge(
    "hub_ca_certificate_expiry_timestamp_seconds", "When the hub's CAs expire, since 1970: the first of each phase.", "phase"
)
SERVING = gauge(
    "hub_serving_certificate_expiry_timestamp_seconds", "When the serving certificate of both servers expires, since 1970."
)


def add_certificates(registry: Registry, issuer: RotatingIssuer, shown: DoorsCertificate) -> None:
    registry.bind(SIGNED, lambda: {(purpose.value, name): count for (purpose, name), count in tuple(issuer.signed.items())})
    registry.bind(  # also issuers without failures: a query cannot see the increase of a series that did not exist before
        SIGNING_FAILED,
        lambda: {(kind.value, name): issuer.failed[kind, name] for kind, name in {*issuer.signed, *issuer.failed}},
    )
    registry.bind(SIGNING_SECONDS, lambda: issuer.seconds)
    registry.bind(CA, lambda: _ends(issuer, _end))
    registry.bind(SERVING, lambda: _end(shown.serving.material.chain).timestamp())


def _ends(issuer: RotatingIssuer, end: Callable[[bytes], datetime]) -> Mapping[str, float]:
    found: dict[str, float] = {}
    for each in issuer.snapshot.authorities:
        ends = end(each.certificate).timestamp()
        found[each.phase.value] = min(ends, found.get(each.phase.value, ends))
    return found


@lru_cache(maxsize=16)
def _end(chain: bytes) -> datetime:
    return pki.parse_certificate(chain).not_after


TRANSACTION_SECONDS = histogram(
    "hub_database_transaction_seconds", "Duration of transactions, with their time in the queue; kind: read or write.", "kind"
)
TRANSACTION_FAILED = counter("hub_database_failures_total", "Transactions that failed.", "kind")
UNDER_WAY = gauge("hub_database_transactions", "Transactions in progress, with those in the queue.", "kind")
REVISION = gauge("hub_database_revision", "The newest revision that this replica knows; every change of an object has one.")


def add_database(registry: Registry, store: SqlStore) -> None:
    kinds = {"read": store.counts.reading, "write": store.counts.writing}
    registry.bind(TRANSACTION_SECONDS, lambda: {kind: work.seconds for kind, work in kinds.items()})
    registry.bind(TRANSACTION_FAILED, lambda: {kind: work.failures for kind, work in kinds.items()})
    registry.bind(UNDER_WAY, lambda: {kind: work.under_way for kind, work in kinds.items()})
    registry.bind(REVISION, lambda: store.newest)


AUDIT_WRITTEN = counter(
    "hub_audit_events_total", "Audit records by result: written, dropped (the queue is full), late.", "sink", "result"
)
AUDIT_WAITING = gauge("hub_audit_waiting", "Audit records that are not written yet.", "sink")
AUDIT_CAPACITY = gauge(
    "hub_audit_capacity", "Size of the queue of audit records; further records are dropped and counted in a record.", "sink"
)
AUDIT_FAILURES = counter("hub_audit_failures_total", "Failed attempts to write audit records; they are retried.", "sink")


def add_audit(registry: Registry, auditor: Auditor) -> None:
    results = ("written", "dropped", "late")
    registry.bind(
        AUDIT_WRITTEN,
        lambda: {(str(trail["sink"]), result): trail[result] for trail in auditor.snapshot() for result in results},
    )
    registry.bind(AUDIT_WAITING, _of_each(auditor, "waiting"))
    registry.bind(AUDIT_CAPACITY, _of_each(auditor, "capacity"))
    registry.bind(AUDIT_FAILURES, _of_each(auditor, "failures"))


def _of_each(auditor: Auditor, what: str) -> Callable[[], Mapping[str, Any]]:
    return lambda: {str(trail["sink"]): trail[what] for trail in auditor.snapshot()}


LEADS = gauge("hub_leader", "1: this replica is the leader; 0: it is not.")
TERM = gauge("hub_leader_term", "The term in which this replica is the leader.")
GAINED = counter("hub_leader_gained_total", "How often this replica became the leader.")
LOST = counter("hub_leader_lost_total", "How often this replica stopped leading, by cause.", "cause")
LOCK_FAILURES = counter("hub_leader_lock_failures_total", "Failed reads and renewals of the leader's lock.")
LOCK_RENEWED = counter("hub_leader_renewals_total", "Renewals of the leader's lock.")
FENCED = counter(
    "hub_leader_writes_refused_total", "Rejected writes of an earlier term: unsent, or fenced by the database.", "where"
)
QUEUES = gauge("hub_controller_queue", "Keys that wait in a controller's queue.", "controller")
STEPS = counter("hub_controller_reconciles_total", "Reconciliations of a controller.", "controller", "result")
STEP_SECONDS = histogram("hub_controller_reconcile_seconds", "Duration of a controller's reconciliations.", "controller")
PHASES = counter("hub_csr_total", "Certificate requests that entered a phase; reported by the leader.", "phase")
REQUESTS_BY_PHASE = gauge("hub_csrs", "Certificate requests for the hub's signer, by phase; reported by the leader.", "phase")
BECAME = counter("hub_cluster_transitions_total", "Clusters whose condition Available became True, False or Unknown.", "status")


def add_leader(registry: Registry, leading: Leading) -> None:
    flag, tally = leading.leadership, leading.tally
    registry.bind(LEADS, lambda: int(flag.term is not None))
    registry.bind(TERM, lambda: flag.term)
    registry.bind(GAINED, lambda: tally.gained)
    registry.bind(LOST, lambda: tally.lost)
    registry.bind(LOCK_FAILURES, lambda: tally.failures)
    registry.bind(LOCK_RENEWED, lambda: tally.renewals)
    registry.bind(FENCED, lambda: {"unsent": flag.refused, "fenced": flag.fenced})
    registry.bind(QUEUES, leading.waiting)
    registry.bind(
        STEPS, lambda: {(each.name, result): count for each in leading.controllers for result, count in each.outcomes.items()}
    )
    registry.bind(STEP_SECONDS, lambda: {each.name: each.seconds for each in leading.controllers})
    registry.bind(PHASES, lambda: leading.transitions.phases if leading.transitions else None)
    registry.bind(REQUESTS_BY_PHASE, lambda: leading.transitions.by_phase() if leading.transitions else None)
    registry.bind(BECAME, lambda: leading.transitions.availability if leading.transitions else None)


BUILD = gauge("hub_build_info", "Always 1; the version of this hub.", "version")
CHECKS = gauge("hub_readiness_check", "1: this check of /readyz passes; 0: it fails, and the log has the reason.", "check")
DRAINING = gauge("hub_draining", "1: this replica is shutting down; 0: it serves.")
LATE = histogram("hub_event_loop_lag_seconds", "Delay of the event loop, measured once a second.")
LOOK_EVERY = timedelta(seconds=1)
LAG = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
"""Bucket bounds in seconds. A busy loop pauses on purpose, for up to 100 ms."""


def add_process(registry: Registry) -> None:
    registry.bind(BUILD, lambda: {version(): 1})
    usage.bind_usage(registry)


def add_server(registry: Registry, server: Server) -> Callable[[], Coroutine[Any, Any, None]]:
    """Adds the metrics of the server. Returns a coroutine function that measures the event loop's lag until cancelled."""
    registry.bind(CHECKS, lambda: {name: int(passes) for name, passes in server.health.known(Endpoint.READYZ).items()})
    registry.bind(DRAINING, lambda: int(server.signals.shutdown_initiated.is_set()))
    lag = Distribution(LAG)
    registry.bind(LATE, lambda: lag)

    async def follow() -> None:
        loop = asyncio.get_running_loop()
        while True:
            pause = until_tick(LOOK_EVERY)
            due = loop.time() + pause
            await asyncio.sleep(pause)
            lag.observe(max(loop.time() - due, 0.0))

    return follow


PATH = "/metrics"

log = structlog.get_logger(__name__)


async def open_metrics(settings: HubSettings, stack: AsyncExitStack) -> Registry:
    """Returns the registry, served at `--metrics-listen` until `stack` ends. Raises StartError if it cannot listen there."""
    registry = Registry(detailed=settings.metrics_per_cluster)
    add_process(registry)
    if settings.metrics_listen is not None:
        host, port = settings.metrics_listen.host, settings.metrics_listen.port

        async def answer(_request: web.Request) -> web.Response:
            return web.Response(body=(await registry.scrape()).encode(), headers={"Content-Type": CONTENT_TYPE})

        application = web.Application()
        application.router.add_get(PATH, answer)
        try:
            listening = await serve(application, host, port)
        except OSError as error:
            raise listening_failed("metrics_listen", host, port, error) from error
        stack.push_async_callback(listening.close)
        log.info("metrics listener open", address=f"{host}:{port}")
    return registry
