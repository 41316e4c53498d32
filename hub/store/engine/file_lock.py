"""Lock that lets only one hub use an SQLite database.

SQLite would let several hubs write to one file, but each hub has caches, sessions and a leader that the other hubs cannot see.
Several replicas need PostgreSQL.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hub.store.engine.engine import database_file, parse_url
from machinery.errors import UnavailableError
from machinery.runtime.directory import lock_file

PRIVATE = 0o600


@contextmanager
def database_lock(url: str) -> Iterator[None]:
    """Hold the lock of an SQLite database; a no-op for PostgreSQL. Raises UnavailableError, InvalidError.

    The lock is a file next to the database's real path, so symbolic links lead to the same lock. The database file itself
    cannot be the lock, because closing it would release SQLite's own locks.
    """
    database = database_file(parse_url(url))
    if database is None:  # PostgreSQL: several hubs may use it
        yield
        return
    place = Path(os.path.realpath(database))
    lock = place.with_name(f"{place.name}.hub")
    try:
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, PRIVATE)
    except OSError as error:
        raise UnavailableError(
            f"the database {database} cannot be opened: {lock} cannot be written: {error.strerror}"
        ) from error
    try:
        if (holder := lock_file(descriptor)) is not None:
            raise UnavailableError(
                f"the database {database} is in use by another hub (process {holder}), and only one hub can use an SQLite "
                "database: stop that hub, or give all replicas one PostgreSQL database (HUB_DATABASE_URL=postgresql://USER@HOST/NAME)"
            )
        yield
    finally:
        os.close(descriptor)  # releases the lock; the file stays, so that no process locks a deleted file
