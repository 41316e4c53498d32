"""The agent's part of its ManagedCluster: the probes of the cluster's API server, the status report, and the annotations.

The report contains the conditions for joined and available, resources, version, claims and managed namespaces, as in OCM, and
the URLs of the API server. If resources, version or claims cannot be read, the report omits all three, and the hub keeps
their values. The agent reports only after the hub has accepted the cluster. It sends an unchanged report only at a resync.

The agent reports annotations once per session, because they come from settings, which change only with a restart. OCM's agent
reports annotations and URLs only at registration. If the hub already knows the values, it writes nothing.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import KW_ONLY, dataclass, replace
from datetime import timedelta

import structlog

from machinery.errors import ForbiddenError, MusterError, NotFoundError
from machinery.meta.conditions import Condition
from machinery.runtime.clock import Clock
from machinery.runtime.controller import Reconciler
from machinery.runtime.tasks import cancel_and_wait
from spoke.domain import report as reporting
from spoke.domain.names import AgentIdentity, AgentNames
from spoke.ports.cluster import Cluster
from spoke.ports.hub import HubClient, HubSession

log = structlog.get_logger(__name__)


class AvailabilityWatch:
    """Probes the API server, records since when it has failed, and calls listeners when the verdict changes.

    Probes may overlap, because a probe does not wait for the previous one. `Cluster.health` bounds the time of a probe.
    """

    def __init__(self, cluster: Cluster, clock: Clock) -> None:
        self.current = reporting.Availability()
        self._cluster = cluster
        self._clock = clock
        self._listeners: list[Callable[[], None]] = []
        self._newest = float("-inf")
        """Start of the newest completed probe. The result of a probe that began earlier is ignored."""
        self.unavailable = asyncio.Event()
        """Set while the verdict is False."""

    @property
    def verdict(self) -> bool | None:
        """True: the API server answers. False: it has failed for longer than the threshold. None: unknown."""
        return self.current.verdict

    def listen(self, changed: Callable[[], None]) -> Callable[[], None]:
        """Call `changed` on every change of the verdict, until the returned function is called."""
        self._listeners.append(changed)
        return lambda: self._listeners.remove(changed)

    async def run(self) -> None:
        while True:
            began = self._clock.monotonic()
            _, answers = await self.probe()
            period = reporting.PROBE_PERIOD if answers else reporting.PROBE_PERIOD_WHILE_FAILING
            await asyncio.sleep(max(0.0, period.total_seconds() - (self._clock.monotonic() - began)))

    async def probe(self) -> tuple[reporting.Availability, bool]:
        """Probe the API server once. Return the availability after the probe, and whether this probe succeeded."""
        began = self._clock.monotonic()
        health = await self._cluster.health()
        if began < self._newest:
            return self.current, health.ok
        self._newest = began
        before = self.current
        self.current = before.observed(
            ok=health.ok, status_code=health.status_code, detail=health.detail, began=began, ended=self._clock.monotonic()
        )
        if self.current.verdict is not before.verdict:
            if self.current.verdict is False:
                self.unavailable.set()
            else:
                self.unavailable.clear()
            log.info("cluster.available" if self.current.verdict else "cluster.unavailable", detail=health.detail)
            for changed in tuple(self._listeners):
                changed()
        return self.current, health.ok


CHANGED = "changed"
RESYNC = "resync"


ClusterContents = tuple[tuple[reporting.NodeResources, ...], str, tuple[reporting.ReportedClaim, ...]]


@dataclass(eq=False)
class StatusReconciler(Reconciler[str]):
    """Sends the status of the cluster over one session. Keys: CHANGED, and RESYNC, which also sends an unchanged report."""

    session: HubSession
    cluster: Cluster
    watch: AvailabilityWatch
    rules: reporting.ClusterClaimRules
    _: KW_ONLY
    endpoints: tuple[reporting.ExternalEndpoint, ...] = ()
    further: Callable[[], Iterable[Condition]] = tuple
    namespaces: Callable[[], tuple[reporting.NamespaceReport, ...]] = tuple
    record_event: Callable[[reporting.AgentEvent], object] = lambda _: None

    def __post_init__(self) -> None:
        self._accepted = False
        self._reported: reporting.ClusterReport | None = None
        self._truncated = 0

    def accept(self, *, accepted: bool) -> None:
        """Set whether the cluster is accepted. Reports are sent only while this is True."""
        self._accepted = accepted

    async def reconcile(self, key: str) -> timedelta | None:
        if not self._accepted:
            return None
        _, answers = await self.watch.probe()
        read = await self._read_while_available() if answers else None
        report = self._report(self.watch.current, read)
        if report != self._reported or key == RESYNC:
            await self.session.report(report)
            self._reported = report
        if isinstance(read, Exception):
            raise read
        return reporting.RECHECK if read is None else None

    async def _read_while_available(self) -> ClusterContents | Exception | None:
        """Like `_read`; None: the API server became unavailable during the read, so the caller reports this without waiting."""
        reading = asyncio.create_task(self._read(), name="status/read")
        failing = asyncio.create_task(self.watch.unavailable.wait(), name="status/unavailable")
        try:
            await asyncio.wait((reading, failing), return_when=asyncio.FIRST_COMPLETED)
            return reading.result() if reading.done() else None
        finally:
            await cancel_and_wait(reading, failing)

    async def _read(self) -> ClusterContents | Exception:
        """Return nodes, version and claims, or the error that prevents reading them. Never raises."""
        try:
            async with asyncio.TaskGroup() as group:
                nodes = group.create_task(self.cluster.nodes())
                version = group.create_task(self.cluster.version())
                claims = group.create_task(self.cluster.claims())
        except ExceptionGroup as errors:
            return next((error for error in errors.exceptions if isinstance(error, MusterError)), errors)
        return tuple(nodes.result()), version.result(), tuple(claims.result())

    def _report(self, state: reporting.Availability, read: ClusterContents | Exception | None) -> reporting.ClusterReport:
        report = reporting.ClusterReport(
            conditions=(reporting.JOINED_CONDITION, *((state.condition,) if state.condition else ()), *self.further()),
            complete=False,
            endpoints=self.endpoints,
            namespaces=self.namespaces(),
        )
        if read is None or isinstance(read, Exception):
            return report
        nodes, version, claims = read
        truncated = reporting.truncated_claims(claims, self.rules)
        if truncated and truncated != self._truncated:
            log.warning("CustomClusterClaimsTruncated", left_out=truncated, maximum=self.rules.max_custom)
            self.record_event(reporting.left_out(truncated, self.rules.max_custom))
        self._truncated = truncated
        return replace(
            report,
            complete=True,
            capacity=reporting.capacity_of(nodes),
            allocatable=reporting.allocatable_of(nodes),
            kubernetes_version=version,
            claims=reporting.exposed_claims(claims, self.rules),
            node_count=len(nodes),
        )


UPKEEP = "cluster"


@dataclass(eq=False)
class ClusterReconciler(Reconciler[str]):
    client: HubClient
    cluster: Cluster
    names: AgentNames | None
    annotations: Mapping[str, str]
    endpoints: tuple[reporting.ExternalEndpoint, ...]

    def __post_init__(self) -> None:
        self._reported = False

    async def reconcile(self, key: str) -> timedelta | None:
        del key
        if self._reported or self.names is None or not self.annotations:
            return None
        uid = await self.cluster.uid()
        try:
            await self.client.ensure_cluster(
                AgentIdentity(self.names, uid), endpoints=self.endpoints, annotations=self.annotations
            )
        except (ForbiddenError, NotFoundError) as error:  # no permission, or deleted (which ends the session)
            log.info("cluster.refresh_failed", why=error.message)
        self._reported = True
        return None
