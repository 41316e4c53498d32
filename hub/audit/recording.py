"""The record of a request that changes something, made in the transaction of the change."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import structlog

from hub.api.auditrecords.query import AuditEntry
from hub.api.auditrecords.record import AuditRecord, ResponseStatus
from hub.api.meta.change import Change, ChangeType
from hub.audit.auditor import Auditor
from hub.ports import RECORDING, Recording

CREATED, OK = 201, 200

log = structlog.get_logger(__name__)


class RequestRecording(Recording):
    """`make`: the record of a request whose transaction makes these changes; None: no record is wanted."""

    def __init__(self, auditor: Auditor, make: Callable[[Sequence[Change]], AuditRecord | None]) -> None:
        self._numbering = auditor.numbering
        self._make = make
        self._closed = False
        self.stored = False

    def entry(self, changes: Sequence[Change]) -> AuditEntry | None:
        if self.stored or self._closed or self._numbering is None:
            return None
        try:
            record = self._make(changes)
            return None if record is None else self._numbering.entry(record)
        except Exception:
            log.exception("the record of a change is written after it")
            return None

    def committed(self, entry: AuditEntry) -> None:
        del entry
        self.stored = True

    def close(self) -> None:
        """The request has its outcome: what tasks that it began write later is not part of it."""
        self._closed = True


@contextmanager
def recording(auditor: Auditor, make: Callable[[Sequence[Change]], AuditRecord | None]) -> Iterator[RequestRecording]:
    """A block around the answer of one request, in its task."""
    made = RequestRecording(auditor, make)
    token = RECORDING.set(made)
    try:
        yield made
    finally:
        made.close()
        RECORDING.reset(token)


def change_of(changes: Sequence[Change], resource: str) -> Change | None:
    """The change of the resource that was asked for; None: the request changed others only."""
    return next((change for change in changes if change.kind.partition(".")[0] == resource), None)


def status_of(change: Change | None, verb: str) -> ResponseStatus:
    """The status of the answer that follows."""
    created = change.type is ChangeType.ADDED if change is not None else verb == "create"
    return ResponseStatus(CREATED if created else OK)
