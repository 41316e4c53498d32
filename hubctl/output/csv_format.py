"""Rows as CSV (RFC 4180) for spreadsheets."""

import csv
import io
import re
from collections.abc import Iterable, Sequence

FORMULA = re.compile(r"[\t\r\n]|\s*[=+@\uff1d\uff0b\uff20\uff0d]|\s*-(?!(?:\d+\.?\d*|\.\d+)\Z)")
"""Matches what spreadsheets evaluate as a formula, full-width signs included; negative numbers do not match."""


def sheet(rows: Iterable[Sequence[str]]) -> str:
    """Lines that end in CRLF. Agents report cell contents, so a cell that looks like a formula gets an apostrophe."""
    text = io.StringIO()
    csv.writer(text).writerows([_plain(cell) for cell in row] for row in rows)
    return text.getvalue()


def _plain(cell: str) -> str:
    return f"'{cell}" if FORMULA.match(cell) else cell
