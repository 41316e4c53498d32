"""The hub's Table answers, printed as kubectl prints them."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

GAP = "   "


class TablePrinter:
    """Prints rows under one header; later rows (of a watch) keep the widths, and grow them where they must."""

    def __init__(self, *, wide: bool) -> None:
        self._wide = wide
        self._widths: list[int] = []
        self._chosen: list[int] = []
        self._namespaced = False

    def lines(self, table: Mapping[str, Any]) -> list[str]:
        """The lines of a Table, a header first when the table has column definitions and none was printed yet."""
        definitions: Sequence[Mapping[str, Any]] = table.get("columnDefinitions") or ()
        rows: Sequence[Mapping[str, Any]] = table.get("rows") or ()
        header: list[list[str]] = []
        if definitions and not self._chosen:
            self._chosen = [at for at, column in enumerate(definitions) if self._wide or not column.get("priority")]
            self._namespaced = any((row.get("object") or {}).get("metadata", {}).get("namespace") for row in rows)
            names = [str(definitions[at]["name"]).upper() for at in self._chosen]
            header = [["NAMESPACE", *names] if self._namespaced else names]
        lines = header + [self._cells(row) for row in rows]
        self._widen(lines)
        return [self._line(line) for line in lines]

    def _cells(self, row: Mapping[str, Any]) -> list[str]:
        cells = [_text(row["cells"][at]) for at in self._chosen if at < len(row["cells"])]
        namespace = str((row.get("object") or {}).get("metadata", {}).get("namespace") or "")
        return [namespace, *cells] if self._namespaced else cells

    def _widen(self, lines: Iterable[Sequence[str]]) -> None:
        for line in lines:
            self._widths += [0] * (len(line) - len(self._widths))
            self._widths = [max(width, len(line[at])) if at < len(line) else width for at, width in enumerate(self._widths)]

    def _line(self, cells: Sequence[str]) -> str:
        return GAP.join(cell.ljust(width) for cell, width in zip(cells, self._widths, strict=False)).rstrip()


def _text(cell: Any) -> str:
    """As kubectl: nothing for an absent value, lower-case booleans."""
    if cell is None:
        return ""
    return str(cell).lower() if isinstance(cell, bool) else str(cell)
