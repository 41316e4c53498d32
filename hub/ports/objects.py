"""Kubernetes-style documents of every kind, and the log of their changes."""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any, Protocol

from hub.api.meta.change import Change, Key, Kind, ObjectPage, Query, StoredObject
from hub.api.meta.ordering import Facet
from hub.api.objects.history import Ledger, Trimmed

EVERYTHING = 2**31 - 1
"""As a limit: all there is, in one transaction."""


class Written(Protocol):
    """An object that a transaction will have written; its revision and bytes exist once the transaction has committed."""

    @property
    def stored(self) -> StoredObject:
        """The object as committed. Raises RuntimeError before the commit."""


class Objects(Protocol):
    """Kubernetes-style documents of every kind, with their change log. Only `hub.registry` writes here."""

    def get(self, kind: Kind, key: Key) -> StoredObject | None:
        """The object, this transaction's own writes included."""

    def read_ahead(self, kind: Kind, keys: Collection[Key]) -> None:
        """Has `get` answer for these without a question of its own each: for steps that take many objects together."""

    def find(self, kind: Kind, query: Query) -> ObjectPage: ...

    def has_any(self, kind: Kind) -> bool:
        """Whether there is one object of the kind, this transaction's own writes included: cheaper than to look for one."""

    def put(self, kind: Kind, new: dict[str, Any], old: StoredObject | None, actor: str) -> Written:
        """Stores `new`, guarded by the revision of `old` (None: must not exist yet). Raises ConflictError, AlreadyExistsError.

        The kind declares which fields of the document are selectable (`hub.api.meta.change.SELECTABLE`). The row of the
        change log and the next revision are written at the end of the transaction.
        """

    def delete(self, kind: Kind, old: StoredObject, actor: str) -> Written: ...

    def count(self, kind: Kind, query: Query) -> int:
        """How many objects a query chooses, this transaction's own writes included. Its limit and revision do not count."""

    def tally(self, kind: Kind, field: str) -> Mapping[str, int]:
        """How many objects of a kind have each value of a selectable field; "" stands for those that lack it."""

    def values(self, kind: Kind, field: str) -> Mapping[Key, str]:
        """The value that each object of a kind has of a selectable field; those that lack it are not among them."""

    def groups(self, query: Query, facets: Sequence[Facet]) -> Mapping[tuple[str | None, ...], int]:
        """Of the clusters that a query chooses, how many have each combination of these values; None: they have none.

        What its own transaction has written does not count yet, nor do the query's limit, order and revision.
        """

    def written_before(self, kind: Kind, moment: datetime, limit: int) -> Mapping[Key, int]:
        """Objects that were last written before `moment`, the first `limit` in the order of their revisions, each with that.

        It looks at all of the kind, so it is for a read, which holds up nobody.
        """


class ChangeLog(Protocol):
    """The change log."""

    def since(
        self,
        revision: int,
        *,
        kinds: Collection[Kind] | None = None,
        namespace: str | None = None,
        name: str | None = None,
        limit: int = 500,
    ) -> Sequence[Change]:
        """Changes above `revision`, in order, of one namespace or name. Raises ExpiredError when they are compacted."""

    def of(self, kind: Kind, key: Key, *, since: datetime) -> Sequence[Change]:
        """One object's changes from that instant on, in order, after the one before them where that is kept."""

    def newest(self) -> int: ...

    def past(self, kind: Kind, key: Key, *, below: int | None = None, limit: int) -> Sequence[Change]:
        """What became of one object below a revision (None: up to now), newest first, as far as it is kept."""

    def one_at(self, kind: Kind, key: Key, at: int) -> StoredObject | None:
        """The object as it was when `at` was the newest revision. Raises ExpiredError when that past is forgotten."""

    def position(self, moment: datetime) -> int:
        """The newest revision at that instant. Raises ExpiredError when that past is forgotten."""

    def instant(self, revision: int) -> datetime | None:
        """When the newest change up to that revision was written; None: there was none. Raises ExpiredError as `position`."""

    def began(self) -> datetime | None:
        """When the first change was written that can be read about; None: nothing was written since."""

    def ledger(self) -> Ledger:
        """From where on watches can resume and the past can be read, and what the log takes."""

    def oldest(self) -> int:
        """Watches can resume from this revision on."""

    def compact(self, before: datetime, *, limit: int = EVERYTHING) -> Trimmed:
        """Watches cannot resume any more from what is older; what is not remembered goes. It passes `limit` rows at most.

        A row with a time after now, of a clock that was ahead, is as old as the one after it; so it is for `forget`.
        """

    def forget(self, before: datetime | None, *, limit: int = EVERYTHING) -> Trimmed:
        """The past cannot be read any more from before an instant (None: as far back as watches do not need it).

        It passes `limit` rows at most. What can be compacted is compacted first: nothing goes that a watch may need.
        """

    def measure(self, *, limit: int = EVERYTHING) -> bool:
        """Counts what the log takes, `limit` rows of it at most; whether more may be to be counted."""
