"""Transactions that report whether their commit succeeded, failed or is in doubt.

A commit whose answer was lost may have happened. To run the use case again could apply it twice, so the caller gets
UnknownOutcomeError and has to read the current state. The same holds when PostgreSQL stopped waiting for its synchronous
standby: the commit then exists on one server only.
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
"""The server ended the session; the error does not show whether this was before or after the commit."""


class UnknownOutcomeError(UnavailableError):
    """The write may or may not have been committed."""


@contextmanager
def transaction(engine: Engine) -> Iterator[Connection]:
    """Context manager for one transaction. Raises UnknownOutcomeError; after any other error nothing was written."""
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
            connection.invalidate()  # the next transaction connects anew and finds the server that accepts writes
            raise UnknownOutcomeError(ONE_SERVER_ONLY)


def is_doubtful(error: DBAPIError, connection: Connection) -> bool:
    """Whether a commit that failed with this error may have happened."""
    state = sqlstate(error)
    if connection.dialect.name == "sqlite":
        return "disk I/O error" in str(error.orig)
    return not state or state.startswith("08") or state in _ENDED_BY_SERVER
