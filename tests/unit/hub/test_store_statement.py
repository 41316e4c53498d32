"""Statements that the driver runs itself: whatever it says comes in SQLAlchemy's words, also in the middle of the rows."""

from pathlib import Path

import pytest
from sqlalchemy import bindparam, select
from sqlalchemy.exc import DBAPIError

from hub.store import schema
from hub.store.engine import parse_url, writing_engine
from hub.store.migrate import upgrade
from hub.store.statement import Statement

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
