"""Printers of objects, one class per output format: tables, documents, names, templates, columns, CSV."""

import json
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from textwrap import indent
from typing import Any

import click

from hubctl.client.http import JSON, TABLE, ApiClient
from hubctl.client.resources import PAGING, ResourceKind, join_pages, pages
from hubctl.files import as_yaml
from hubctl.output.formats import COLUMNS, TEMPLATES, OutputFormat, argument_of
from hubctl.output.tables import Layout, cell_text, print_lines, printable, terminal_width


@dataclass(frozen=True, slots=True)
class PrintOptions:
    """What a printer shows of the objects of one kind, and the format."""

    resource: ResourceKind
    form: OutputFormat = field(default_factory=OutputFormat)
    watch: bool = False
    headers: bool = True
    labels: tuple[str, ...] = ()
    """Labels for which there is a column."""
    all_labels: bool = False
    kinds: bool = False
    """Whether names are printed with their kind."""
    events: bool = False
    """Whether a watch prints the type of each change."""

    def shows(self, column: Mapping[str, Any]) -> bool:
        """Whether the format shows the column. Kinds that are wide by default show columns up to priority 1."""
        most = 1 if not self.form.given and self.resource.wide else 0
        return self.form.name in ("wide", "csv") or int(column.get("priority") or 0) <= most


class Printer(ABC):
    """Prints objects in one output format."""

    accept = JSON

    @abstractmethod
    def first(self, answer: dict[str, Any]) -> None:
        """Print the objects in the answer to a list request. A watch calls it again after a gap."""

    @abstractmethod
    def event(self, kind: str, answer: dict[str, Any]) -> None:
        """Print one event of a watch. `kind`: its type, such as ADDED; `answer`: its object, or a table with its row."""

    def pages(self, answers: Iterator[dict[str, Any]]) -> None:
        """Print the pages of a list. If the format allows it, print each page when it arrives."""
        self.first(join_pages(answers))


def printer_of(options: PrintOptions) -> Printer:
    """Return the printer of an output format. Raises CommandError for an invalid template or invalid columns."""
    name = options.form.name
    if name in TEMPLATES:
        return TemplatePrinter(options)
    if name in COLUMNS or (name == "csv" and options.form.argument):
        return ColumnPrinter(options)
    if options.form.is_table:
        return TablePrinter(options)
    return NamePrinter(options) if name == "name" else DocumentPrinter(options)


EMPTY = ("", "<none>")


class RowPrinter(Printer):
    """Prints rows of cells, in aligned columns or as CSV."""

    def __init__(self, options: PrintOptions) -> None:
        self._options = options
        self._layout: Layout | None = None

    def _put(self, titles: Sequence[str], rows: Sequence[Sequence[str]], *, upper: bool = True) -> None:
        has_header = self._layout is None and self._options.headers
        if self._layout is None:
            self._layout = Layout(titles, rows, upper=upper, heads=self._options.headers)
        if self._options.form.name == "csv":
            from hubctl.output.columns import format_csv  # noqa: PLC0415 - the other forms do not wait for it

            click.echo(format_csv([*([titles] if has_header else []), *rows]), nl=False)
        else:
            print_lines([*([self._layout.header] if has_header else []), *map(self._layout.row, rows)])


class TablePrinter(RowPrinter):
    """Prints the tables that the hub creates."""

    accept = TABLE

    def __init__(self, options: PrintOptions) -> None:
        super().__init__(options)
        self._columns: list[Mapping[str, Any]] = []
        self._chosen: list[int] = []

    def pages(self, answers: Iterator[dict[str, Any]]) -> None:
        if self._options.form.name != "csv":  # the width of a table's columns depends on all rows
            super().pages(answers)
            return
        for index, answer in enumerate(answers):
            if answer.get("rows") or not index:
                self.first(answer)

    def first(self, answer: dict[str, Any]) -> None:
        rows = answer.get("rows") or []
        if not rows and not self._options.watch:
            click.echo(f"there is no {self._options.resource.noun} to show", err=True)
            return
        self._columns = list(answer.get("columnDefinitions") or self._columns)
        self._chosen = [index for index, column in enumerate(self._columns) if self._options.shows(column)]
        if self._options.form.name == "table" and self._layout is None:
            self._hide_columns(rows)
        self._put(self._titles(), [self._cells(row, "ADDED") for row in rows])

    def _hide_columns(self, rows: Sequence[dict[str, Any]]) -> None:
        """On a terminal, hide the last columns if they do not fit, and empty columns unless a watch may fill them.

        Outside of a terminal nothing is hidden, so that scripts always get the same columns.
        """
        if not (width := terminal_width()):
            return
        if not self._options.watch:
            chosen = (index for index in self._chosen if any(cell_text(row["cells"][index]) not in EMPTY for row in rows))
            self._chosen = [*chosen] or self._chosen
        while len(self._chosen) > 1 and Layout(self._titles(), [self._cells(row, "ADDED") for row in rows]).width > width:
            self._chosen.pop()

    def event(self, kind: str, answer: dict[str, Any]) -> None:
        for row in answer.get("rows") or []:
            cells = self._cells(row, kind)
            if kind != "DELETED" or self._options.events:
                self._put(self._titles(), [cells])
            elif self._layout is not None and self._options.form.name != "csv":
                click.echo(f"{self._layout.row(cells)}   (deleted)")

    def _titles(self) -> list[str]:
        options = self._options
        return [
            *(["Event"] if options.events else []),
            *(["Namespace"] if options.resource.namespaced else []),
            *(str(self._columns[index]["name"]) for index in self._chosen),
            *(label.rpartition("/")[2] for label in options.labels),
            *(["Labels"] if options.all_labels else []),
        ]

    def _cells(self, row: dict[str, Any], kind: str) -> list[str]:
        options, cells = self._options, row.get("cells") or []
        metadata = (row.get("object") or {}).get("metadata") or {}
        labels = metadata.get("labels") or {}
        chosen = [cell_text(cells[index]) if index < len(cells) else "" for index in self._chosen]
        if options.kinds and chosen:
            chosen[0] = f"{options.resource.singular}/{chosen[0]}"
        pairs = ",".join(f"{name}={value}" for name, value in sorted(labels.items()))
        return [
            *([kind] if options.events else []),
            *([cell_text(metadata.get("namespace"))] if options.resource.namespaced else []),
            *chosen,
            *(cell_text(labels.get(label)) for label in options.labels),
            *([cell_text(pairs or "<none>")] if options.all_labels else []),
        ]


