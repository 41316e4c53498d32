"""The status report: joined, available, resources and version, claims, managed namespaces, in OCM's order.

A failed step ends the report there; the hub keeps the rest as it was. Nothing is reported before the hub accepts the cluster,
and an unchanged report only at a resync.
"""

import asyncio
from collections.abc import Callable, Iterable
from datetime import timedelta

import structlog

from machinery.errors import MusterError
from machinery.meta.conditions import Condition
from machinery.runtime.controller import Reconciler
from spoke.cluster.health import AvailabilityWatch
from spoke.domain.namespace import NamespaceReport
from spoke.domain.report import AgentEvent, ClusterReport, ExternalEndpoint, NodeResources, ReportedClaim, left_out
from spoke.domain.status import (
    JOINED_CONDITION,
    RECHECK,
    Availability,
    ClusterClaimRules,
    allocatable_of,
    capacity_of,
    exposed_claims,
    truncated_claims,
)
from spoke.ports import Cluster, HubSession

CHANGED = "changed"
RESYNC = "resync"

log = structlog.get_logger(__name__)


def _nobody(_: AgentEvent) -> None:
    pass


class StatusController(Reconciler[str]):
    """Reports on one session. Keys: CHANGED, and RESYNC, which also sends an unchanged report."""

    def __init__(
        self,
        session: HubSession,
        cluster: Cluster,
        watch: AvailabilityWatch,
        rules: ClusterClaimRules,
        *,
        endpoints: tuple[ExternalEndpoint, ...] = (),
        further: Callable[[], Iterable[Condition]] = tuple,
        namespaces: Callable[[], tuple[NamespaceReport, ...]] = tuple,
        tell: Callable[[AgentEvent], None] = _nobody,
    ) -> None:
        self._session = session
        self._cluster = cluster
        self._watch = watch
        self._rules = rules
        self._endpoints = endpoints
        self._further = further
        self._namespaces = namespaces
        self._tell = tell
        self._accepted = False
        self._told: ClusterReport | None = None
        self._truncated = 0

    def accept(self, *, accepted: bool) -> None:
        """Set whether the cluster is accepted; only then it reports."""
        self._accepted = accepted

    async def reconcile(self, key: str) -> timedelta | None:
        if not self._accepted:
            return None
        _, answers = await self._watch.look()
        read = await self._read_while_available() if answers else None
        report = self._report(self._watch.current, read=read)
        if report != self._told or key == RESYNC:
            await self._session.report(report)
            self._told = report
        if isinstance(read, Exception):
            raise read
        return RECHECK if read is None else None

    async def _read_while_available(
        self,
    ) -> "tuple[tuple[NodeResources, ...], str, tuple[ReportedClaim, ...]] | Exception | None":
        """Like `_read`; None when the API server becomes unavailable meanwhile, which is then reported at once."""
        reading = asyncio.create_task(self._read(), name="status/read")
        failing = asyncio.create_task(self._watch.unavailable.wait(), name="status/unavailable")
        try:
            await asyncio.wait((reading, failing), return_when=asyncio.FIRST_COMPLETED)
            return reading.result() if reading.done() else None
        finally:
            for task in (reading, failing):
                task.cancel()
            await asyncio.wait((reading, failing))

    async def _read(self) -> "tuple[tuple[NodeResources, ...], str, tuple[ReportedClaim, ...]] | Exception":
        """Nodes, version and claims, or the error that prevents reading them. Never raises."""
        try:
            async with asyncio.TaskGroup() as group:
                nodes = group.create_task(self._cluster.nodes())
                version = group.create_task(self._cluster.version())
                claims = group.create_task(self._cluster.claims())
        except ExceptionGroup as errors:
            return next((error for error in errors.exceptions if isinstance(error, MusterError)), errors)
        return tuple(nodes.result()), version.result(), tuple(claims.result())

    def _report(
        self,
        state: Availability,
        *,
        read: "tuple[tuple[NodeResources, ...], str, tuple[ReportedClaim, ...]] | Exception | None",
    ) -> ClusterReport:
        conditions = (JOINED_CONDITION, *((state.condition,) if state.condition else ()), *self._further())
        if read is None or isinstance(read, Exception):
            return ClusterReport(
                conditions=conditions, complete=False, endpoints=self._endpoints, namespaces=self._namespaces()
            )
        nodes, version, claims = read
        self._note_truncation(truncated_claims(claims, self._rules))
        return ClusterReport(
            conditions=conditions,
            complete=True,
            capacity=capacity_of(nodes),
            allocatable=allocatable_of(nodes),
            kubernetes_version=version,
            claims=exposed_claims(claims, self._rules),
            node_count=len(nodes),
            endpoints=self._endpoints,
            namespaces=self._namespaces(),
        )

    def _note_truncation(self, truncated: int) -> None:
        if truncated and truncated != self._truncated:
            log.warning("CustomClusterClaimsTruncated", left_out=truncated, maximum=self._rules.max_custom)
            self._tell(left_out(truncated, self._rules.max_custom))
        self._truncated = truncated
