"""Groups the objects of a query (`groupBy`), counts each group, adds up its fields (`sum`), and sorts the groups."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from hub.api.query.expressions import FieldReference, QueryRecord
from machinery.expression.types import format_quantity, number_of

COUNT = "count"
"""The word in the groups' `sortBy` for the number of objects in a group."""
_BYTES = ("memory", "storage")


@dataclass(frozen=True, slots=True)
class Group:
    """Group of a GroupQuery. `values`: per field in `by` (None: missing). `totals`: per field in `sums` (None: no value)."""

    values: tuple[str | None, ...]
    count: int = 0
    totals: tuple[Fraction | int | None, ...] = ()


@dataclass(frozen=True, slots=True)
class GroupQuery:
    """A query for groups. `by`: the fields that group objects. `sums`: the fields to add up in each group.

    `order`: pairs of a column's index in the answer (fields, count, sums) and whether it descends. If `order` is empty, the
    largest group comes first.
    """

    by: tuple[FieldReference, ...]
    sums: tuple[FieldReference, ...] = ()
    order: tuple[tuple[int, bool], ...] = ()

    def row(self, known: QueryRecord) -> tuple[Any, ...]:
        """Return an object as a row for `groups`: the values of `by`, the sort keys of `sums`, and 1 as the count."""
        return *(known.text(each.source) for each in self.by), *(each.place(known) for each in self.sums), 1

    def groups(self, rows: Iterable[Sequence[Any]]) -> list[Group]:
        """Return the sorted groups of rows. A row: values of `by`, sort keys of `sums` (None: no value), number of objects."""
        width, none = len(self.by), [0, *(None for _ in self.sums)]
        found: dict[tuple[str | None, ...], list[Any]] = {} if self.by else {(): list(none)}
        for row in rows:
            total, count = found.setdefault(tuple(row[:width]), list(none)), int(row[-1])
            total[0] += count
            for index, key in enumerate(row[width:-1], start=1):
                if key is not None:
                    total[index] = (total[index] or 0) + number_of(key) * count
        return self._arranged([Group(values, count, tuple(totals)) for values, (count, *totals) in found.items()])

    def answer(self, group: Group) -> list[str | int | None]:
        totals = zip(self.sums, group.totals, strict=True)
        return [*group.values, group.count, *(None if total is None else _shown(each, total) for each, total in totals)]

    def _arranged(self, groups: list[Group]) -> list[Group]:
        """Groups that are equal in `order` are sorted by their values; a missing value comes last in both directions."""
        groups.sort(key=lambda group: [value or "" for value in group.values])
        for column, descending in reversed(self.order or ((len(self.by), True),)):
            places = {group.values: self._place(group, column) for group in groups}
            present = [group for group in groups if places[group.values] is not None]
            present.sort(key=lambda group: places[group.values], reverse=descending)
            groups = [*present, *(group for group in groups if places[group.values] is None)]
        return groups

    def _place(self, group: Group, column: int) -> Any:
        """A comparable form of a cell; None if there is no value."""
        if column >= len(self.by):
            return (group.count, *group.totals)[column - len(self.by)]
        return self.by[column].rank(group.values[column])


def _shown(of: FieldReference, total: Fraction | int) -> str:
    """Memory and storage in Ki to Ei, all else in plain numbers."""
    resource = of.source.key.rpartition(".")[2]
    return format_quantity(total, binary=resource.endswith(_BYTES) or resource.startswith("hugepages-"))
