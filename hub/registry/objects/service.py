"""Write path of kinds without rules of their own."""

from typing import Any
from uuid import uuid4

from hub.api.meta import document as doc
from hub.api.meta.change import Key, Kind, StoredObject
from hub.ports import Transaction, Written
from hub.registry.objects.write import store
from machinery.errors import ErrorSubject, NotFoundError


def put(
    tx: Transaction,
    kind: Kind,
    new: dict[str, Any],
    old: StoredObject | None,
    actor: str,
    *,
    generations: bool = False,
    writer: str = "",
) -> Written:
    """Create (`old` None) or update. The hub sets uid, creation time and generation.

    A deleted object is removed when it has no finalizers. `writer`: see `hub.registry.objects.write.store`. Raises
    AlreadyExistsError, ConflictError.
    """
    before = old.document if old else None
    document = doc.stamped(new, before, uid=str(uuid4()), now=tx.now, generations=generations)
    if old is not None and doc.is_deleting(document) and not doc.finalizers(document):
        return tx.objects.delete(kind, old, actor)
    return store(tx, kind, document, old, actor, writer=writer)


def remove(tx: Transaction, kind: Kind, old: StoredObject, actor: str, *, generations: bool = False) -> Written:
    """Delete, or mark as deleting while finalizers remain."""
    document = old.document
    if doc.finalizers(document) and not doc.is_deleting(document):
        return put(tx, kind, doc.deleting(document, tx.now), old, actor, generations=generations)
    return tx.objects.delete(kind, old, actor)


def find(tx: Transaction, kind: Kind, key: Key) -> StoredObject:
    """Raises NotFoundError."""
    stored = tx.objects.get(kind, key)
    if stored is None:
        resource, _, group = kind.partition(".")
        raise NotFoundError(f'{kind} "{key.name}" not found', subject=ErrorSubject(name=key.name, group=group, kind=resource))
    return stored
