"""Rows of many objects, written together: each only as it was read."""

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from sqlalchemy import Connection, select

from hub.domain.change import MANAGED_CLUSTERS, ChangeType, Key, StoredObject
from hub.store import rows, schema
from hub.store.engine import parse_url, writing_engine
from hub.store.migrate import upgrade

NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
def connection(tmp_path: Path) -> Iterator[Connection]:
    engine = writing_engine(parse_url(f"sqlite:///{tmp_path / 'hub.db'}"))
    upgrade(engine)
    with engine.connect() as connection, connection.begin():
        rows.store(connection, [row(name, 1, ChangeType.ADDED) for name in "abc"], NOW)
        yield connection
    engine.dispose()


def row(name: str, revision: int, change: ChangeType, guard: int = 0, **labels: str) -> rows.Row:
    new = StoredObject(MANAGED_CLUSTERS, Key("", name), f"uid-{name}", revision, b"{}")
    return rows.Row(change, new, guard, labels, {}, {}, {})


def revisions(connection: Connection) -> dict[str, int]:
    column = schema.objects.c
    return {row.name: row.revision for row in connection.execute(select(column.name, column.revision))}


def test_each_is_written_with_its_labels(connection: Connection) -> None:
    written = (row("a", 2, ChangeType.MODIFIED, 1, tier="a"), row("b", 3, ChangeType.DELETED, 1), row("d", 4, ChangeType.ADDED))
    rows.store(connection, written, NOW)
    assert revisions(connection) == {"a": 2, "c": 1, "d": 4}
    assert [tuple(each) for each in connection.execute(select(schema.labels))] == [("uid-a", "tier", "a")]


@pytest.mark.parametrize("change", [ChangeType.MODIFIED, ChangeType.DELETED])
def test_one_that_was_changed_since_it_was_read_is_a_race(connection: Connection, change: ChangeType) -> None:
    with pytest.raises(rows.RaceError):
        rows.store(connection, [row("a", 2, change, 1), row("b", 3, change, 7), row("c", 4, change, 1)], NOW)
