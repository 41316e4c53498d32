"""hubctl get: tables from the hub, objects, counts, and changes."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import click

from hubctl.arguments.completion import target_words
from hubctl.arguments.targets import Target, TargetScope, check, each, read_targets
from hubctl.client.connection import connected
from hubctl.client.http import TABLE, ApiClient, fetch_all_pages, pages
from hubctl.client.resources import Catalogue, ResourceKind
from hubctl.errors import CommandError
from hubctl.options import moment, with_options
from hubctl.output.formats import CRL_FORMS, OutputFormat, output_option
from hubctl.output.printers import PagePrinter, Printer, TableLayout, items_of, printer_of

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
    layout = TableLayout(replace(counted.resource, namespaced=False), form)
    printer_of(layout).first({**answer, "rows": rows})


CRL_WORDS = ("crl", "crls", "revocation-lists")
LOOKS = with_options(
    output_option(*CRL_FORMS, note="Output format (clusters are always wide):"),
    click.option("--no-headers", is_flag=True, help="Omit the column headers."),
    click.option("-L", "--label-columns", default="", metavar="LABEL,...", help="Add a column for each of these labels."),
    click.option("--show-labels", is_flag=True, help="Show all labels in the last column."),
    click.option("--show-kind", is_flag=True, help="Show names with their kind."),
)
CHOICES = with_options(
    click.option("-l", "--selector", default="", metavar="SELECTOR", help="Labels, as in 'env in (prod,dev),!edge'."),
    click.option("--field-selector", default="", metavar="SELECTOR", help="Fields, as in 'status.available!=True'."),
    click.option(
        "--where",
        default="",
        metavar="CONDITION",
        help="For clusters: a condition, such as 'version < 1.30 && available != \"True\"' (see below).",
    ),
    click.option(
        "-n", "--namespace", default="", metavar="CLUSTER", help="For add-ons, leases and events: the namespace of one cluster."
    ),
    click.option("-A", "--all-namespaces", is_flag=True, help="In the namespaces of all clusters (the default)."),
    click.option(
        "--at",
        default="",
        metavar="TIME",
        help="Show the past state at a time such as 2026-11-01T12:00Z, or a duration ago, such as 2h.",
    ),
    click.option(
        "--sort-by",
        default="",
        metavar="WORD,...",
        help="For clusters: sort keys, such as '-memory,name'; '-' sorts descending.",
    ),
    click.option(
        "--group-by", default="", metavar="WORD,...", help="For clusters: count by values, such as 'version' or 'set'."
    ),
    click.option("--count", is_flag=True, help="For clusters: print only their number."),
    click.option("--limit", type=click.IntRange(min=1), metavar="NUMBER", help="Maximum number of objects."),
    click.option("--ignore-not-found", is_flag=True, help="Do not fail if an object does not exist."),
)
WATCHES = with_options(
    click.option("-w", "--watch", is_flag=True, help="Then show changes until interrupted, also across restarts of the hub."),
    click.option("--watch-only", is_flag=True, help="Show only changes, not the current objects."),
    click.option(
        "--output-watch-events", "events", is_flag=True, help="Show the type of each change: ADDED, MODIFIED, DELETED."
    ),
)


@click.command()
@click.argument("words", nargs=-1, required=True, metavar="KIND [NAME...]", shell_complete=target_words)
@LOOKS
@CHOICES
@WATCHES
@connected
def get(client: ApiClient, words: tuple[str, ...], **chosen: Any) -> None:
    """List clusters, csr, rules, bootstrap-credentials, addons, leases, the fleet or leader; with NAME one of them.

    KIND is any kind that the hub serves (see `hubctl api-resources`), or several, separated by commas; KIND/NAME is one
    object.

    Clusters are shown with the age of the last beat and its agent. AGENT is "(no session)" as soon as the agent's session
    has ended; AVAILABLE becomes Unknown when the grace ends.

    A condition compares name, version, cpu, memory, nodes, age, set, accepted, available, joined, clockSynced, agentVersion,
    lastBeat, connected and the entries of labels, claims, taints, addons, conditions, capacity and allocatable, as in
    labels["env"] == "prod", with ==, !=, <, <=, >, >=, in, && and ||, !, has(), startsWith(), endsWith(), contains() and
    matches(). A value that a cluster does not have is unknown, and an unknown condition selects nothing. --sort-by and
    --group-by take the same names; clusters without the value are sorted last.

    \b
    Forms (-o):
      wide                         all columns of the table
      json, yaml                   the objects
      name                         KIND/NAME, for other commands
      csv                          the table with all its columns; csv=TITLE:.path,... those columns
      jsonpath='{.items[*]...}'    as kubectl's; jsonpath-as-json=... each result as JSON; jsonpath-file=FILE
      custom-columns=TITLE:.path   columns of your own; custom-columns-file=FILE

    \b
    Examples:
      hubctl get clusters
      hubctl get clusters -w
      hubctl get clusters -l region=eu
      hubctl get clusters --where 'version < 1.30 && memory >= 64Gi'
      hubctl get clusters --where 'available != "True" && age > 1h && !("maintenance" in taints)'
      hubctl get clusters --sort-by=-memory,name --limit=10
      hubctl get clusters --where 'lastBeat > 5m' --sort-by lastBeat
      hubctl get clusters --group-by version,set
      hubctl get clusters --where 'addons["search"] == "unhealthy"' --count
      hubctl get cluster edge1 -o yaml
      hubctl get cluster edge1 -o jsonpath='{.status.version.kubernetes}'
      hubctl get clusters -o custom-columns=NAME:.metadata.name,VERSION:.status.version.kubernetes
      hubctl get clusters -o csv > clusters.csv
      hubctl get cluster edge1 --at 2026-11-01T12:00Z
      hubctl get clusters --at 2h --where 'available != "True"'
      hubctl get csr
      hubctl get fleet
      hubctl get addons -n edge1
      hubctl get events -n edge1
      hubctl get leader
      hubctl get crl -o pem
    """
    form: OutputFormat = chosen["output"]
    if words[0].lower() in CRL_WORDS:
        from hubctl.commands.access.revocation import show_lists  # noqa: PLC0415 - start-up time

        show_lists(client, words[1] if len(words) > 1 else None, form.name if form.given else None)
        return
    if form.name in CRL_FORMS:
        raise CommandError(f"-o {form.name} is for revocation lists: hubctl get crl", code=2)
    targets = read_targets(Catalogue(client), words)
    if chosen["group_by"] or chosen["count"]:
        _show_counts(client, targets, _options(chosen), chosen)
        return
    _show_all(client, targets, _options(chosen))


@dataclass(frozen=True, slots=True)
class GetOptions:
    """The options of the command line, for any kind."""

    place: TargetScope
    table_layout: Callable[[Target], TableLayout]
    where: str = ""
    sort_by: str = ""
    limit: int | None = None
    watch: bool = False
    only_changes: bool = False
    ignores_missing: bool = False
    at: str = ""
    """In the hub's format; empty: now."""

    @property
    def query(self) -> dict[str, str]:
        return {**self.place.query, "where": self.where, "at": self.at}

    @property
    def listed(self) -> dict[str, str]:
        """The query of a list. A watch sends changes unsorted."""
        return {**self.query, "sortBy": self.sort_by}


