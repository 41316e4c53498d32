"""Selectable fields of objects that an earlier release stored: found after the first start, and not looked for again."""

from collections.abc import Sequence

import pytest
from sqlalchemy import text

from hub.api.meta.change import MANAGED_CLUSTERS
from hub.ports import Transaction
from hub.registry.managedclusters import service as clusters
from machinery.meta.objects import Query
from machinery.meta.selectors import parse_field_selector
from tests.contract.conftest import database
from tests.fakes.databases import SqlDatabase
from tests.integration.test_store_upgrades import opened as engine_at

__all__ = ["database"]  # the fixture

CONDITION = {"reason": "R", "message": "", "lastTransitionTime": "2026-11-21T00:00:00Z"}


def make_clusters(tx: Transaction) -> None:
    for number in range(7):
        status = "Unknown" if number % 2 else "True"
        conditions = [{"type": "ManagedClusterConditionAvailable", "status": status, **CONDITION}]
        document = {"metadata": {"name": f"c{number}"}, "spec": {}, "status": {"conditions": conditions}}
        clusters.put(tx, document, None, "test")


def chosen(tx: Transaction, selector: str) -> Sequence[str]:
    query = Query(fields=parse_field_selector(selector).requirements)
    return [item.key.name for item in tx.objects.find(MANAGED_CLUSTERS, query).items]


def changed_by_hand(database: SqlDatabase, *commands: str) -> None:
    with engine_at(database.url) as engine, engine.begin() as connection:
        for command in commands:
            connection.execute(text(command))


AVAILABLE = "status.conditions.ManagedClusterConditionAvailable"


async def test_objects_of_an_earlier_release_are_found_by_their_fields(
    database: SqlDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hub.store.objects.reindex.BATCH", 3)
    async with database.opened(None) as store:
        await store.run(make_clusters)
    stale = "UPDATE fields SET value = 'False' WHERE name LIKE 'status.conditions.%'"
    changed_by_hand(database, stale, "DELETE FROM fields WHERE name = 'spec.hubAcceptsClient'", "DELETE FROM facts")

    async with database.opened(None) as store:
        assert await store.read(chosen, f"{AVAILABLE}=Unknown") == ["c1", "c3", "c5"]
        assert len(await store.read(chosen, "spec.hubAcceptsClient=false")) == 7

    changed_by_hand(database, "DELETE FROM fields")
    async with database.opened(None) as store:
        assert await store.read(chosen, f"{AVAILABLE}=Unknown") == [], "what this release has done is not done again"

    changed_by_hand(database, "UPDATE facts SET value = '1 0.0.9' WHERE name = 'indexed-fields'")
    async with database.opened(None) as store:
        assert await store.read(chosen, f"{AVAILABLE}=True") == ["c0", "c2", "c4", "c6"]


async def test_a_cluster_that_was_written_during_a_migration_has_its_narrow_row_again(database: SqlDatabase) -> None:
    """Between the copy of what was there and the triggers that follow it, an earlier release's commits were lost."""
    async with database.opened(None) as store:
        await store.run(make_clusters)
        before = narrow(database)
    changed_by_hand(
        database,
        "DELETE FROM inventory WHERE name = 'c0'",
        "UPDATE inventory SET available = 'False', version = 'v9', cluster_set = NULL WHERE name = 'c1'",
        "INSERT INTO inventory (uid, namespace, name, created_at) VALUES ('x', '', 'deleted', 1)",
        "UPDATE facts SET value = '2 0.1.0' WHERE name = 'indexed-fields'",
    )
    async with database.opened(None):
        assert narrow(database) == before
    assert len(before) == 7


def narrow(database: SqlDatabase) -> Sequence[object]:
    with engine_at(database.url) as engine, engine.connect() as connection:
        return [tuple(row) for row in connection.execute(text("SELECT * FROM inventory ORDER BY name"))]
