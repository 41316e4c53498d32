"""hubctl get --group-by and --count: numbers of objects, counted by the hub."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import click

from hubctl.client.http import TABLE, ApiClient
from hubctl.client.resources import ResourceKind
from hubctl.errors import CommandError
from hubctl.output.formats import OutputFormat
from hubctl.output.printers import TableLayout, printer_of

ALL = "*"
"""Groups all objects together."""
NONE = "<none>"


@dataclass(frozen=True, slots=True)
class CountQuery:
    """The objects to count; `words` to group by, or `ALL`."""

    resource: ResourceKind
    path: str
    query: Mapping[str, str]
    words: str = ALL


def show_counts(client: ApiClient, counted: CountQuery, form: OutputFormat) -> None:
    """Print a row per group, or a single number. Raises CommandError."""
    answer = client.get(counted.path, accept=TABLE, **counted.query, groupBy=counted.words)
    rows: list[dict[str, Any]] = answer.get("rows") or []
    if form.is_table:
        if counted.words == ALL and form.name != "csv":
            click.echo(rows[0]["cells"][0])
            return
        rows = [{**row, "cells": [NONE if cell is None else cell for cell in row["cells"]]} for row in rows]
    elif form.name not in ("json", "yaml"):
        raise CommandError(f"-o {form.name} shows objects, and counts are none: leave it out, or use json, yaml or csv", code=2)
    look = TableLayout(replace(counted.resource, namespaced=False), form)
    printer_of(look).first({**answer, "rows": rows})