def _options(chosen: dict[str, Any]) -> GetOptions:
    if chosen["all_namespaces"] and chosen["namespace"]:
        raise CommandError("give -n or -A, not both", code=2)
    watch = chosen["watch"] or chosen["watch_only"]
    if watch and chosen["limit"]:
        raise CommandError("a watch shows all of them: leave out --limit", code=2)
    if watch and chosen["at"]:
        raise CommandError("the past does not change: leave out -w, or --at", code=2)
    labels = tuple(label for label in chosen["label_columns"].split(",") if label)

    def table_layout(target: Target) -> TableLayout:
        return TableLayout(
            target.resource,
            chosen["output"],
            watch=watch,
            headers=not chosen["no_headers"],
            labels=labels,
            all_labels=chosen["show_labels"],
            kinds=chosen["show_kind"],
            events=chosen["events"],
        )

    return GetOptions(
        TargetScope(chosen["namespace"], chosen["selector"], chosen["field_selector"]),
        table_layout,
        chosen["where"],
        chosen["sort_by"],
        chosen["limit"],
        watch,
        chosen["watch_only"],
        chosen["ignore_not_found"],
        moment(chosen["at"]),
    )


def _show_counts(client: ApiClient, targets: list[Target], options: GetOptions, chosen: dict[str, Any]) -> None:
    if chosen["group_by"] and chosen["count"]:
        raise CommandError("give --group-by or --count, not both: groups are counted", code=2)
    if len(targets) != 1 or targets[0].names or options.watch or options.sort_by or options.limit:
        raise CommandError("one kind is counted at a time, all of it: leave out names, -w, --sort-by and --limit", code=2)
    check(targets[0], options.place)
    resource = targets[0].resource
    counted = CountQuery(resource, resource.within(options.place.namespace), options.query, chosen["group_by"] or ALL)
    show_counts(client, counted, chosen["output"])


