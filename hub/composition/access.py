"""Authentication, limits and audit of both doors."""

from dataclasses import dataclass

from hub.access import AccessLimits, LimitConfig, Peers
from hub.audit import Auditor, auditing
from hub.composition.context import BuildContext
from hub.composition.resources import Resources
from hub.settings import HubSettings


@dataclass(frozen=True, slots=True)
class Access:
    peers: Peers
    auditor: Auditor
    limits: AccessLimits


async def open_access(context: BuildContext, resources: Resources) -> Access:
    """`stack` stores the audit records of answered calls before it closes. Raises MusterError."""
    clock, issuer = context.clock, resources.issuer
    peers = Peers(resources.store, clock, signers=lambda: issuer.standing.authorities)
    failed = context.process.shutdown.failed
    audit = auditing(context.settings, resources.store, resources.replica, clock, on_end=failed)
    return Access(peers, await context.stack.enter_async_context(audit), AccessLimits(clock, capacity_of(context.settings)))


def capacity_of(settings: HubSettings) -> LimitConfig:
    return LimitConfig(
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
