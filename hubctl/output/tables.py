"""Tables, facts and trees on a terminal: columns aligned as in kubectl, colours only on terminals, no control characters."""

import os
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import click

GAP = "   "
INDENT = "  "
NONE = "<none>"
COLORS = {"true": "32", "false": "31", "unknown": "33", "(no session)": "31"}
COLORED = frozenset(("AVAILABLE", "AGENT", "STATUS"))


def printable(text: str) -> str:
    """Return `text` on one line without control characters, so that reports of agents cannot control the terminal."""
    return "".join(character if character.isprintable() else " " for character in text)


def cell_text(cell: Any) -> str:
    if cell is None:
        return ""
    if isinstance(cell, bool):
        return "true" if cell else "false"
    return printable(str(cell))


def print_lines(lines: Iterable[str]) -> None:
    for line in lines:
        click.echo(line)


def wants_color() -> bool:
    """Whether the output is a terminal and NO_COLOR is not set."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR")


def terminal_width() -> int:
    """Return the number of columns of the terminal; 0: the output is not a terminal."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else 0


class Layout:
    """Columns and their widths. Later rows do not change the widths; a longer cell shifts only its own row."""

    def __init__(self, titles: Sequence[str], rows: Sequence[Sequence[str]], *, upper: bool = True, heads: bool = True) -> None:
        """`upper`: write titles in capitals. `heads`: columns are at least as wide as their titles."""
        self._titles = [title.upper() if upper else title for title in titles]
        lengths = [[len(title) if heads else 0 for title in self._titles], *([len(cell) for cell in row] for row in rows)]
        self._widths = [max(column) for column in zip(*lengths, strict=True)]
        self._color = wants_color()

    @property
    def width(self) -> int:
        """Number of characters of the longest line."""
        return int(sum(self._widths)) + len(GAP) * (len(self._widths) - 1)

    @property
    def header(self) -> str:
        return self.row(self._titles)

    def row(self, cells: Sequence[str]) -> str:
        parts = []
        for index, cell in enumerate(cells):
            text = cell if index == len(cells) - 1 else cell.ljust(self._widths[index])
            code = COLORS.get(cell.lower()) if self._color and self._titles[index] in COLORED else None
            parts.append(f"\x1b[{code}m{text}\x1b[0m" if code else text)
        return GAP.join(parts).rstrip()


def table(titles: Sequence[str], rows: Sequence[Sequence[str]], *, indent: str = "") -> list[str]:
    """Return a whole table as lines."""
    layout = Layout(titles, rows)
    return [indent + line for line in (layout.header, *map(layout.row, rows))]


def fact_lines(facts: Sequence[tuple[str, Any]]) -> list[str]:
    """Return lines with names and values, one pair per line."""
    width = max(len(name) for name, _ in facts) + 2
    return [f"{name + ':':<{width}}{printable(str(value))}" for name, value in facts]


def section_lines(
    title: str, titles: Mapping[str, str], entries: Sequence[Mapping[str, Any]], *, missing: str | None = None
) -> list[str]:
    """Return a table with a title and a row for each entry.

    `titles`: the key of each column, by its title. `missing`: the text for empty values; None: these stay empty.
    """
    rows = [
        [cell_text(entry.get(key) if missing is None else entry.get(key) or missing) for key in titles.values()]
        for entry in entries
    ]
    return [f"{title}:", *table(tuple(titles), rows, indent=INDENT)] if rows else [f"{title}: {NONE}"]


def tree_lines(value: Mapping[str, Any], indent: str = "") -> Iterator[str]:
    """Yield a document as an indented tree. Its keys are the titles."""
    for name, part in value.items():
        yield from _branch(f"{indent}{cell_text(name[:1].upper() + name[1:])}:", part, indent + INDENT)


def _branch(title: str, part: Any, indent: str) -> Iterator[str]:
    if isinstance(part, Mapping) and part:
        yield title
        yield from tree_lines(part, indent)
    elif isinstance(part, list) and part:
        yield title
        for entry in part:
            if isinstance(entry, Mapping):
                first, *more = tree_lines(entry, indent + INDENT)
                yield f"{indent}- {first.strip()}"
                yield from more
            else:
                yield f"{indent}- {cell_text(entry)}"
    else:
        yield f"{title} {NONE if part in ({}, [], None) else cell_text(part)}"
