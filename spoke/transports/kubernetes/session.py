"""A session over the Kubernetes API: the agent renews a Lease, reports, and watches its ManagedCluster.

The hub has no record of this session. The session ends when the hub answers 401 or is unreachable, when the cluster is
deleted, or when the certificate expires. After an error of any call or watch, the agent reads the ManagedCluster to decide
whether the session has ended. A 403 does not end the session: it means that the cluster is not accepted, and the agent waits.
"""

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from datetime import timedelta
from typing import Any, TypeVar

import structlog

from machinery.client.rest import Object
from machinery.errors import (
    ConflictError,
    DeadlineError,
    ForbiddenError,
    MusterError,
    NotFoundError,
    UnauthorizedError,
    UnavailableError,
)
from machinery.identity import AddOnName, AgentId, ClusterName, HubId
from machinery.meta.conditions import AVAILABLE, Condition, find
from machinery.observability import tracing
from machinery.runtime.backoff import Backoff
from machinery.runtime.tasks import cancel_and_wait, retried
from spoke.domain.hubs import ListedHub
from spoke.domain.next_step import SessionLoss
from spoke.domain.report import AgentEvent, ClusterReport, ExternalEndpoint
from spoke.ports.hub import Desired, Drain, HubLostError
from spoke.transports import OpenSession
from spoke.transports.kubernetes import addons, documents
from spoke.transports.kubernetes.api import ApiDoor, read_cluster
from spoke.transports.kubernetes.watch import HubMirror

T = TypeVar("T")

REPAIR_PAUSE = timedelta(seconds=1)
"""Delay before the agent restores parts of its report that other writers have changed. One write then restores several."""
HIDDEN_PAUSE = timedelta(seconds=5)
"""Poll interval while the hub does not let the agent read its ManagedCluster."""
LONGEST_SLEEP = timedelta(hours=1)

ATTEMPTS = 8
FIRST_PAUSE = timedelta(milliseconds=20)
"""Pause between the first two attempts of an update. Further pauses are longer."""

log = structlog.get_logger(__name__)


