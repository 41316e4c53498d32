"""Key-value facts about this hub."""

from sqlalchemy import Connection, delete, insert, select

from hub.ports import Facts
from hub.store import schema
from hub.store.engine.engine import INSERTS


class SqlFacts(Facts):
    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def get(self, name: str) -> str | None:
        return self._connection.execute(select(schema.facts.c.value).where(schema.facts.c.name == name)).scalar_one_or_none()

    def set(self, name: str, value: str) -> None:
        self._connection.execute(delete(schema.facts).where(schema.facts.c.name == name))
        self._connection.execute(insert(schema.facts), {"name": name, "value": value})

    def settle(self, name: str, value: str) -> str:
        """A concurrent second caller waits for the first one's commit and then returns the first one's value."""
        new = INSERTS[self._connection.dialect.name](schema.facts).values(name=name, value=value)
        self._connection.execute(new.on_conflict_do_nothing(index_elements=[schema.facts.c.name]))
        chosen = select(schema.facts.c.value).where(schema.facts.c.name == name)
        settled: str = self._connection.execute(chosen).scalar_one()
        return settled
