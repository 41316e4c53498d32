"""Rows of many objects that are written together, and statements that the driver runs itself."""

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from sqlalchemy import Connection, bindparam, select
from sqlalchemy.exc import DBAPIError

from hub.domain.change import MANAGED_CLUSTERS, ChangeType, Key, StoredObject
from hub.store import rows, schema
from hub.store.engine import parse_url, writing_engine
from hub.store.migrate import upgrade
from hub.store.statement import Statement

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


def test_row_that_changed_since_it_was_read_is_a_race(connection: Connection) -> None:
    for change in (ChangeType.MODIFIED, ChangeType.DELETED):
        with pytest.raises(rows.RaceError), connection.begin_nested():
            rows.store(connection, [row("a", 2, change, 1), row("b", 3, change, 7), row("c", 4, change, 1)], NOW)


PAGE = 4096
FACTS = Statement(select(schema.facts.c.name, schema.facts.c.value).where(schema.facts.c.name != bindparam("but")))


def test_a_disk_that_fails_between_two_rows_is_the_databases_error(tmp_path: Path) -> None:
    file = tmp_path / "hub.db"
    engine = writing_engine(parse_url(f"sqlite:///{file}"))
    upgrade(engine)
    with engine.begin() as connection:
        connection.execute(schema.facts.insert(), [{"name": f"f{number:04}", "value": "x" * 900} for number in range(400)])
    engine.dispose()
    content = bytearray(file.read_bytes())
    place = content.rindex(b"x" * 900) // PAGE * PAGE
    content[place : place + PAGE] = bytes(PAGE)
    file.write_bytes(content)
    with engine.connect() as connection, pytest.raises(DBAPIError):
        FACTS.rows(connection, {"but": ""})
    engine.dispose()