class ApiSession(OpenSession):
    """A session of one agent: sends its beats and reports. `run` runs the background tasks."""

    def __init__(
        self, door: ApiDoor, names: tuple[ClusterName, AgentId], seen: Object | None, annotations: Mapping[str, str]
    ) -> None:
        super().__init__()
        self._door = door
        self._cluster, self._agent = names
        self._annotations = annotations
        self._may_update = True
        self._mirror = HubMirror(door, self._cluster, seen, changed=self._changed, failed=self._failed)
        self._doubt = asyncio.Event()
        self._disturbed = asyncio.Event()
        self._writing = asyncio.Lock()
        self._reported: ClusterReport | None = None

    @property
    def beat_interval(self) -> timedelta:
        return self._mirror.desired.lease_duration

    @property
    def hub_time_offset(self) -> timedelta:
        return self._door.offset

    async def run(self) -> None:
        """Run the background tasks until cancelled.

        They mirror the hub's objects, check after errors whether the session has ended, restore overwritten reports, and end
        the session when the certificate expires.
        """
        async with asyncio.TaskGroup() as group:
            group.create_task(self._mirror.run(), name="hub/mirror")
            group.create_task(self._check_doubts(), name="hub/doubts")
            group.create_task(self._repair(), name="hub/repair")
            group.create_task(self._expire(), name="hub/expiry")

    async def beat(self, *, available: bool | None) -> None:
        del available  # a Lease has no field for the verdict; the status report contains it
        await self._while_open(self._beat())

    @tracing.client_span("report status")
    async def report(self, report: ClusterReport) -> int:
        self._reported = report
        return await self._while_open(self._write(report))

    @tracing.client_span("report addon")
    async def report_addon(self, addon: AddOnName, conditions: Sequence[Condition], *, driver: str = "") -> int:
        return await self._while_open(self._write_addon(addon, conditions, driver))

    async def send_event(self, news: AgentEvent) -> None:
        await self._while_open(self._create_event(news))

    def _present(self) -> Desired:
        return self._mirror.desired

    async def drained(self) -> Drain:
        await asyncio.Event().wait()
        raise AssertionError

    async def report_hub_list(self, hubs: Sequence[ListedHub]) -> None:
        del hubs

    async def farewell(self, hub_id: HubId, epoch: int) -> None:
        del epoch
        self.finish(HubLostError(f"the agent goes to the hub {hub_id}" if hub_id else "the session was closed"))

    async def _beat(self) -> None:
        """Renew the Lease. Retry until the hub accepts the renewal; the caller bounds the time."""
        kube, path = await self._door.kube(), documents.LEASES.path(documents.LEASE_NAME, namespace=self._cluster)
        pauses = Backoff(timedelta(milliseconds=200), timedelta(seconds=2))
        while True:
            try:
                await kube.update(path, documents.renewed(await kube.get(path), self._door.now()))
            except MusterError as error:  # includes conflicts, if the hub has written the Lease between the two calls
                self._failed(error)
                await asyncio.sleep(pauses.next().total_seconds())
            else:
                return

    async def _write(self, report: ClusterReport) -> int:
        path = self._door.clusters.path(self._cluster)
        async with self._writing:
            before, written = await self._patch_status(
                path,
                f'ManagedCluster "{self._cluster}"',
                lambda present: documents.status_patch(present, report, self._door.now()),
                self._mirror.document,
            )
            if written is not before:
                await self._record_availability(before, written, report)
            return _revision(await self._maintain(written, report.endpoints))

    async def _write_addon(self, addon: AddOnName, conditions: Sequence[Condition], driver: str) -> int:
        _, written = await self._patch_status(
            self._mirror.add_on_resource.path(addon, namespace=self._cluster),
            f'add-on "{addon}"',
            lambda present: addons.report_patch(present, conditions, driver, self._door.now()),
        )
        return _revision(written)

    async def _patch_status(
        self, path: str, what: str, patch_of: Callable[[Object], Object], present: Object | None = None
    ) -> tuple[Object, Object]:
        """Write `patch_of(present)` to the status. After a conflict, read the object and retry.

        Return the object before and after the write.
        """
        kube, seen = await self._door.kube(), [present] if present is not None else []

        async def attempt() -> tuple[Object, Object]:
            read = seen.pop() if seen else await self._asked(kube.get(path))
            patch = patch_of(read)
            return read, await self._asked(kube.patch(f"{path}/status", patch)) if patch else read

        try:
            return await retried(attempt, (ConflictError,), ATTEMPTS, Backoff(FIRST_PAUSE, timedelta(seconds=1)))
        except ConflictError:
            raise ConflictError(f"{what} was changed by others {ATTEMPTS} times while we reported") from None

    async def _maintain(self, present: Object, endpoints: Sequence[ExternalEndpoint]) -> Object:
        """Write annotations and client configs if they differ, unless the hub forbids this. Return the resulting document."""
        kube, path, seen = await self._door.kube(), self._door.clusters.path(self._cluster), [present]

        async def attempt() -> Object:
            read = seen.pop() if seen else await kube.get(path)
            wanted = documents.maintained_cluster(read, self._annotations, endpoints)
            if wanted == read or not self._may_update:
                return read
            try:
                return await kube.update(path, wanted)
            except ForbiddenError as error:
                self._may_update = False
                log.info("cluster.refresh_failed", why=error.message)
                return read

        return await retried(attempt, (ConflictError,), ATTEMPTS, Backoff(FIRST_PAUSE, timedelta(seconds=1)))

    async def _record_availability(self, before: Object, after: Object, report: ClusterReport) -> None:
        """Create an Event for a change of availability. A failure to create it is only logged."""
        now = next((condition for condition in report.conditions if condition.type == AVAILABLE), None)
        was = find(documents.entries(documents.section(before, "status"), "conditions"), AVAILABLE)
        stored = find(documents.entries(documents.section(after, "status"), "conditions"), AVAILABLE)
        if now is None or (was is not None and was.status == now.status) or stored is None or stored.status != now.status:
            return  # the hub may keep Unknown until the next heartbeat
        created = documents.availability_event(after, now, self._agent, self._door.now())
        try:
            await (await self._door.kube()).create(documents.EVENTS.path(namespace=self._cluster), created)
        except MusterError as error:
            log.info("event.not_sent", reason=created["reason"], error=error.message)

    async def _create_event(self, news: AgentEvent) -> None:
        kube, seen = await self._door.kube(), self._mirror.document
        kind = "ManagedClusterAddOn" if news.addon else "ManagedCluster"
        if news.addon:
            seen = await kube.get(self._mirror.add_on_resource.path(news.addon, namespace=self._cluster))
        if seen is not None:
            created = documents.event(seen, kind, news, self._agent, self._door.now())
            await kube.create(documents.EVENTS.path(namespace=self._cluster), created)

    async def _repair(self) -> None:
        """Report again if the ManagedCluster differs from the last report. OCM's hub changes it after a silence."""
        while True:
            await self._disturbed.wait()
            await asyncio.sleep(REPAIR_PAUSE.total_seconds())
            self._disturbed.clear()
            document, report = self._mirror.document, self._reported
            if document is None or report is None or not self._mirror.desired.accepted:
                continue
            if documents.status_patch(document, report, self._door.now()):
                try:
                    await self._write(report)
                except MusterError as error:
                    log.info("report.restore_failed", error=error.message)

    async def _asked(self, call: Coroutine[Any, Any, T]) -> T:
        try:
            return await call
        except MusterError as error:
            self._failed(error)
            raise

    def _changed(self) -> None:
        if self._mirror.gone:
            self.finish(HubLostError("the hub no longer has this cluster: it was deleted", SessionLoss.FORGOTTEN))
        self._news.set()
        self._disturbed.set()

    def _failed(self, error: MusterError) -> None:
        """Schedule a check of the ManagedCluster if the error may mean that the session has ended."""
        if isinstance(error, (UnauthorizedError, UnavailableError, DeadlineError, ForbiddenError, NotFoundError)):
            self._doubt.set()

    async def _check_doubts(self) -> None:
        while True:
            await self._doubt.wait()
            self._doubt.clear()
            pause = REPAIR_PAUSE
            try:
                self._mirror.show(await read_cluster(self._door, self._cluster))
            except ForbiddenError:
                self._mirror.hide()
                self._doubt.set()  # the agent may regain its rights without a change that a watch would report
                pause = HIDDEN_PAUSE
            except HubLostError as lost:
                self.finish(lost)
            await asyncio.sleep(pause.total_seconds())

    async def _expire(self) -> None:
        """End the session when the certificate expires, because the hub does not close open connections then."""
        while (left := self._door.left) > timedelta():  # noqa: ASYNC110 - a clock notifies of nothing
            await asyncio.sleep(min(left, LONGEST_SLEEP).total_seconds())
        self.finish(HubLostError("our certificate has expired", SessionLoss.UNAUTHENTICATED))

    async def _while_open(self, work: Coroutine[Any, Any, T]) -> T:
        """Return the result of `work`. If the session ends first, raise the reason."""
        doing = asyncio.create_task(work)
        try:
            await asyncio.wait((doing, self._end), return_when=asyncio.FIRST_COMPLETED)
            self._check()
            return doing.result()
        finally:
            await cancel_and_wait(doing)


def _revision(document: Object) -> int:
    """Return the resourceVersion as a number. Use it only as a write's result: clients must not compare resource versions."""
    text = str(documents.section(document, "metadata").get("resourceVersion") or "")
    return int(text) if text.isdigit() else 0
