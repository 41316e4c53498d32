"""Use cases about Leases other than the clusters' own."""

from typing import Any
from uuid import uuid4

from hub.api.meta import document as doc
from hub.api.meta.change import LEASES
from hub.ports import Transaction, Written
from hub.registry.generic.objects import store
from machinery.meta.objects import StoredObject


def put(tx: Transaction, new: dict[str, Any], old: StoredObject | None, actor: str) -> Written:
    """Create (`old` None) or update. Raises AlreadyExistsError, ConflictError."""
    before = old.document if old else None
    document = doc.typed(new, "coordination.k8s.io/v1", "Lease")
    return store(tx, LEASES, doc.stamped(document, before, uid=str(uuid4()), now=tx.now, generations=False), old, actor)


def remove(tx: Transaction, old: StoredObject, actor: str) -> Written:
    return tx.objects.delete(LEASES, old, actor)
