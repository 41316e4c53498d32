"""Small facts about this hub."""

from sqlalchemy import Connection, delete, insert, select

from hub.ports import Facts
from hub.store import schema


class SqlFacts(Facts):
    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def get(self, name: str) -> str | None:
        return self._connection.execute(select(schema.facts.c.value).where(schema.facts.c.name == name)).scalar_one_or_none()

    def set(self, name: str, value: str) -> None:
        self._connection.execute(delete(schema.facts).where(schema.facts.c.name == name))
        self._connection.execute(insert(schema.facts), {"name": name, "value": value})
