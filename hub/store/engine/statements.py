"""Prepared statements for hot paths: written in SQLAlchemy Core, compiled once per dialect, run by the driver.

SQLAlchemy adds 35 to 40 microseconds (measured) to the 4 microseconds of a simple statement, and one registration needs about
forty statements. Drivers convert all types, but SQLite returns booleans as integers.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sqlalchemy import ClauseElement, Connection, Dialect
from sqlalchemy.exc import DBAPIError

POSTGRESQL = "postgresql"
WRITTEN = "muster-written"
"""Key in a connection's `info`: set when a statement has changed rows."""
_CHANGES = ("INSERT", "UPDATE", "DELETE")
TOGETHER = 100
"""Rows per INSERT on PostgreSQL: a statement takes at most 65,535 parameters."""
_INSERT = re.compile(r"(INSERT .* VALUES )(\((?:%\(\w+\)s|[^()])*\))(.*)", re.DOTALL)
Values = Mapping[str, Any]
Rows = Sequence[tuple[Any, ...]]
_Compiled = tuple[str, tuple[str, ...] | None, Values]
"""The text, the order of positional values (None: named), and the constants of the statement."""


class Statement:
    """A statement with named values. Raises SQLAlchemy's errors, without the values in their messages."""

    def __init__(self, statement: ClauseElement | Callable[[str], ClauseElement]) -> None:
        """`statement`: for all dialects, or a function that makes it per dialect at its first use."""
        self._statement = statement
        self._compiled: dict[str, _Compiled] = {}
        self._of_rows: dict[int, str | None] = {}
        """Texts for PostgreSQL by number of rows; None: not an INSERT."""

    def rows(self, connection: Connection, values: Values) -> Rows:
        cursor = self._execute(connection, values)
        try:
            found: Rows = cursor.fetchall()
        except Exception as error:  # SQLite reads rows lazily: the disk may fail in the middle
            raise _wrapped(error, connection.dialect) from error
        finally:
            cursor.close()
        return found

    def row(self, connection: Connection, values: Values) -> tuple[Any, ...] | None:
        """Run the statement. Return the first row; None: there is no row."""
        found = self.rows(connection, values)
        return found[0] if found else None

    def run(self, connection: Connection, values: Values) -> int:
        """Run the statement. Return the number of affected rows."""
        return _touched(self._execute(connection, values))

    def run_many(self, connection: Connection, values: Sequence[Values]) -> int:
        """Run the statement once for each set of values. Returns the total number of affected rows.

        On PostgreSQL, one INSERT takes many rows, and other statements run one by one. The driver's `executemany` is not used,
        because it uses a pipeline: until the pipeline ends, no server time-out applies to a session that holds locks, so a
        stopped replica would block all others.
        """
        if len(values) > 1 and connection.dialect.name == POSTGRESQL:
            return sum(self._run_together(connection, values[at : at + TOGETHER]) for at in range(0, len(values), TOGETHER))
        return _touched(self._execute(connection, *values)) if values else 0

    def _run_together(self, connection: Connection, values: Sequence[Values]) -> int:
        sql, _, constants = self._compiled.get(POSTGRESQL) or self._compile(connection.dialect)
        count = len(values)
        if count not in self._of_rows:
            self._of_rows[count] = _with_rows(sql, count)
        together = self._of_rows[count]
        if together is None:
            return sum(self.run(connection, one) for one in values)
        rows = ({**constants, **one} for one in values)
        arguments = {f"{name}_{number}": value for number, one in enumerate(rows) for name, value in one.items()}
        return _touched(_executed(connection, together, arguments))

    def _execute(self, connection: Connection, *values: Values) -> Any:
        sql, order, constants = self._compiled.get(connection.dialect.name) or self._compile(connection.dialect)
        if constants:
            values = tuple({**constants, **one} for one in values)
        return _executed(connection, sql, *(one if order is None else [one[name] for name in order] for one in values))

    def _compile(self, dialect: Dialect) -> _Compiled:
        statement = self._statement
        made = statement if isinstance(statement, ClauseElement) else statement(dialect.name)
        compiled: Any = made.compile(dialect=dialect)
        order = tuple(compiled.positiontup) if compiled.positional else None
        constants = {name: value for name, value in compiled.params.items() if value is not None}
        self._compiled[dialect.name] = str(compiled), order, constants
        return self._compiled[dialect.name]


def _with_rows(sql: str, count: int) -> str | None:
    """An INSERT of one row, rewritten for `count` rows with numbered parameters; None if it is not an INSERT."""
    parts = _INSERT.fullmatch(sql)
    if parts is None:
        return None
    before, row, after = parts.groups()
    rows = (row.replace(")s", f"_{number})s") for number in range(count))
    return before + ", ".join(rows) + after


def _executed(connection: Connection, sql: str, *arguments: Any) -> Any:
    driver: Any = connection.connection.dbapi_connection
    cursor = driver.cursor()
    try:
        if len(arguments) == 1:
            cursor.execute(sql, arguments[0])
        else:
            cursor.executemany(sql, arguments)
    except Exception as error:
        cursor.close()
        raise _wrapped(error, connection.dialect) from error
    note_write(connection, sql)
    return cursor


def note_write(connection: Connection, sql: str) -> None:
    """Record in the connection's `info` that a statement may have changed rows (INSERT, UPDATE, DELETE)."""
    if sql.startswith(_CHANGES):
        connection.info[WRITTEN] = True


def _touched(cursor: Any) -> int:
    touched: int = cursor.rowcount
    cursor.close()
    return touched


def _wrapped(error: Exception, dialect: Dialect) -> BaseException:
    base: Any = dialect.loaded_dbapi.Error
    if not isinstance(error, base):
        return error
    wrapped: BaseException = DBAPIError.instance(None, None, error, base, hide_parameters=True, dialect=dialect)
    return wrapped
