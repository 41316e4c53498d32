"""Use cases about Events: what the hub tells by itself, and their end."""

from collections.abc import Sequence
from datetime import timedelta

from hub.domain import document as doc
from hub.domain import event as rules
from hub.domain.change import EVENTS, Key
from hub.domain.event import Told
from hub.domain.namespace import HUB
from hub.domain.ownership import HUB_WRITER
from hub.ports import Transaction
from hub.services import namespaces, objects


def tell(tx: Transaction, told: Sequence[Told], actor: str) -> None:
    """Makes Events of the news, in the clusters' namespaces; of clusters that have none, in the hub's own."""
    for each in told:
        key = Key(_place(tx, each.cluster), each.name)
        known = tx.objects.get(EVENTS, key)
        new = rules.event(each, key.namespace, tx.now) if known is None else rules.seen_again(known.document, tx.now)
        objects.put(tx, EVENTS, new, known, actor, writer=HUB_WRITER)


def _place(tx: Transaction, cluster: str) -> str:
    found = namespaces.get(tx, cluster) if cluster else None
    return HUB if found is None or doc.is_deleting(found.document) else cluster


def expire(tx: Transaction, lifetime: timedelta, actor: str, *, limit: int) -> int:
    """Removes Events that were not written for so long, `limit` at most; returns how many."""
    old = tx.objects.written_before(EVENTS, tx.now - lifetime, limit)
    for stored in old:
        objects.remove(tx, EVENTS, stored, actor)
    return len(old)
