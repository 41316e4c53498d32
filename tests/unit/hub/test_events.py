"""Events that the hub tells, and the end of all Events."""

from datetime import timedelta
from typing import Any

from hub.domain import namespace as namespace_rules
from hub.domain.change import EVENTS, Query
from hub.domain.event import WARNING, Told
from hub.ports import Transaction
from hub.services import events, namespaces, objects
from machinery.clock import ManualClock
from tests.fakes.memory_store import MemoryStore

HOUR = timedelta(hours=1)
EAST = {"apiVersion": "cluster/v1", "kind": "ManagedCluster", "metadata": {"name": "east", "uid": "u-1"}}
ACCEPTED = Told("east", EAST, "Accepted", "accepted by jane")


def tell(store: MemoryStore, *told: Told) -> None:
    store.transact(events.tell, told, "hub")


def stored(store: MemoryStore) -> list[dict[str, Any]]:
    found = store.transact(lambda tx: tx.objects.find(EVENTS, Query()))
    return [dict(each.document) for each in found.items]


def with_namespace(store: MemoryStore, name: str = "east") -> None:
    store.transact(lambda tx: namespaces.put(tx, namespace_rules.namespace(name), None, "admin"))


def expire(store: MemoryStore, limit: int = 10) -> int:
    return store.transact(events.expire, store.transact(events.due, HOUR, limit=limit), "hub")


def test_news_of_a_cluster_is_an_event_in_its_namespace(store: MemoryStore) -> None:
    with_namespace(store)
    tell(store, ACCEPTED, Told("east", EAST, "Lost", "not heard of", WARNING))
    told = {(each["reason"], each["type"], each["message"], each["metadata"]["namespace"]) for each in stored(store)}
    assert told == {("Accepted", "Normal", "accepted by jane", "east"), ("Lost", "Warning", "not heard of", "east")}
    assert stored(store)[0]["involvedObject"] == {
        "apiVersion": "cluster/v1",
        "kind": "ManagedCluster",
        "name": "east",
        "uid": "u-1",
    }


def test_news_of_a_cluster_that_has_no_namespace_lies_in_the_hubs(store: MemoryStore) -> None:
    tell(store, ACCEPTED)
    assert stored(store)[0]["metadata"]["namespace"] == "open-cluster-management-hub"


def test_a_terminating_namespace_takes_no_news(store: MemoryStore) -> None:
    with_namespace(store)

    def delete(tx: Transaction) -> None:
        found = namespaces.get(tx, "east")
        assert found is not None
        namespaces.remove(tx, found, "admin")

    store.transact(delete)
    tell(store, ACCEPTED)
    assert stored(store)[0]["metadata"]["namespace"] == "open-cluster-management-hub"


def test_what_happens_again_is_counted(store: MemoryStore, clock: ManualClock) -> None:
    tell(store, ACCEPTED)
    first = stored(store)[0]
    clock.advance(timedelta(minutes=1))
    tell(store, ACCEPTED)
    (again,) = stored(store)
    assert (first["count"], again["count"]) == (1, 2)
    assert again["firstTimestamp"] == first["firstTimestamp"] < again["lastTimestamp"]


def test_an_event_goes_an_hour_after_it_was_last_seen(store: MemoryStore, clock: ManualClock) -> None:
    tell(store, ACCEPTED, Told("east", EAST, "Denied", "denied"))
    clock.advance(timedelta(minutes=40))
    tell(store, ACCEPTED)
    clock.advance(timedelta(minutes=40))
    assert expire(store) == 1
    assert [each["reason"] for each in stored(store)] == ["Accepted"]
    assert expire(store) == 0


def test_an_event_that_is_seen_again_while_old_ones_are_looked_for_stays(store: MemoryStore, clock: ManualClock) -> None:
    tell(store, ACCEPTED, Told("east", EAST, "Denied", "denied"))
    clock.advance(2 * HOUR)
    due = store.transact(events.due, HOUR, limit=10)
    tell(store, ACCEPTED)
    assert store.transact(events.expire, due, "hub") == 1
    assert [each["reason"] for each in stored(store)] == ["Accepted"]


def test_no_more_events_go_at_once_than_asked(store: MemoryStore, clock: ManualClock) -> None:
    tell(store, *(Told("east", EAST, f"Reason{number}", "m") for number in range(5)))
    clock.advance(2 * HOUR)
    assert [expire(store, limit=2) for _ in range(4)] == [2, 2, 1, 0]


def test_other_kinds_never_expire(store: MemoryStore, clock: ManualClock) -> None:
    with_namespace(store)
    clock.advance(2 * HOUR)
    assert expire(store) == 0
    assert store.transact(namespaces.get, "east") is not None


def test_an_event_outlives_the_compaction_of_its_change(store: MemoryStore, clock: ManualClock) -> None:
    tell(store, ACCEPTED)
    clock.advance(timedelta(minutes=50))
    store.transact(lambda tx: objects.put(tx, EVENTS, {"metadata": {"name": "b", "namespace": "east"}}, None, "x"))
    store.transact(lambda tx: tx.changes.compact(tx.now))
    clock.advance(timedelta(minutes=20))
    assert expire(store) == 1
    assert [each["metadata"]["name"] for each in stored(store)] == ["b"]
