"""`hubctl get`: objects as a table, as JSON, YAML or names."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from hub.cli.connection import TABLE, Door
from hub.cli.errors import CliError
from hub.cli.resources import Kind
from hub.cli.tables import TablePrinter


@dataclass(frozen=True, slots=True)
class Asked:
    """One `get`. `name` None: all; `output` None: the kind's own way."""

    kind: Kind
    name: str | None = None
    output: str | None = None
    selector: str | None = None

    @property
    def path(self) -> str:
        return self.kind.object_path(self.name) if self.name else self.kind.path

    @property
    def query(self) -> dict[str, str]:
        return {"labelSelector": self.selector} if self.selector else {}

    @property
    def is_table(self) -> bool:
        return self.output in {None, "table", "wide"}

    def printer(self) -> TablePrinter:
        return TablePrinter(wide=self.output == "wide" or (self.output is None and self.kind.wide))


def listed(door: Door, asked: Asked) -> Iterator[str]:
    """The lines of a list or of one object."""
    if not asked.is_table:
        yield from _document(door.get(asked.path, asked.query), asked)
        return
    table = door.get(asked.path, asked.query, accept=TABLE)
    if not table.get("rows"):
        yield f"there is no {asked.kind.noun} yet"
        return
    yield from asked.printer().lines(table)


def watched(door: Door, asked: Asked) -> Iterator[str]:
    """The lines of a list, then a line for every change, without end."""
    from hub.cli.watching import tables  # noqa: PLC0415 - start-up time

    if not asked.is_table:
        raise CliError("-w shows a table: leave out -o, or use -o wide", exit_code=2)
    query = asked.query | ({"fieldSelector": f"metadata.name={asked.name}"} if asked.name else {})
    printer = asked.printer()
    for table in tables(door, asked.kind.path, query):
        yield from printer.lines(table)


def _document(document: dict[str, Any], asked: Asked) -> Iterator[str]:
    if asked.output == "name":
        for item in document.get("items", [document]):
            yield f"{asked.kind.names[0]}/{item['metadata']['name']}"
    elif asked.output == "json":
        yield json.dumps(document, indent=4)
    else:
        import yaml  # noqa: PLC0415 - start-up time

        yield yaml.safe_dump(document, sort_keys=False, allow_unicode=True).rstrip()
