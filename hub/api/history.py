"""How long the hub keeps the history of objects, audit records and Events, and how much space they need."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta

from hub.api.events import WARNING, EventRecord
from hub.api.meta.change import EVENTS, LEASES, SECRETS, Kind
from hub.api.namespaces import HUB

UNREMEMBERED = frozenset((SECRETS, EVENTS, LEASES))
"""Kinds without history: old Secrets must not be readable, Events are history themselves, Leases change too often."""
SHORTENED, FILLS_UP, FULL = "HistoryShortened", "DatabaseFillsUp", "DatabaseAlmostFull"
AUDIT_SHORTENED, AUDIT_FILLS_UP = "AuditLogShortened", "AuditLogFillsUp"
"""Reasons of Events in the hub's namespace."""
ABOUT = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": HUB}}
BYTES_OF_A_ROW = 200
"""Bytes of a change-log row without document, labels and fields: other columns and index entries."""


def has_history(kind: Kind) -> bool:
    """Whether the history of this kind is kept beyond the watch window."""
    return kind not in UNREMEMBERED


@dataclass(frozen=True, slots=True)
class RetentionPeriods:
    window: timedelta
    """A watch can resume from a change that is not older than this."""
    history: timedelta
    """Past states of objects are readable for this time, unless the change log exceeds `history_bytes`."""
    history_bytes: int
    events: timedelta
    """An Event is removed this long after its last update."""
    records: timedelta
    """Retention of audit records, unless they exceed `records_bytes`."""
    transitions: timedelta
    """Retention of changes of availability."""
    reserve: int
    """Bytes of disk space that stay free; history is removed to keep them free."""
    records_bytes: int = 2**30


@dataclass(frozen=True, slots=True)
class Trimmed:
    """Result of one batch of a removal. `rows`: number of removed rows; `more`: further rows may be due for removal."""

    rows: int = 0
    more: bool = False


@dataclass(frozen=True, slots=True)
class Ledger:
    """State of the change log, in revisions. Watches can resume from `compacted`, past states can be read from `floor`.

    `bytes`: size of the rows up to `measured`; later rows are not measured yet.
    """

    compacted: int
    floor: int
    measured: int = 0
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class Volume:
    """Space of a database in bytes. `size`: used; `reusable`: the part of `size` that later writes reuse.

    `free`: free space on its disk; None: the server does not report it.
    """

    size: int
    reusable: int = 0
    free: int | None = None

    @property
    def left(self) -> int | None:
        """Bytes that can still be written; None: unknown."""
        return None if self.free is None else self.free + self.reusable


def _warning(reason: str, message: str) -> EventRecord:
    return EventRecord("", ABOUT, reason, message, WARNING)


def warnings(keeping: RetentionPeriods, volume: Volume, *, early: bool) -> Iterator[EventRecord]:
    """Yields warnings about early removal and low disk space. `early`: some history was removed before `keeping.history` ended.

    The messages contain no changing numbers, so that repeated messages are counted in one Event.
    """
    if early:
        yield _warning(SHORTENED, "old history was removed early to free space: see --history-size and --disk-reserve")
    if volume.left is None or volume.left >= 2 * keeping.reserve:
        return
    if volume.left >= keeping.reserve:
        yield _warning(FILLS_UP, "the database has less than twice --disk-reserve left: enlarge its disk, or keep less history")
    else:
        yield _warning(
            FULL, "the database has less than --disk-reserve left and no more history to remove: enlarge its disk now"
        )


def audit_warnings(keeping: RetentionPeriods, taken: int, *, early: bool) -> Iterator[EventRecord]:
    """Yields Events about the records' size `taken` (bytes). `early`: records were removed before `keeping.records` ended."""
    if early:
        yield _warning(AUDIT_SHORTENED, "the oldest audit records were removed early: see --audit-size")
    elif taken >= 0.8 * keeping.records_bytes:
        yield _warning(AUDIT_FILLS_UP, "the audit records use 80 % of --audit-size: see which user causes them, or increase it")
