"""Combines repeated audit records into one record per minute: refusals of strangers, and requests of a caller above a rate.

A stranger is a caller without a recorded credential. The first record of a kind in a minute is kept; later records are counted.
Address and reason determine the kind of a stranger's record; caller, verb, object and status code determine the kind of other
records.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import msgspec

from hub.api.auditrecords import LOGIN_FAILURE, NO_BODY, AuditLevel, AuditRecord, ObjectReference, ResponseStatus, Stage
from machinery.apiserver.access import ANONYMOUS
from machinery.apiserver.http.limits import Rates, origin
from machinery.errors import TooManyRequestsError
from machinery.meta.timestamps import format_time
from machinery.product import NAME
from machinery.runtime.clock import Clock

PERIOD = timedelta(minutes=1)
MAX_KINDS = 50
"""Largest number of kinds that are counted separately in a period. All further kinds count as one kind, "others"."""
RATE, BURST = 1, 300
"""Rate per second and burst up to which all records of one caller are kept, except refusals of strangers."""
LONGEST_TEXT = 256
"""Characters of each text in a stranger's record."""
REFUSED = 400
REPEATED, SINCE, CALLERS = f"{NAME}/repeated", f"{NAME}/since", f"{NAME}/callers"
OTHERS = ("others",)


@dataclass(slots=True)
class _Count:
    first: AuditRecord
    last: datetime
    repeated: int


_Counts = dict[tuple[str, ...], _Count]


class Floods:
    """Combines repeated records. Call `take` for each record, and `summaries` every PERIOD for a record per repeated kind."""

    def __init__(self, clock: Clock) -> None:
        self._rates = Rates(RATE, BURST, clock)
        self._strangers: _Counts = {}
        self._others: _Counts = {}

    def take(self, record: AuditRecord) -> tuple[bool, AuditRecord | None]:
        """Returns whether the record is a stranger's refusal, and the record to keep now (None: the record is only counted)."""
        stranger = record.user is None or record.user.username == ANONYMOUS.user
        address = origin(record.source_ips[0]) if stranger and record.source_ips else ""
        status = record.response_status or ResponseStatus(0)
        failure = record.annotations.get(LOGIN_FAILURE, "")
        if stranger and (status.code >= REFUSED or failure):
            return True, self._first(self._strangers, (address, str(status.code), status.reason, failure), _shortened(record))
        caller = record.user.username if record.user and not stranger else address
        try:
            self._rates.check(caller)
        except TooManyRequestsError:
            return False, self._first(self._others, (caller, record.verb, repr(record.object_ref), str(status.code)), record)
        return False, record

    def _first(self, counts: _Counts, key: tuple[str, ...], record: AuditRecord) -> AuditRecord | None:
        if key not in counts and len(counts) >= MAX_KINDS:
            key = OTHERS
        if (known := counts.get(key)) is not None:
            known.repeated, known.last = known.repeated + 1, record.at
            return None
        counts[key] = _Count(record, record.at, 1 if key == OTHERS else 0)
        return None if key == OTHERS else record

    def summaries(self, *, strangers: bool) -> Sequence[AuditRecord]:
        counts = self._strangers if strangers else self._others
        found = [_summary(key, each) for key, each in counts.items() if each.repeated]
        counts.clear()
        return found


def _summary(key: tuple[str, ...], counted: _Count) -> AuditRecord:
    first = counted.first
    notes = {REPEATED: str(counted.repeated), SINCE: format_time(first.at)}
    if key == OTHERS:
        stage = Stage.RESPONSE_COMPLETE
        return AuditRecord(level=AuditLevel.METADATA, stage=stage, at=counted.last, annotations={**notes, CALLERS: OTHERS[0]})
    notes = {**first.annotations, **notes}
    return msgspec.structs.replace(_without_bodies(first), at=counted.last, annotations=notes)


def _shortened(record: AuditRecord) -> AuditRecord:
    """Returns the record without bodies and with short texts, because strangers control the number of such records."""
    reference = record.object_ref
    if reference is not None:
        reference = ObjectReference(*(getattr(reference, name)[:LONGEST_TEXT] for name in reference.__struct_fields__))
    return msgspec.structs.replace(
        _without_bodies(record),
        request_uri=record.request_uri[:LONGEST_TEXT],
        user_agent=record.user_agent[:LONGEST_TEXT],
        object_ref=reference,
        annotations={name: text[:LONGEST_TEXT] for name, text in record.annotations.items()},
    )


def _without_bodies(record: AuditRecord) -> AuditRecord:
    return msgspec.structs.replace(record, level=AuditLevel.METADATA, request_object=NO_BODY, response_object=NO_BODY)
