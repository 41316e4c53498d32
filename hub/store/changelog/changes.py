"""The change log in a transaction: its revisions, its rows, and reads of the past."""

from collections.abc import Collection, Sequence
from typing import Any

from sqlalchemy import bindparam, insert, select, update

from hub.api.meta.change import Change, Kind
from hub.ports import ChangeLog
from hub.store import schema
from hub.store.changelog.past import KEPT, ChangeLogPast, number_of
from hub.store.engine.encoding import RowForm, encode_values, to_micros
from hub.store.engine.notify import CHANGES, notify_expression
from hub.store.engine.statements import Statement

_row = schema.changes.c
_counter = schema.revision.c
_VALUE = select(_counter.value)
_TAKE = update(schema.revision).values(value=_counter.value + bindparam("by")).returning(_counter.value)
_TAKEN = _TAKE.cte("taken")
_ADVANCE = Statement(lambda dialect: _TAKE if dialect == "sqlite" else select(_TAKEN.c.value, notify_expression(CHANGES)))
"""Advances the counter. On PostgreSQL this statement also notifies the other replicas at commit."""
_OLDEST = Statement(select(_counter.compacted))
_LOG = Statement(insert(schema.changes))
LEAP = 1_000_000
"""Number of revisions to skip after a loss: more than a database can lose."""


class SqlChanges(ChangeLogPast, ChangeLog):
    def since(
        self,
        revision: int,
        *,
        kinds: Collection[Kind] | None = None,
        namespace: str | None = None,
        name: str | None = None,
        limit: int = 500,
    ) -> Sequence[Change]:
        self._check_kept(revision)
        statement = select(schema.changes).where(_row.revision > revision).order_by(_row.revision).limit(limit)
        if kinds is not None:
            statement = statement.where(_row.kind.in_(kinds))
        if namespace is not None:
            statement = statement.where(_row.namespace == namespace)
        if name is not None:
            statement = statement.where(_row.name == name)
        return [self._read(row) for row in self._connection.execute(statement)]

    def oldest(self) -> int:
        return number_of(_OLDEST.row(self._connection, {}))

    def advance(self, by: int) -> int:
        """Take the next `by` revisions and return the last revision. Locks the counter until the commit."""
        return number_of(_ADVANCE.row(self._connection, {"by": by, "sender": self._sender}))

    def skip_ahead(self, seen: int, shown: Change | None) -> bool:
        """Return whether the database has lost served changes. If so, move the log far above `seen`, so that no watch resumes.

        `shown`: the change at `seen`, if known. The check repeats the caller's check under the lock of the counter, because the
        caller may have read from a server that is behind, or another replica may already have raised the counter.
        """
        self.lock()
        newest, oldest = KEPT.row(self._connection, {}) or (0, 0)
        if newest >= seen and not self._is_another(shown, oldest):
            return False
        far = max(newest, seen) + LEAP
        self.skip_to(far)
        return True

    def _is_another(self, shown: Change | None, oldest: int) -> bool:
        """Whether the log has no change or another change at the revision of `shown`. False for compacted revisions."""
        if shown is None or shown.revision <= oldest:
            return False
        row = self._connection.execute(select(schema.changes).where(_row.revision == shown.revision)).one_or_none()
        return row is None or self._read(row).encoded != shown.encoded

    def lock(self) -> None:
        """Lock the counter: no other transaction writes objects before the commit."""
        self._connection.execute(_VALUE.with_for_update())

    def log(self, changes: Sequence[Change]) -> None:
        _LOG.run_many(self._connection, [_values(change, self._form) for change in changes])


def _values(change: Change, form: RowForm) -> dict[str, Any]:
    return {
        "revision": change.revision,
        "at": to_micros(change.at),
        "actor": change.actor,
        "kind": change.kind,
        "namespace": change.key.namespace,
        "name": change.key.name,
        "type": change.type.value,
        "document": form.row(change.kind, change.key, change.encoded),
        "labels_before": encode_values(change.labels_before),
        "fields_before": encode_values(change.fields_before),
    }
