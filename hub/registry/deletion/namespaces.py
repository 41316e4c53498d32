"""Stepwise deletion of a namespace: content in batches, each object by its kind's write path, then the namespace."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from hub.api import namespaces as rules
from hub.api.certificatesigningrequests.request import Requester
from hub.api.meta import document as doc
from hub.api.meta.change import Kind, Query, StoredObject
from hub.api.objects.managed_fields import HUB_WRITER
from hub.ports import Transaction
from hub.registry import kinds
from hub.registry.core import namespaces

PORTION = 200
"""Objects per transaction, so that other writers do not wait long."""


@dataclass(frozen=True, slots=True)
class NamespaceDeletionProgress:
    """Result of one step. `removed`: objects deleted or marked; `held`: objects that wait for finalizers."""

    removed: int = 0
    held: int = 0


def proceed(tx: Transaction, name: str, actor: str) -> NamespaceDeletionProgress:
    """Delete one batch of a deleted namespace; idempotent. Does nothing for other namespaces."""
    stored = namespaces.get(tx, name)
    if stored is None or not doc.is_deleting(stored.document):
        return NamespaceDeletionProgress()
    if removed := _remove_some(tx, name, Requester(actor)):
        return NamespaceDeletionProgress(removed=removed)
    held, finalizers = _held(tx, name)
    document = stored.document
    for condition in rules.remaining(held, finalizers):
        document = doc.with_status_condition(document, condition, tx.now)
    if not held:
        document = rules.emptied(document)
    if doc.differs(document, stored.document):
        namespaces.put(tx, dict(document), stored, actor, writer=HUB_WRITER)
    return NamespaceDeletionProgress(held=sum(held.values()))


def _remove_some(tx: Transaction, name: str, who: Requester) -> int:
    left = ((path, stored) for path, stored in _content(tx, name) if not doc.is_deleting(stored.document))
    portion = list(islice(left, PORTION))
    for path, stored in portion:
        path.remove(tx, stored, who)
    return len(portion)


def _held(tx: Transaction, name: str) -> tuple[Counter[Kind], Counter[str]]:
    """Remaining objects, all marked for deletion: number by kind, and by finalizer."""
    held: Counter[Kind] = Counter()
    finalizers: Counter[str] = Counter()
    for path, stored in _content(tx, name):
        held[path.kind] += 1
        finalizers.update(map(str, doc.finalizers(stored.document)))
    return held, finalizers


def _content(tx: Transaction, name: str) -> Iterator[tuple[kinds.WritePath, StoredObject]]:
    for path in kinds.WRITE_PATHS.values():
        more, after = path.namespaced, None
        while more:
            page = tx.objects.find(path.kind, Query(namespace=name, limit=PORTION, after=after))
            yield from ((path, stored) for stored in page.items)
            more, after = page.more, page.items[-1].key if page.items else None
