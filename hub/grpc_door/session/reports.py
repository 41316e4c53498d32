"""Stores an agent's reports, with retries, and only while the session's epoch is the newest."""

import asyncio
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import structlog

from hub.api.certificates import CertificateRecord
from hub.api.managedclusters.availability import Departure
from hub.grpc_door.calls import Asking
from hub.grpc_door.messages import conditions_of, hubs_of, report_of
from hub.grpc_door.session.context import DoorContext
from hub.grpc_door.session.interceptor import RpcCall
from hub.heartbeat import BeatSink
from hub.ports import Transaction
from hub.registry.managedclusteraddons import service as addons
from hub.registry.managedclusters import service as clusters
from hub.registry.multihub import owners
from machinery.errors import ConflictError, DeadlineError, TooManyRequestsError, UnavailableError
from machinery.identity import AddOnName, ClusterName, HubId
from machinery.observability import tracing
from machinery.runtime.backoff import Backoff
from machinery.wire.session.v1 import session_pb2 as wire

RETRIES = 5
REPORT_HAS = timedelta(seconds=4)
"""Each attempt waits for its seat for at most a quarter of this."""
TRANSIENT = (UnavailableError, ConflictError, DeadlineError)

log = structlog.get_logger(__name__)

Write = Callable[[Transaction], Any]


class SessionReports:
    """Reports of one session. `status` and `addon` return the revision at which the report is durable.

    They raise StaleEpochError and the errors of the services.
    """

    def __init__(self, parts: DoorContext, call: RpcCall, record: CertificateRecord, cluster: ClusterName) -> None:
        self._parts = parts
        self._call = call
        self._actor = record.user
        self._cluster = cluster
        self.parting: asyncio.Task[None] | None = None
        self._asked = Asking(parts.group_suffix).status(cluster)

    async def status(self, message: wire.StatusReport, epoch: int, agent_version: str) -> int:
        report = report_of(message, agent_version)
        with self._traced("report status", message.traceparent):
            return await self._written(epoch, lambda tx: clusters.report_status(tx, self._cluster, report, self._actor))

    async def addon(self, message: wire.AddOnReport, epoch: int) -> int:
        name, told = AddOnName(message.addon_name), conditions_of(message.conditions)
        report = partial(addons.report, driver=message.kube_client_driver)
        with self._traced("report addon", message.traceparent):
            return await self._written(epoch, lambda tx: report(tx, self._cluster, name, told, self._actor))

    def _traced(self, name: str, traceparent: str) -> tracing.Traced:
        """Continues the agent's trace if the report carries one."""
        return tracing.serving(name, {tracing.TRACEPARENT: traceparent}.get, {"muster.cluster": self._cluster})

    async def hubs(self, message: wire.Hubs, epoch: int, known: str) -> None:
        """Stores the agent's hub list if it differs from `known`. It is informational: a failure does not end the session."""
        told = hubs_of(message)
        if told == known:
            return
        try:
            await self._patiently(lambda: self._parts.store.run(owners.report_hubs, self._cluster, epoch, told, self._actor))
        except (*TRANSIENT, TooManyRequestsError) as error:
            log.info("an agent's list of hubs is not kept", cluster=self._cluster, error=error.message)

    async def farewell(self, message: wire.Farewell, session: BeatSink) -> None:
        """Records where the agent goes and drops its waiting beat. The write continues even if the agent does not wait."""
        if not message.hub_id or message.hub_id == self._parts.hub.hub_id:
            return
        self._parts.beats.drop(self._cluster, session)
        bid = partial(owners.bid_farewell, actor=self._actor)
        departure = Departure(self._cluster, HubId(message.hub_id), message.epoch)
        writing = self._patiently(lambda: self._parts.store.run(bid, departure, session.epoch))
        self.parting = asyncio.create_task(writing, name=f"farewell {self._cluster}")
        await asyncio.shield(self.parting)

    async def _written(self, epoch: int, write: Write) -> int:
        def fenced(tx: Transaction) -> Any:
            owners.check(tx, self._cluster, epoch)
            return write(tx)

        written = await self._patiently(lambda: self._parts.store.run(fenced))
        return int(getattr(written, "stored", written).revision)

    async def _patiently(self, run: Any) -> Any:
        pauses = Backoff(timedelta(milliseconds=100), timedelta(seconds=2))
        while True:
            try:
                async with self._parts.limits.seat(self._call.actor, self._asked, has=REPORT_HAS):
                    return await run()
            except (*TRANSIENT, TooManyRequestsError):
                if pauses.failures >= RETRIES:
                    raise
                await asyncio.sleep(pauses.next().total_seconds())
