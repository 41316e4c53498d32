"""Classifies and translates database errors."""

from sqlalchemy.exc import DBAPIError, IntegrityError, OperationalError, TimeoutError as PoolTimeoutError

from machinery.errors import ConflictError, InvalidError, UnavailableError

_SQLITE = {
    "locked": "the database is locked by another process: stop the other process that uses this file; nothing was written",
    "full": "the disk or the database is full: make room; nothing was written",
    "readonly": "the database file cannot be written: give the hub's user the right to write it and its directory",
    "unable to open": "the database file cannot be opened: check that its directory exists and the hub's user can write to it",
    "disk I/O error": "the disk of the database reports errors; nothing was written",
    "malformed": "the database file is damaged: restore it from a backup",
    "not a database": "the database file is not a SQLite database: check the database URL",
}
_POSTGRES_RACES = frozenset(("40001", "40P01"))
DISK_FULL = "the database's disk is full"
_POSTGRES = {  # by the prefix of PostgreSQL's error code, the longest first
    "53100": f"{DISK_FULL}: make room on the database's server; nothing was written",
    "53200": "the database's server is out of memory; nothing was written",
    "53300": "the database has no connection left: allow more (max_connections), or end what holds them; nothing was written",
    "53": "the database is out of resources; nothing was written",
    "55": "the database is locked by another session; nothing was written",
    "57": "the database stopped the statement or is shutting down; nothing was written",
    "25": "the database does not take writes now (read-only, or the transaction was idle too long); nothing was written",
}
_STANDBY = {"server is in hot standby mode": "the database server that answers is a standby, and the hub uses only a primary"}
"""Driver messages for servers that `target_session_attrs` rejects."""
_LOST = frozenset(("57P01", "57P02", "57P03"))
_READ_ONLY = "25006"
_NO_TEXT = frozenset(("22021", "22P05", "54000"))
AWAY = "the database does not answer"


class RaceError(Exception):
    """Another transaction changed data that this transaction has read: run the use case again."""


def is_race(error: Exception) -> bool:
    """Whether the same use case may succeed when it runs again."""
    if isinstance(error, RaceError | IntegrityError):
        return True
    return isinstance(error, DBAPIError) and sqlstate(error) in _POSTGRES_RACES


def is_locked(error: Exception) -> bool:
    """Whether the error is only a lock time-out."""
    if not isinstance(error, DBAPIError):
        return False
    return sqlstate(error).startswith("55") or (not hasattr(error.orig, "sqlstate") and "locked" in str(error.orig))


def is_read_only(error: Exception) -> bool:
    """Whether the server accepts no writes, for example because it has become a standby."""
    return isinstance(error, DBAPIError) and sqlstate(error) == _READ_ONLY


def is_no_text(error: Exception) -> bool:
    """Whether PostgreSQL cannot store a text: it contains NUL, or its value in an index exceeds about 2,700 bytes."""
    return isinstance(error, DBAPIError) and (sqlstate(error) in _NO_TEXT or "cannot contain NUL" in str(error.orig))


def translated(error: Exception) -> Exception:
    """Return the error as a domain error, or unchanged if there is no translation."""
    if is_race(error):
        return ConflictError("the same objects were changed at the same time: read them again and retry")
    if is_no_text(error):
        return InvalidError("a text has characters that the database does not accept, such as NUL, or is too long")
    if isinstance(error, PoolTimeoutError):
        return UnavailableError("the database is too busy: no connection became free in time")
    if isinstance(error, DBAPIError):
        meaning = _meaning(error)
        return UnavailableError(meaning) if meaning else error
    return error


def _meaning(error: DBAPIError) -> str | None:
    text, state = str(error.orig), sqlstate(error)
    for words, meaning in (_SQLITE | _STANDBY).items():
        if words in text and not state:
            return meaning
    for prefix, meaning in _POSTGRES.items():
        if state.startswith(prefix):
            return meaning
    return AWAY if isinstance(error, OperationalError) or error.connection_invalidated else None


def is_lost(error: Exception) -> bool:
    """Whether the server connection is lost, so that an immediate retry would fail too."""
    if not isinstance(error, DBAPIError) or not hasattr(error.orig, "sqlstate"):
        return False
    state = sqlstate(error)
    return error.connection_invalidated or state in _LOST or (not state and isinstance(error, OperationalError))


def sqlstate(error: DBAPIError) -> str:
    """PostgreSQL's SQLSTATE of the error; "" if there is none."""
    return str(getattr(error.orig, "sqlstate", "") or "")
