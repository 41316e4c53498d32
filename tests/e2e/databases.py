"""What a hub's PostgreSQL holds, asked of the database itself, which answers when no replica does."""

from typing import Any

from sqlalchemy import create_engine, make_url, text


def rows(database: str, query: str) -> list[tuple[Any, ...]]:
    """The answer to `query` at the URL `database`."""
    engine = create_engine(make_url(database).set(drivername="postgresql+psycopg"))
    try:
        with engine.connect() as connection:
            return [tuple(row) for row in connection.execute(text(query))]
    finally:
        engine.dispose()
