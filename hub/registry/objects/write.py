"""The end of every write path: who holds which fields after a write of the hub's own, and that a write of nothing is none."""

from dataclasses import dataclass
from typing import Any

from hub.api.meta.change import Kind, StoredObject
from hub.api.objects.managed_fields import HUB_WRITER, tracked
from hub.ports import Transaction, Written
from hub.registry.objects import size_limit as room
from machinery.meta.managedfields.holdings import is_same


@dataclass(frozen=True, slots=True)
class Unchanged(Written):
    """What came of a write that changed nothing: the object as it stood."""

    old: StoredObject

    @property
    def stored(self) -> StoredObject:
        return self.old


def store(
    tx: Transaction, kind: Kind, document: dict[str, Any], old: StoredObject | None, actor: str, *, writer: str = ""
) -> Written:
    """Stores the document as it was admitted and stamped.

    `writer`: the hub's own writer that holds what changed; "" when the API server has said so already. A document that differs
    from the old one in nothing but the times of its managedFields is not written. Raises what `Objects.put` raises, and
    TooLargeError.
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
    """A stale writer is refused even when it changes nothing."""
    now = tx.objects.get(kind, old.key)
    return now is not None and (now.uid, now.revision) == (old.uid, old.revision)
