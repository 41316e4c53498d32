"""Rows as CSV (RFC 4180), to be opened by what people count with."""

import csv
import io
import re
from collections.abc import Iterable, Sequence

FORMULA = re.compile(r"[\t\r\n]|\s*[=+@\uff1d\uff0b\uff20\uff0d]|\s*-(?!(?:\d+\.?\d*|\.\d+)\Z)")
"""What programs for sheets take for the beginning of a formula, full-width signs too; a negative number is none."""


def sheet(rows: Iterable[Sequence[str]]) -> str:
    """Lines that end in CRLF. What would be run as a formula gets an apostrophe: agents report what stands in cells."""
    text = io.StringIO()
    csv.writer(text).writerows([_plain(cell) for cell in row] for row in rows)
    return text.getvalue()


def _plain(cell: str) -> str:
    return f"'{cell}" if FORMULA.match(cell) else cell
