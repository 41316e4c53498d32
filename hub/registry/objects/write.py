"""Last step of every write path: field ownership, size limit, and no write without a change."""

from dataclasses import dataclass
from typing import Any

from hub.api.meta.change import Kind, StoredObject
from hub.api.objects.managed_fields import HUB_WRITER, tracked
from hub.ports import Transaction, Written
from hub.registry.objects import size_limit as room
from machinery.meta.managedfields.holdings import is_same


@dataclass(frozen=True, slots=True)
class Unchanged(Written):
    """Result of a write that changed nothing: the stored object."""

    old: StoredObject

    @property
    def stored(self) -> StoredObject:
        return self.old


def store(
    tx: Transaction, kind: Kind, document: dict[str, Any], old: StoredObject | None, actor: str, *, writer: str = ""
) -> Written:
    """Store an admitted and stamped document. Raises the errors of `Objects.put`, and TooLargeError.

    `writer`: the field manager of the hub's own write; "" if the API server has set managedFields already. A document that
    differs from the old one only in times of its managedFields is not written.
    """
    before = old.document if old else None
    if writer:
        document = tracked(kind, document, before, writer, tx.now)
    if old is not None and before is not None and is_same(document, before) and _is_current(tx, kind, old):
        return Unchanged(old)
    if writer != HUB_WRITER:
        room.check(document, old, actor)
    return tx.objects.put(kind, document, old, actor)


def _is_current(tx: Transaction, kind: Kind, old: StoredObject) -> bool:
    """A write with an outdated revision is refused even if it changes nothing."""
    now = tx.objects.get(kind, old.key)
    return now is not None and (now.uid, now.revision) == (old.uid, old.revision)
