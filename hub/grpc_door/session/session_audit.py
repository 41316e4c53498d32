"""Audit of one session's beats and reports, only if the policy requires it, which is decided once per session.

The record of a report that changes something is written with the report, and that of a beat with the batch that stores it.
"""

from collections.abc import Awaitable, Callable
from dataclasses import replace

from hub.api.auditrecords import AuditEntry, AuditLevel, Stage
from hub.audit.recording import recording
from hub.grpc_door.calls import Asking
from hub.grpc_door.session.interceptor import RpcCall
from machinery.apiserver.access import Attributes
from machinery.errors import MusterError
from machinery.identity import ClusterName


class SessionAudit:
    """`beats`: whether `beat` must be called, so that a beat costs nothing otherwise."""

    def __init__(self, call: RpcCall, cluster: ClusterName, asking: Asking) -> None:
        self._call = call
        self._cluster = cluster
        self._asking = asking
        self.beats = self._wanted(asking.beat(cluster))
        self._statuses = self._wanted(asking.status(cluster))

    def beat(self) -> AuditEntry | None:
        """Returns the record of a beat, for the batch that stores the beat."""
        return self._call_about(self._asking.beat(self._cluster)).stored_with()

    def unstored_beat(self) -> None:
        """Audits a beat that is not stored because its cluster is not accepted."""
        self._call_about(self._asking.beat(self._cluster)).ended(None)

    async def status(self, store: Callable[[], Awaitable[int]]) -> int:
        """Stores a status report and returns its revision. Raises the errors of `store`."""
        return await (self._recorded(self._asking.status(self._cluster), store) if self._statuses else store())

    async def addon(self, name: str, store: Callable[[], Awaitable[int]]) -> int:
        """Stores an add-on's report and returns its revision. Raises the errors of `store`."""
        return await self._recorded(self._asking.addon(self._cluster, name), store)

    def _wanted(self, asked: Attributes) -> bool:
        verdict = self._call.parts.auditor.verdict(self._call.actor, asked)
        return verdict.level is not AuditLevel.NONE and verdict.remembers(Stage.RESPONSE_COMPLETE)

    async def _recorded(self, asked: Attributes, store: Callable[[], Awaitable[int]]) -> int:
        call = self._call_about(asked)
        with recording(call.parts.auditor, call.changed) as written:
            try:
                revision = await store()
            except MusterError as error:
                call.ended(error)
                raise
        call.ended(None, stored=written.stored)
        return revision

    def _call_about(self, asked: Attributes) -> RpcCall:
        """Returns a call with its own attributes, under the session's audit id."""
        return replace(self._call, asked=asked, received=self._call.parts.auditor.clock.now())
