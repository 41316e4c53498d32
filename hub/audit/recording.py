"""Writes the audit record of a request that changes something in the transaction of the change."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import structlog

from hub.api.auditrecords import AuditEntry, AuditRecord, ResponseStatus
from hub.api.meta.change import Change
from hub.audit.auditor import Auditor
from hub.ports import RECORDING, Recording
from machinery.meta.objects import ChangeType

CREATED, OK = 201, 200

log = structlog.get_logger(__name__)


class RequestRecording(Recording):
    """`make`: returns the record for the changes of the request's transaction; None: no record is required."""

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
        """Ends the recording with the request's outcome; later writes of tasks that it started do not belong to it."""
        self._closed = True


@contextmanager
def recording(auditor: Auditor, make: Callable[[Sequence[Change]], AuditRecord | None]) -> Iterator[RequestRecording]:
    """Records the changes of one request while the block runs, in the request's task."""
    made = RequestRecording(auditor, make)
    token = RECORDING.set(made)
    try:
        yield made
    finally:
        made.close()
        RECORDING.reset(token)


def change_of(changes: Sequence[Change], resource: str) -> Change | None:
    """Returns the change of the requested resource; None: the request changed only others."""
    return next((change for change in changes if change.kind.partition(".")[0] == resource), None)


def status_of(change: Change | None, verb: str) -> ResponseStatus:
    """Returns the status that the answer will have."""
    created = change.type is ChangeType.ADDED if change is not None else verb == "create"
    return ResponseStatus(CREATED if created else OK)
