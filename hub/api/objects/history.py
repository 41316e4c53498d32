"""What is remembered of objects beyond the watch window, and for how long."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta

from hub.api.core.event import WARNING, EventRecord
from hub.api.core.namespace import HUB
from hub.api.meta.change import EVENTS, LEASES, SECRETS, Kind

UNREMEMBERED = frozenset((SECRETS, EVENTS, LEASES))
"""Secrets are nobody's to read later, Events are the past already, and Leases change by the second and say nothing then."""
SHORTENED, FILLS_UP, FULL = "HistoryShortened", "DatabaseFillsUp", "DatabaseAlmostFull"
AUDIT_SHORTENED, AUDIT_FILLS_UP = "AuditLogShortened", "AuditLogFillsUp"
"""Reasons of Events of the hub's own namespace."""
ABOUT = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": HUB}}
BYTES_OF_A_ROW = 200
"""What a change takes beside its document, labels and fields: its other columns and its places in the indexes."""


def is_remembered(kind: Kind) -> bool:
    """Whether the past of objects of this kind is kept for longer than watches need it."""
    return kind not in UNREMEMBERED


@dataclass(frozen=True, slots=True)
class Keeping:
    """How long things are kept. `window`: a watch resumes from changes that are at most this old.

    `history`: the past of objects can be read this far back, unless the change log grew above `history_bytes` before.
    `events`: how long an Event stays unwritten; `transitions`: changes of availability. `records`: audit records, unless they
    took more than `records_bytes` before.
    `reserve`: so many bytes stay free where the database lies, at the cost of history.
    """

    window: timedelta
    history: timedelta
    history_bytes: int
    events: timedelta
    records: timedelta
    transitions: timedelta
    reserve: int
    records_bytes: int = 2**30


@dataclass(frozen=True, slots=True)
class Trimmed:
    """One portion of the change log was looked at: rows that went, and whether more may be due."""

    rows: int = 0
    more: bool = False


@dataclass(frozen=True, slots=True)
class Ledger:
    """Where the change log stands. Watches resume from `compacted` on, the past can be read from `floor` on.

    `bytes`: what the rows up to `measured` take; later ones are not counted yet.
    """

    compacted: int
    floor: int
    measured: int = 0
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class Volume:
    """The room of a database, in bytes. `size`: what it takes; `reusable`: of that, what later writes take first.

    `free`: what is left where it lies; None: its server does not say.
    """

    size: int
    reusable: int = 0
    free: int | None = None

    @property
    def left(self) -> int | None:
        """What can still be written; None: unknown."""
        return None if self.free is None else self.free + self.reusable


def warnings(keeping: Keeping, volume: Volume, *, early: bool) -> Iterator[EventRecord]:
    """What operators are to hear after everything that is old has gone. `early`: some of it before its time.

    The words hold no numbers that change: what is told again is counted, and not piled up.
    """
    if early:
        yield _told(SHORTENED, "the oldest history went before its time, for room: see --history-size and --disk-reserve")
    if volume.left is None or volume.left >= 2 * keeping.reserve:
        return
    if volume.left >= keeping.reserve:
        yield _told(FILLS_UP, "the database has less than twice --disk-reserve left: give it a larger disk, or less history")
    else:
        yield _told(FULL, "the database has less than --disk-reserve left, and no history to spare: give it a larger disk now")


def audit_warnings(keeping: Keeping, taken: int, *, early: bool) -> Iterator[EventRecord]:
    """What operators are to hear of audit records that take so many bytes. `early`: some went before their time."""
    if early:
        yield _told(AUDIT_SHORTENED, "the oldest audit records went before their time: see --audit-size")
    elif taken >= 0.8 * keeping.records_bytes:
        yield _told(
            AUDIT_FILLS_UP, "the audit records take four fifths of --audit-size: see which user causes them, or raise it"
        )


def _told(reason: str, message: str) -> EventRecord:
    return EventRecord("", ABOUT, reason, message, WARNING)
