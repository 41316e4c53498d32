"""One hub per embedded database, whatever directory each of them calls its own.

SQLite lets several processes write to one file, and would let two hubs that know nothing of one another: each has caches, open
sessions and a leader that the other does not see. Several replicas share a PostgreSQL database.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hub.store.engine.engine import database_file, parse_url
from machinery.errors import UnavailableError

PRIVATE = 0o600


@contextmanager
def sole_user(url: str) -> Iterator[None]:
    """Within the block no other hub uses the database, if it is a file. Raises UnavailableError, InvalidError.

    The lock lies beside the file, under the name that the file has at last: links lead to the same one. It is not on the
    file itself, because closing that would let go of SQLite's own locks.
    """
    database = database_file(parse_url(url))
    if database is None:  # a server, which is made for several
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
        _take(descriptor, database)
        yield
    finally:
        os.close(descriptor)  # the lock goes with it; the file stays, so that nobody locks a deleted one


def _take(descriptor: int, database: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        holder = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip() or "unknown"
        raise UnavailableError(
            f"the database {database} is in use by another hub (process {holder}), and SQLite is for one: stop that one, "
            "or give all replicas one PostgreSQL database (HUB_DATABASE_URL=postgresql://USER@HOST/NAME)"
        ) from None
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
