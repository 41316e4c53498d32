"""The write path of kinds without rules of their own."""

from datetime import timedelta
from typing import Any

import pytest

from hub.domain import document as doc
from hub.domain.change import CONFIG_MAPS, Key, StoredObject
from hub.domain.request import Requester
from hub.ports import Transaction, Written
from hub.services import kinds, objects
from machinery.clock import ManualClock
from machinery.errors import AlreadyExistsError, NotFoundError
from tests.fakes.memory_store import MemoryStore

KEY = Key("east", "settings")


def config_map(**changed: Any) -> dict[str, Any]:
    metadata = {"name": KEY.name, "namespace": KEY.namespace}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"a": "1"}, **changed}


def put(store: MemoryStore, new: dict[str, Any], *, generations: bool = False) -> StoredObject:
    def use_case(tx: Transaction) -> Written:
        return objects.put(tx, CONFIG_MAPS, new, tx.objects.get(CONFIG_MAPS, KEY), "admin", generations=generations)

    return store.transact(use_case).stored


def remove(store: MemoryStore) -> None:
    store.transact(lambda tx: objects.remove(tx, CONFIG_MAPS, objects.find(tx, CONFIG_MAPS, KEY), "admin"))


def found(store: MemoryStore) -> StoredObject | None:
    return store.transact(lambda tx: tx.objects.get(CONFIG_MAPS, KEY))


def with_finalizers(stored: StoredObject, *names: str) -> dict[str, Any]:
    return doc.with_metadata(stored.document, finalizers=list(names) or None)


def test_a_new_object_gets_what_is_nobodys_to_choose(store: MemoryStore) -> None:
    chosen = {"name": KEY.name, "namespace": KEY.namespace, "uid": "mine", "generation": 7, "creationTimestamp": "2000-01-01"}
    metadata = put(store, config_map(metadata=chosen)).document["metadata"]
    assert metadata["uid"] != "mine"
    assert metadata["creationTimestamp"].startswith("20")
    assert metadata["creationTimestamp"] != "2000-01-01"
    assert "generation" not in metadata


def test_an_update_keeps_who_the_object_is(store: MemoryStore, clock: ManualClock) -> None:
    first = put(store, config_map())
    clock.advance(timedelta(minutes=5))
    second = put(store, {**first.document, "data": {"a": "2"}})
    kept = ("uid", "creationTimestamp")
    assert [second.document["metadata"][name] for name in kept] == [first.document["metadata"][name] for name in kept]
    assert second.revision > first.revision


def test_generations_are_counted_for_kinds_that_have_them(store: MemoryStore) -> None:
    first = put(store, config_map(), generations=True)
    labelled = put(store, doc.with_metadata(first.document, labels={"a": "b"}), generations=True)
    changed = put(store, {**labelled.document, "data": {}}, generations=True)
    assert [each.document["metadata"]["generation"] for each in (first, labelled, changed)] == [1, 1, 2]


def test_what_is_there_is_not_created_again(store: MemoryStore) -> None:
    put(store, config_map())
    with pytest.raises(AlreadyExistsError):
        store.transact(lambda tx: objects.put(tx, CONFIG_MAPS, config_map(), None, "admin"))


def test_a_finalizer_holds_an_object_until_it_is_taken_away(store: MemoryStore) -> None:
    put(store, with_finalizers(put(store, config_map()), "example.com/wait"))
    remove(store)
    held = found(store)
    assert held is not None
    assert doc.is_deleting(held.document)
    put(store, with_finalizers(held))
    assert found(store) is None


def test_an_object_that_nothing_holds_goes_at_once(store: MemoryStore) -> None:
    put(store, config_map())
    remove(store)
    assert found(store) is None
    with pytest.raises(NotFoundError, match='configmaps "settings" not found'):
        store.transact(lambda tx: objects.find(tx, CONFIG_MAPS, KEY))


def test_the_table_writes_in_the_name_of_who_asked(store: MemoryStore) -> None:
    path = kinds.WRITE_PATHS[CONFIG_MAPS]
    store.transact(lambda tx: path.put(tx, config_map(), None, Requester("jane")))
    assert [change.actor for change in store.state.log] == ["jane"]
