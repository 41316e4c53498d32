"""Registers health checks, metrics and the sections of the debug report."""

from collections.abc import Callable, Coroutine
from typing import Any

from hub.composition.certificates import CertificateSection
from hub.composition.context import BuildContext
from hub.composition.hub import Hub
from hub.composition.operators import LoopbackAccess
from hub.composition.resources import Resources
from hub.metrics import MetricSources, add_metrics
from hub.replica.debug_endpoints import add_checks, add_sections
from machinery.lifecycle.health import READINESS, LoopProgress


def register_health(
    context: BuildContext, resources: Resources, certificates: CertificateSection, loopback: LoopbackAccess
) -> LoopProgress:
    """Returns the progress that the task that flushes the log must report."""
    health = context.server.health
    progress = add_checks(health, resources.store, loopback.identity, context.clock)
    health.add("serving-certificate", certificates.doors.check, endpoints=READINESS)
    return progress


def register_metrics(hub: Hub) -> Callable[[], Coroutine[Any, Any, None]]:
    """Returns a coroutine function that measures the event loop; it must run while the hub serves."""
    context, agents, operators = hub.context, hub.agents, hub.operators
    inspection = context.process.inspection
    add_sections(inspection, agents.parts, operators.door, operators.draining, hub.leading)
    inspection.add("issuers", hub.certificates.signing.snapshot)
    inspection.add("kube-cert-agent", hub.certificates.host.snapshot)
    counted = MetricSources(
        server=context.server,
        store=hub.resources.store,
        agents=agents.parts,
        operators=operators.door,
        draining=operators.draining,
        leading=hub.leading,
        issuer=hub.resources.issuer,
        signing=hub.certificates.signing,
        shown=hub.certificates.doors,
        disk_reserve=context.settings.disk_reserve,
    )
    return add_metrics(context.metrics, counted)
