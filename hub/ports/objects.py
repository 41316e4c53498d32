"""Access to Kubernetes objects of all kinds and to the change log."""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any, Protocol

from hub.api.history import Ledger, Trimmed
from hub.api.meta.change import Change, Kind
from hub.api.query.expressions import FieldReference
from machinery.meta.objects import Key, Page, Query, StoredObject

EVERYTHING = 2**31 - 1
"""Value of `limit` that processes everything in one transaction."""


class Written(Protocol):
    """An object that a transaction writes; revision and encoded bytes exist after the commit."""

    @property
    def stored(self) -> StoredObject:
        """The object as committed. Raises RuntimeError before the commit."""


class Objects(Protocol):
    """Kubernetes objects of all kinds, with their change log. Only `hub.registry` writes here."""

    def get(self, kind: Kind, key: Key) -> StoredObject | None:
        """The object, including this transaction's own writes."""

    def read_ahead(self, kind: Kind, keys: Collection[Key]) -> None:
        """Load these objects with one query, so that `get` needs no query for each."""

    def find(self, kind: Kind, query: Query) -> Page: ...

    def has_any(self, kind: Kind) -> bool:
        """Whether an object of the kind exists, including this transaction's own writes. Cheaper than `find`."""

    def put(self, kind: Kind, new: dict[str, Any], old: StoredObject | None, actor: str) -> Written:
        """Store `new` if the revision of `old` is current (None: must not exist). Raises ConflictError, AlreadyExistsError.

        The kind declares its selectable fields (`hub.api.meta.change.SELECTABLE`). The change-log row and the next revision are
        written at the end of the transaction.
        """

    def delete(self, kind: Kind, old: StoredObject, actor: str) -> Written: ...

    def count(self, kind: Kind, query: Query) -> int:
        """Number of matching objects, including this transaction's own writes. The query's limit and revision are ignored."""

    def tally(self, kind: Kind, field: str) -> Mapping[str, int]:
        """Number of objects per value of a selectable field; "" counts the objects without it."""

    def values(self, kind: Kind, field: str) -> Mapping[Key, str]:
        """Value of a selectable field by object, without the objects that lack it."""

    def groups(self, query: Query, facets: Sequence[FieldReference]) -> Mapping[tuple[str | None, ...], int]:
        """Number of the query's clusters per combination of these values; None stands for a missing value.

        Ignores this transaction's own writes, and the query's limit, order and revision.
        """

    def written_before(self, kind: Kind, moment: datetime, limit: int) -> Mapping[Key, int]:
        """The first `limit` objects, ordered by revision, whose last write is before `moment`, with their revisions.

        Scans all objects of the kind: use it in a read, which blocks no writer.
        """


class ChangeLog(Protocol):
    """The log of all changes of objects."""

    def since(
        self,
        revision: int,
        *,
        kinds: Collection[Kind] | None = None,
        namespace: str | None = None,
        name: str | None = None,
        limit: int = 500,
    ) -> Sequence[Change]:
        """Changes above `revision`, in order, of one namespace or name. Raises ExpiredError if they are compacted."""

    def of(self, kind: Kind, key: Key, *, since: datetime) -> Sequence[Change]:
        """Changes of one object from that instant on, in order, preceded by the last change before it if that is kept."""

    def newest(self) -> int: ...

    def past(self, kind: Kind, key: Key, *, below: int | None = None, limit: int) -> Sequence[Change]:
        """Kept changes of one object below a revision (None: all), newest first."""

    def one_at(self, kind: Kind, key: Key, at: int) -> StoredObject | None:
        """The object as of revision `at`. Raises ExpiredError if that revision is no longer kept."""

    def position(self, moment: datetime) -> int:
        """The newest revision at that instant. Raises ExpiredError if that time is no longer kept."""

    def instant(self, revision: int) -> datetime | None:
        """Time of the newest change up to that revision; None without one. Raises ExpiredError like `position`."""

    def began(self) -> datetime | None:
        """Time of the oldest readable change; None if the log is empty."""

    def ledger(self) -> Ledger:
        """The oldest revisions for watches and for reads of the past, and the size of the log."""

    def oldest(self) -> int:
        """The oldest revision from which a watch can resume."""

    def compact(self, before: datetime, *, limit: int = EVERYTHING) -> Trimmed:
        """End the watch window at `before`, and delete rows that are not kept as the past. Processes at most `limit` rows.

        A row with a future time, written while the clock was ahead, counts as old as the next row; also in `forget`.
        """

    def forget(self, before: datetime | None, *, limit: int = EVERYTHING) -> Trimmed:
        """End the readable past at an instant (None: where the watch window begins). Processes at most `limit` rows.

        Compacts first, so that no row is deleted that a watch may need.
        """

    def measure(self, *, limit: int = EVERYTHING) -> bool:
        """Measure the size of at most `limit` more rows; return whether rows may be left to measure."""
