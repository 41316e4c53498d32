"""User-defined columns (-o custom-columns), and rows as CSV (RFC 4180)."""

import csv
import io
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from hubctl.errors import UsageError
from hubctl.jsonpath import Path, find, parse_path, text_of

FORMULA = re.compile(r"[\t\r\n]|\s*[=+@\uff1d\uff0b\uff20\uff0d]|\s*-(?!(?:\d+\.?\d*|\.\d+)\Z)")
"""Matches text that spreadsheets evaluate as a formula, including full-width signs. Negative numbers do not match."""


def format_csv(rows: Iterable[Sequence[str]]) -> str:
    """Return CSV with CRLF line ends. A cell that looks like a formula gets an apostrophe: agents can report any text."""
    text = io.StringIO()
    csv.writer(text).writerows([f"'{cell}" if FORMULA.match(cell) else cell for cell in row] for row in rows)
    return text.getvalue()


NONE = "<none>"


@dataclass(frozen=True, slots=True)
class CustomColumn:
    title: str
    path: Path

    def cell(self, document: Any) -> str:
        """Return the values at the column's path, separated by commas; `<none>`: there is no value."""
        found = find(self.path, document)
        return ",".join(NONE if value is None else text_of(value) for value in found) or NONE


def columns_of(spec: str) -> tuple[CustomColumn, ...]:
    """Parse `NAME:.metadata.name,VERSION:.status.version.kubernetes`. Raises CommandError."""
    pairs = [part.partition(":")[::2] for part in spec.split(",")]
    wrong = [title for title, path in pairs if not (title and path)]
    if wrong:
        raise UsageError(f'"{wrong[0]}" is not a column: write TITLE:.path, as in NAME:.metadata.name')
    return tuple(CustomColumn(title, parse_path(path)) for title, path in pairs)


def columns_in(text: str) -> tuple[CustomColumn, ...]:
    """Parse a file with a line of titles and a line of paths, separated by spaces. Raises CommandError."""
    lines: Sequence[str] = [*text.splitlines(), "", ""]
    titles, paths = lines[0].split(), lines[1].split()
    if not titles or len(titles) != len(paths):
        raise UsageError("a file of columns has a line of titles and below it a line with a path for each")
    return tuple(CustomColumn(title, parse_path(path)) for title, path in zip(titles, paths, strict=True))
