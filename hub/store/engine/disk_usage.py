"""Size of the database and free disk space."""

import os
from contextlib import suppress

from sqlalchemy import Connection, text

from hub.api.objects.history import Volume

_PAGES = text(
    "SELECT page_count * page_size, freelist_count * page_size, file "
    "FROM pragma_page_count(), pragma_freelist_count(), pragma_page_size(), pragma_database_list() WHERE name = 'main'"
)
_SIZE = text("SELECT pg_database_size(current_database())")


def volume(connection: Connection) -> Volume:
    """Measure the database. The free space is known for SQLite only."""
    if connection.dialect.name == "postgresql":
        return Volume(int(connection.execute(_SIZE).scalar_one()))
    size, reusable, file = connection.execute(_PAGES).one()
    return Volume(int(size), int(reusable), _free(str(file)))


def _free(file: str) -> int | None:
    """Bytes available to an unprivileged process; None if unknown."""
    with suppress(OSError):
        disk = os.statvfs(file)
        return disk.f_bavail * disk.f_frsize
    return None
