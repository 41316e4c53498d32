"""Use cases about Events: what the hub tells by itself, and their end."""

from collections.abc import Mapping, Sequence
from datetime import timedelta

from hub.api.core import event as rules
from hub.api.core.event import EventRecord
from hub.api.core.namespace import HUB
from hub.api.meta import document as doc
from hub.api.meta.change import EVENTS, Key
from hub.api.objects.managed_fields import HUB_WRITER
from hub.ports import Transaction
from hub.registry.core import namespaces
from hub.registry.managedclusteraddons import service as addons
from hub.registry.managedclusters import service as clusters
from hub.registry.objects import service as objects
from machinery.identity import AddOnName, ClusterName


def tell(tx: Transaction, told: Sequence[EventRecord], actor: str) -> None:
    """Makes Events of the news, in the clusters' namespaces; of clusters that have none, in the hub's own."""
    for each in told:
        key = Key(_place(tx, each.cluster), each.name)
        known = tx.objects.get(EVENTS, key)
        new = rules.event(each, key.namespace, tx.now) if known is None else rules.seen_again(known.document, tx.now)
        objects.put(tx, EVENTS, new, known, actor, writer=HUB_WRITER)


def tell_of_agent(tx: Transaction, cluster: ClusterName, addon: str, said: tuple[str, str, str], actor: str) -> None:
    """Makes an Event of what an agent says (type, reason, message) of its cluster, or of one of its add-ons.

    Raises NotFoundError where that is not there.
    """
    about = addons.find(tx, cluster, AddOnName(addon)) if addon else clusters.find(tx, cluster)
    kind, reason, message = said
    tell(tx, [EventRecord(cluster, about.document, reason, message, kind, component=rules.AGENT)], actor)


def _place(tx: Transaction, cluster: str) -> str:
    found = namespaces.get(tx, cluster) if cluster else None
    return HUB if found is None or doc.is_deleting(found.document) else cluster


def due(tx: Transaction, lifetime: timedelta, *, limit: int) -> Mapping[Key, int]:
    """Events that were not written for so long, the oldest `limit`, each with its revision."""
    return tx.objects.written_before(EVENTS, tx.now - lifetime, limit)


def expire(tx: Transaction, due: Mapping[Key, int], actor: str) -> int:
    """Removes those of these Events that were not written since they were looked for; returns how many."""
    tx.objects.read_ahead(EVENTS, due)
    found = [stored for key, seen in due.items() if (stored := tx.objects.get(EVENTS, key)) and stored.revision == seen]
    for stored in found:
        objects.remove(tx, EVENTS, stored, actor)
    return len(found)
