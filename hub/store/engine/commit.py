"""Transactions whose commit says what it knows: done, not done, or that nobody can tell.

A commit whose answer got lost may have happened. Running the same use case again would do it twice, and calling it failed would
be a lie, so the caller hears that it is unknown, and looks. The same holds where PostgreSQL gave up waiting for its synchronous
standby: the commit stands on one server only and is lost if that one is.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError

from hub.store.engine.errors import sqlstate
from machinery.errors import UnavailableError

UNKNOWN = "the database did not say whether this was written: look at what is there before you try again"
BAD_DISK = (
    "the disk under the database reports errors, so that nobody knows whether this was written: make room or mend it, "
    "and look at what is there before you try again"
)
ONE_SERVER_ONLY = (
    "this was written on one database server, and its standby has not confirmed it in time: "
    "look at what is there before you try again"
)
_ENDED_BY_SERVER = frozenset(("57P01", "57P02", "57P03"))
"""The session was ended. Whether before or after the commit shows in nothing."""


class UnknownOutcomeError(UnavailableError):
    """It may have been written, or not."""


@contextmanager
def transaction(engine: Engine) -> Iterator[Connection]:
    """One transaction. Raises UnknownOutcomeError; every other error means that nothing was written."""
    with engine.connect() as connection:
        with connection.begin() as begun:
            yield connection
            raw: Any = connection.connection.dbapi_connection
            try:
                begun.commit()
            except DBAPIError as error:
                if is_doubtful(error, connection):
                    raise UnknownOutcomeError(BAD_DISK if connection.dialect.name == "sqlite" else UNKNOWN) from error
                raise
        if getattr(raw, "doubted", False):
            connection.invalidate()  # the next transaction looks anew which server takes writes
            raise UnknownOutcomeError(ONE_SERVER_ONLY)


def is_doubtful(error: DBAPIError, connection: Connection) -> bool:
    """Whether a commit that failed so may have happened."""
    state = sqlstate(error)
    if connection.dialect.name == "sqlite":
        return "disk I/O error" in str(error.orig)
    return not state or state.startswith("08") or state in _ENDED_BY_SERVER