class ColumnPrinter(RowPrinter):
    """Prints user-defined columns, as a table or as CSV."""

    def __init__(self, options: PrintOptions) -> None:
        from hubctl.output.columns import columns_in, columns_of  # noqa: PLC0415 - the other forms do not wait for it

        super().__init__(options)
        read = columns_in if options.form.name == "custom-columns-file" else columns_of
        self._columns = read(argument_of(options.form))

    def first(self, answer: dict[str, Any]) -> None:
        rows = [[cell_text(column.cell(item)) for column in self._columns] for item in items_of(answer)]
        self._put([column.title for column in self._columns], rows, upper=False)

    def event(self, kind: str, answer: dict[str, Any]) -> None:
        if kind != "DELETED":
            self.first(answer)


class TemplatePrinter(Printer):
    """Prints the results of a JSONPath template for an object or a list."""

    def __init__(self, options: PrintOptions) -> None:
        from hubctl.jsonpath import as_json, parse_template, rendered  # noqa: PLC0415 - the other forms do not wait for it

        self._watch = options.watch
        self._template = parse_template(argument_of(options.form))
        self._render = as_json if options.form.name == "jsonpath-as-json" else rendered

    def first(self, answer: dict[str, Any]) -> None:
        for document in items_of(answer) if self._watch else [answer]:
            # As in kubectl: a single answer has no line break at its end; several answers have one line each.
            click.echo(self._text(document), nl=self._watch)

    def event(self, kind: str, answer: dict[str, Any]) -> None:
        del kind
        click.echo(self._text(answer))

    def _text(self, document: dict[str, Any]) -> str:
        """Return the text. If the output is a terminal, replace control characters, because agents may have reported them."""
        text = self._render(self._template, document)
        if not sys.stdout.isatty():
            return text
        return "".join(character if character in "\n\t" else printable(character) for character in text)


class NamePrinter(Printer):
    def __init__(self, options: PrintOptions) -> None:
        self._kind = options.resource.singular

    def first(self, answer: dict[str, Any]) -> None:
        for document in items_of(answer):
            self.event("ADDED", document)

    def event(self, kind: str, answer: dict[str, Any]) -> None:
        del kind
        click.echo(f"{self._kind}/{answer['metadata']['name']}")

    def pages(self, answers: Iterator[dict[str, Any]]) -> None:
        for answer in answers:
            self.first(answer)


class DocumentPrinter(Printer):
    def __init__(self, options: PrintOptions) -> None:
        self._options = options

    def first(self, answer: dict[str, Any]) -> None:
        for document in items_of(answer) if self._options.watch else [answer]:
            self.event("ADDED", document)

    def event(self, kind: str, answer: dict[str, Any]) -> None:
        document = {"type": kind, "object": answer} if self._options.events else answer
        print_document(document, self._options.form.name, apart=self._options.watch)

    def pages(self, answers: Iterator[dict[str, Any]]) -> None:
        """Print all pages as one list. As JSON, print each object when it arrives."""
        if self._options.form.name != "json":
            super().pages(answers)
            return
        head = next(answers)
        metadata = {name: value for name, value in (head.get("metadata") or {}).items() if name not in PAGING}
        around = {**{name: value for name, value in head.items() if name != "items"}, "metadata": metadata}
        before = json.dumps(around, indent=4).removesuffix("\n}") + ',\n    "items": ['
        for item in (item for answer in chain((head,), answers) for item in answer.get("items") or ()):
            click.echo(f"{before}\n{indent(json.dumps(item, indent=4), ' ' * 8)}", nl=False)
            before = ","
        click.echo("\n    ]\n}" if before == "," else f"{before}]\n}}")


def print_document(document: Mapping[str, Any], form: str, *, apart: bool = False) -> None:
    """Print a document as JSON if `form` is `json`, else as YAML. `apart`: begin with the line `---`."""
    if form == "json":
        click.echo(json.dumps(document, indent=4))
    else:
        click.echo(as_yaml(document, apart=apart), nl=False)


def items_of(answer: dict[str, Any]) -> Iterator[dict[str, Any]]:
    items = answer.get("items")
    yield from [answer] if items is None else items


def show_all(client: ApiClient, resource: ResourceKind) -> None:
    """Print all objects of a kind once, as a table. Raises CommandError."""
    printer = printer_of(PrintOptions(resource))
    printer.pages(pages(client, resource.path, {}, accept=printer.accept))