def _show_all(client: ApiClient, targets: list[Target], options: GetOptions) -> None:
    for target in targets:
        check(target, options.place)
        if target.names and (options.where or options.sort_by):
            raise CommandError("give names, or --where and --sort-by, not both", code=2)
    if len(targets) == 1:
        _show(client, targets[0], options)
        return
    if options.watch:
        raise CommandError("one kind at a time can be watched", code=2)
    _show_kinds(client, targets, options)


def _show_kinds(client: ApiClient, targets: list[Target], options: GetOptions) -> None:
    """Show several kinds: tables one after the other, documents as one list."""
    layouts = [replace(options.table_layout(target), kinds=True) for target in targets]
    if layouts[0].form.is_table or layouts[0].form.name == "name":
        for index, (target, layout) in enumerate(zip(targets, layouts, strict=True)):
            if index and layout.form.name != "name":
                click.echo()
            _show_once(client, target, options, printer_of(layout))
        return
    printer = printer_of(layouts[0])
    found: list[dict[str, Any]] = []
    for target in targets:
        _collect(client, target, options, printer.accept, found)
    printer.first(_together([item for answer in found for item in items_of(answer)], several=True))


def _show(client: ApiClient, target: Target, options: GetOptions) -> None:
    """Print the objects once, and with a watch every change. Raises CommandError."""
    printer = printer_of(options.table_layout(target))
    if not options.watch:
        if target.names or not isinstance(printer, PagePrinter):
            _show_once(client, target, options, printer)
        else:
            path = target.resource.within(options.place.namespace)
            printer.pages(pages(client, path, options.listed, accept=printer.accept, limit=options.limit))
        return
    if not target.resource.watchable:
        raise CommandError(f"{target.resource.words[0]} cannot be watched: leave out -w", code=2)
    if len(target.names) > 1:
        raise CommandError("one name, or all, can be watched", code=2)
    from hubctl.output.watch import Watched, follow  # noqa: PLC0415 - start-up time

    path, query = _watched(target, options)
    answer = fetch_all_pages(client, path, {**query, "sortBy": options.sort_by}, accept=printer.accept)
    if not options.only_changes:
        printer.first(answer)
    elif answer.get("columnDefinitions"):
        printer.first({**answer, "rows": []})
    follow(client, Watched(path, query, answer), printer)


def _watched(target: Target, options: GetOptions) -> tuple[str, dict[str, str]]:
    """A watch always has the path of the collection; a name becomes a field selector."""
    query = options.query
    if target.names:
        query = {**query, "fieldSelector": f"metadata.name={target.names[0]}"}
    return target.resource.within(options.place.namespace), query


def _show_once(client: ApiClient, target: Target, options: GetOptions, printer: Printer) -> None:
    """Print the objects that exist, even if others of the named ones do not. Raises CommandError."""
    found: list[dict[str, Any]] = []
    try:
        _collect(client, target, options, printer.accept, found)
    finally:
        if found:
            printer.first(_together(found))


def _collect(client: ApiClient, target: Target, options: GetOptions, accept: str, found: list[dict[str, Any]]) -> None:
    """Append the list of all chosen objects, or each named object, to `found`. Raises CommandError for a missing one."""
    resource, namespace = target.resource, options.place.namespace
    if not target.names:
        found.append(fetch_all_pages(client, resource.within(namespace), options.listed, accept=accept, limit=options.limit))
        return

    def fetch(name: str) -> None:
        try:
            found.append(client.get(resource.of(name, namespace), accept=accept, at=options.at))
        except CommandError as error:
            if error.reason != "NotFound" or not options.ignores_missing:
                raise

    each(target.names, fetch)


def _together(found: list[dict[str, Any]], *, several: bool = False) -> dict[str, Any]:
    if len(found) == 1 and not several:
        return found[0]
    if any("columnDefinitions" in answer for answer in found):
        return {**found[0], "rows": [row for answer in found for row in answer.get("rows") or ()]}
    return {"apiVersion": "v1", "kind": "List", "items": found, "metadata": {}}
