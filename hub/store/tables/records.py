"""Converts records to rows of a table and back, by the types of the record's fields."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import MISSING, fields
from datetime import datetime, timedelta
from enum import Enum
from operator import attrgetter
from types import UnionType
from typing import Any, Generic, TypeVar, Union, get_args, get_origin, get_type_hints

from sqlalchemy import ColumnElement, Connection, Table, true

from hub.store.engine.encoding import MICROSECOND, decode_names, encode_names, from_micros, to_micros
from machinery.identity import SerialNumber

R = TypeVar("R")
Convert = Callable[[Any], Any]
Conversion = tuple[Convert | None, Convert | None]
"""Functions that write and read a value; None: no conversion. NULL is never converted."""


def hex_serial(serial: SerialNumber) -> str:
    return f"{serial:x}"


def parse_serial(text: str) -> SerialNumber:
    return SerialNumber(int(text, 16))


_BY_TYPE: Mapping[Any, Conversion] = {
    bool: (None, bool),  # SQLite returns integers
    datetime: (to_micros, from_micros),
    timedelta: (lambda duration: duration // MICROSECOND, lambda micros: micros * MICROSECOND),
    tuple[str, ...]: (encode_names, decode_names),
    SerialNumber: (hex_serial, parse_serial),
}
"""Other types are stored as they are."""


MOST_NAMED = 1_000
"""For more names, a statement reads all rows: SQLite accepts at most 32,766 parameters."""


def is_in(column: ColumnElement[str], names: Collection[str]) -> ColumnElement[bool]:
    """Return the SQL condition `column IN names`; for more than MOST_NAMED names `true`: the caller then filters the rows."""
    return true() if len(names) > MOST_NAMED else column.in_(names)


class SqlTable:
    """Base class of the tables of one transaction."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection


class RowMapper(Generic[R]):
    """Maps a dataclass to a table. A column has the name of its field, unless `columns` says otherwise."""

    def __init__(
        self, record: type[R], table: Table, *, columns: Mapping[str, str] | None = None, **own: Conversion | None
    ) -> None:
        """`columns`: the column of each field that has another name.

        `own`: the conversion of a field, in place of that of its type. None: `values` and `record` leave the field to the
        caller.
        """
        hints, positions = get_type_hints(record), {column.name: place for place, column in enumerate(table.columns)}
        self._record = record
        self._write: list[tuple[str, str, Convert | None]] = []
        self._read: list[tuple[str, int, Convert | None, bool]] = []
        for field in fields(record):  # type: ignore[arg-type]
            name = field.name
            if name in own and own[name] is None:
                continue
            column = (columns or {}).get(name, name)
            write, read = own.get(name) or _conversion(hints[name])
            self._write.append((column, name, write))
            self._read.append((name, positions[column], read, field.default is not MISSING))

    def values(self, record: R, **others: Any) -> dict[str, Any]:
        """Return the row as values by column. `others`: additional values, which override the record's values."""
        row: dict[str, Any] = {}
        for column, name, write in self._write:
            value = getattr(record, name)
            row[column] = value if write is None or value is None else write(value)
        return row | others

    def record(self, row: Sequence[Any], **others: Any) -> R:
        """Return the record of a row with values in the order of the table's columns. NULL becomes the field's default or None.

        `others`: values of fields that the row does not have.
        """
        for name, position, read, has_default in self._read:
            value = row[position]
            if value is not None:
                others[name] = value if read is None else read(value)
            elif not has_default:
                others[name] = None
        return self._record(**others)


def _conversion(hint: Any) -> Conversion:
    if get_origin(hint) in (Union, UnionType):
        (hint,) = (each for each in get_args(hint) if each is not type(None))
    if isinstance(hint, type) and issubclass(hint, Enum):
        return attrgetter("value"), hint
    return _BY_TYPE.get(hint, (None, None))
