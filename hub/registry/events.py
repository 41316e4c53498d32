"""Use cases about Events: records Events of the hub and of agents, and deletes expired Events."""

from collections.abc import Mapping, Sequence
from datetime import timedelta

from hub.api import events as event_rules
from hub.api.events import EventRecord
from hub.api.managed_fields import HUB_WRITER
from hub.api.meta import document as doc
from hub.api.meta.change import EVENTS
from hub.api.namespaces import HUB
from hub.ports import Transaction
from hub.registry import namespaces
from hub.registry.generic import objects
from hub.registry.managedclusteraddons import service as addons
from hub.registry.managedclusters import service as clusters
from machinery.identity import AddOnName, ClusterName
from machinery.meta.objects import Key


def record(tx: Transaction, records: Sequence[EventRecord], actor: str) -> None:
    """Write each Event in its cluster's namespace, or in the hub's own if that namespace is missing or being deleted."""
    for each in records:
        found = namespaces.get(tx, each.cluster) if each.cluster else None
        key = Key(HUB if found is None or doc.is_deleting(found.document) else each.cluster, each.name)
        known = tx.objects.get(EVENTS, key)
        new = (
            event_rules.event(each, key.namespace, tx.now) if known is None else event_rules.seen_again(known.document, tx.now)
        )
        objects.put(tx, EVENTS, new, known, actor, writer=HUB_WRITER)


def record_agent_event(tx: Transaction, cluster: ClusterName, addon: str, said: tuple[str, str, str], actor: str) -> None:
    """Write an Event of an agent about its cluster (`addon` ""), or about an add-on. `said`: type, reason and message.

    Raises NotFoundError if the cluster or the add-on does not exist.
    """
    about = addons.find(tx, cluster, AddOnName(addon)) if addon else clusters.find(tx, cluster)
    kind, reason, message = said
    record(tx, [EventRecord(cluster, about.document, reason, message, kind, component=event_rules.AGENT)], actor)


def due(tx: Transaction, lifetime: timedelta, *, limit: int) -> Mapping[Key, int]:
    """Return keys and revisions of at most `limit` Events, the oldest first, whose last write is more than `lifetime` ago."""
    return tx.objects.written_before(EVENTS, tx.now - lifetime, limit)


def expire(tx: Transaction, due: Mapping[Key, int], actor: str) -> int:
    """Delete the Events whose revision is still the same as in `due`. Returns the number of deleted Events."""
    tx.objects.read_ahead(EVENTS, due)
    found = [stored for key, seen in due.items() if (stored := tx.objects.get(EVENTS, key)) and stored.revision == seen]
    for stored in found:
        objects.remove(tx, EVENTS, stored, actor)
    return len(found)
