"""All metrics of a hub and their sources."""

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from hub.grpc_door.session.context import DoorContext
from hub.https_door.server import HttpsServer
from hub.issuer import IssuerChain, RotatingIssuer
from hub.metrics import agents, certificates, database, fleet, leader, process, requests
from hub.replica.leader_election import Leading
from hub.replica.serving_certificate import DoorsCertificate
from hub.store import SqlStore
from machinery.apiserver.http.draining import Draining
from machinery.lifecycle.server import Server
from machinery.observability.metrics import Metric, Registry

METRICS: tuple[Metric, ...] = (
    *fleet.METRICS,
    *agents.METRICS,
    *certificates.METRICS,
    *requests.METRICS,
    *database.METRICS,
    *leader.METRICS,
    *process.METRICS,
)
"""All metrics, in the order of the reference page."""


@dataclass(frozen=True, slots=True)
class MetricSources:
    """The parts that the metrics read."""

    server: Server
    store: SqlStore
    agents: DoorContext
    operators: HttpsServer
    draining: Draining
    leading: Leading
    issuer: RotatingIssuer
    signing: IssuerChain
    shown: DoorsCertificate
    disk_reserve: int


def add_metrics(registry: Registry, counted: MetricSources) -> Callable[[], Coroutine[Any, Any, None]]:
    """Binds all metrics except those of `add_process`. Returns a coroutine function to run while the hub serves."""
    fleet.add_fleet(registry, counted.store, counted.agents.clock, reserve=counted.disk_reserve)
    agents.add_agents(registry, counted.agents)
    certificates.add_certificates(registry, counted.issuer, counted.signing, counted.shown, counted.leading)
    requests.add_requests(registry, counted.operators, counted.draining, counted.agents.limits)
    database.add_database(registry, counted.store, counted.agents.auditor)
    leader.add_leader(registry, counted.leading)
    return process.add_server(registry, counted.server)
