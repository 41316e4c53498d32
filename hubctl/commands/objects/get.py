"""hubctl get: tables from the hub, objects, counts, and changes."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import click

from hubctl.arguments.batch import run_each
from hubctl.arguments.completion import fields_option, target_words, where_option
from hubctl.arguments.targets import Target, TargetScope, read_targets
from hubctl.client.connection import connected
from hubctl.client.http import TABLE, ApiClient
from hubctl.client.resources import CLUSTERS, Catalogue, join_pages, pages
from hubctl.errors import UsageError
from hubctl.options import moment, text_option, with_options
from hubctl.output.formats import CRL_FORMATS, OutputFormat, output_option
from hubctl.output.printers import Printer, PrintOptions, items_of, printer_of

ALL = "*"
"""The value of --group-by that puts all objects into one group."""
NONE = "<none>"
LIST = {"apiVersion": "v1", "kind": "List", "metadata": {}}


CRL_WORDS = ("crl", "crls", "revocation-lists")
FORMAT_OPTIONS = with_options(
    output_option(*CRL_FORMATS, note="Output format (clusters are wide by default):"),
    click.option("--no-headers", is_flag=True, help="Omit the column headers."),
    text_option("-L", "--label-columns", "LABEL,...", "Add a column for each of these labels."),
    click.option("--show-labels", is_flag=True, help="Show all labels in the last column."),
    click.option("--show-kind", is_flag=True, help="Show names with their kind."),
)
SELECTION_OPTIONS = with_options(
    text_option("-l", "--selector", "SELECTOR", "Labels, as in 'env in (prod,dev),!edge'."),
    text_option("--field-selector", "SELECTOR", "Fields, as in 'status.available!=True'."),
    where_option(help="For clusters: a condition, such as 'version < 1.30 && available != \"True\"' (see below)."),
    text_option("-n", "--namespace", "CLUSTER", "For add-ons, leases and events: the namespace of one cluster."),
    click.option("-A", "--all-namespaces", is_flag=True, help="In the namespaces of all clusters (the default)."),
    text_option("--at", "TIME", "Show the past state at a time such as 2026-11-01T12:00Z, or a duration ago, such as 2h."),
    fields_option(
        "--sort-by",
        help="For clusters: sort keys, such as '-memory,name'; '-' sorts descending. Groups: their words, or 'count'.",
    ),
    fields_option("--group-by", help="For clusters: count by values, such as 'version.minor' or 'set,available'."),
    fields_option("--sum", help="For clusters: add up quantities, such as 'cpu,memory', of each group or of all."),
    click.option("--count", is_flag=True, help="For clusters: print only their number."),
    click.option("--limit", type=click.IntRange(min=1), metavar="NUMBER", help="Maximum number of objects, or of groups."),
    click.option("--ignore-not-found", is_flag=True, help="Do not fail if an object does not exist."),
)
WATCH_OPTIONS = with_options(
    click.option("-w", "--watch", is_flag=True, help="Then show changes until interrupted, also across restarts of the hub."),
    click.option("--watch-only", is_flag=True, help="Show only changes, not the current objects."),
    click.option(
        "--output-watch-events", "events", is_flag=True, help="Show the type of each change: ADDED, MODIFIED, DELETED."
    ),
)


@click.command()
@click.argument("words", nargs=-1, required=True, metavar="KIND [NAME...]", shell_complete=target_words)
@FORMAT_OPTIONS
@SELECTION_OPTIONS
@WATCH_OPTIONS
@connected
def get(client: ApiClient, words: tuple[str, ...], **chosen: Any) -> None:
    """List clusters, csr, rules, bootstrap-credentials, addons, leases, the fleet or leader; with NAME one of them.

    KIND is any kind that the hub serves (see `hubctl api-resources`), or several, separated by commas; KIND/NAME is one
    object.

    The table of clusters contains the age of the last beat and its agent. AGENT is "(no session)" as soon as the agent's
    session has ended; AVAILABLE becomes Unknown when the grace period ends. Agents with the driver csr have no session. With
    -w, hubctl prints a row again when a session opens or ends; `hubctl get sessions -w` shows only sessions.

    A condition compares name, version, version.minor, cpu, memory, nodes, age, set, accepted, available, reason, flaps, joined,
    clockSynced, agentVersion, driver, lastBeat, connected, replica, certificateExpiresIn and the entries of labels, claims,
    taints, addons, conditions, capacity and allocatable, as in labels["env"] == "prod", with ==, !=, <, <=, >, >=, in, && and
    ||, !, has(), startsWith(), endsWith(), contains() and matches(), whose argument is a glob (* and ?) for the whole text, and
    with =~ and !~ for regular expressions (RE2) for the whole text. A value that a cluster does not have is unknown; a cluster
    with an unknown condition is not selected. --sort-by and --group-by accept the same names; clusters without the value are
    sorted last.

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
      hubctl get clusters --where 'set == "edge" && name =~ "store-[0-9]+"'
      hubctl get clusters --where 'available != "True" && age > 1h && !("maintenance" in taints)'
      hubctl get clusters --sort-by=-memory,name --limit=10
      hubctl get clusters --where 'lastBeat > 5m' --sort-by lastBeat
      hubctl get clusters --where 'certificateExpiresIn < 7d || flaps > 3'
      hubctl get clusters --group-by set,version.minor --sum cpu,memory --sort-by=-memory --limit=5
      hubctl get clusters --group-by version.minor --at 30d
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
        if chosen["watch"] or chosen["watch_only"]:
            raise UsageError(f"{words[0]} cannot be watched: leave out -w")
        from hubctl.commands.access.revocation import show_lists  # noqa: PLC0415 - start-up time

        show_lists(client, words[1] if len(words) > 1 else None, form.name if form.given else None)
        return
    if form.name in CRL_FORMATS:
        raise UsageError(f"-o {form.name} is for revocation lists: hubctl get crl")
    GetCommand(client, chosen).run(read_targets(Catalogue(client), words))


def _shortened(total: str | None) -> str | None:
    """Return bytes in GiB, as in `hubctl top`, and other totals unchanged."""
    from machinery.expression.types import parse_quantity  # noqa: PLC0415 - start-up time

    return f"{float(parse_quantity(total) / 2**30):.1f}Gi" if total and total.endswith("i") else total


class GetCommand:
    """One call of `hubctl get`. Prints objects, counts or changes, depending on the options."""

    def __init__(self, client: ApiClient, chosen: Mapping[str, Any]) -> None:
        """`chosen`: the options. Raises CommandError for options that exclude each other."""
        self._client = client
        self._chosen = chosen
        self._form: OutputFormat = chosen["output"]
        self._watches = chosen["watch"] or chosen["watch_only"]
        if chosen["all_namespaces"] and chosen["namespace"]:
            raise UsageError("give -n or -A, not both")
        if self._watches and chosen["limit"]:
            raise UsageError("--limit cannot be used with -w")
        if self._watches and chosen["at"]:
            raise UsageError("--at cannot be used with -w")
        if chosen["events"] and not self._watches:
            raise UsageError("--output-watch-events needs -w or --watch-only")
        self._query = {**TargetScope.of(chosen).query, "at": moment(chosen["at"])}

    def run(self, targets: list[Target]) -> None:
        """Print what the options select. Raises CommandError, also if the options do not fit the targets."""
        if self._chosen["group_by"] or self._chosen["count"] or self._chosen["sum"]:
            self._show_counts(targets)
            return
        for target in targets:
            TargetScope.of(self._chosen).check(target)
            if target.names and self._chosen["sort_by"]:
                raise UsageError("give names, or --sort-by, not both")
        if len(targets) > 1 and self._watches:
            raise UsageError("only one kind can be watched")
        if len(targets) > 1:
            self._show_kinds(targets)
        elif self._watches:
            self._watch(targets[0])
        else:
            self._show(targets[0], printer_of(self._print_options(targets[0])))

    def _print_options(self, target: Target) -> PrintOptions:
        return PrintOptions(
            target.resource,
            self._form,
            watch=self._watches,
            headers=not self._chosen["no_headers"],
            labels=tuple(label for label in self._chosen["label_columns"].split(",") if label),
            all_labels=self._chosen["show_labels"],
            kinds=self._chosen["show_kind"],
            events=self._chosen["events"],
        )

    def _show_counts(self, targets: list[Target]) -> None:
        chosen, resource, form = self._chosen, targets[0].resource, self._form
        if chosen["count"] and (chosen["group_by"] or chosen["sum"]):
            raise UsageError("--count cannot be used with --group-by or --sum, which count too")
        if len(targets) != 1 or targets[0].names or self._watches:
            raise UsageError("--group-by, --sum and --count need a single kind, without names and -w")
        if not chosen["group_by"] and (chosen["sort_by"] or chosen["limit"]):
            raise UsageError("here --sort-by and --limit sort groups: they need --group-by")
        groups = {"groupBy": chosen["group_by"] or ALL, "sum": chosen["sum"], "sortBy": chosen["sort_by"]}
        path, limit = resource.within(chosen["namespace"]), str(chosen["limit"] or "")
        answer = self._client.get(path, accept=TABLE, **self._query, **groups, limit=limit)
        rows: list[dict[str, Any]] = answer.get("rows") or []
        if form.is_table:
            if groups["groupBy"] == ALL and not chosen["sum"] and form.name != "csv":
                click.echo(rows[0]["cells"][0])
                return
            if form.name != "csv":
                count = [column["name"] for column in answer["columnDefinitions"]].index("Count")
                for cells in (row["cells"] for row in rows):
                    cells[count + 1 :] = map(_shortened, cells[count + 1 :])
            rows = [{**row, "cells": [NONE if cell is None else cell for cell in row["cells"]]} for row in rows]
        elif form.name not in ("json", "yaml"):
            why = "cannot show counts: use json, yaml or csv"
            raise UsageError(f"-o {form.name} {why}")
        printer_of(PrintOptions(replace(resource, namespaced=False), form)).first({**answer, "rows": rows})

    def _show_kinds(self, targets: list[Target]) -> None:
        """Print several kinds: tables one after the other, documents as one list."""
        printers = [printer_of(replace(self._print_options(target), kinds=True)) for target in targets]
        if self._form.is_table or self._form.name == "name":
            for index, (target, printer) in enumerate(zip(targets, printers, strict=True)):
                if index and self._form.name != "name":
                    click.echo()
                self._show(target, printer)
            return
        found: list[dict[str, Any]] = []
        for target in targets:
            if target.names:
                self._fetch(target, printers[0].accept, found)
            else:
                found.append(join_pages(self._pages(target, printers[0].accept)))
        printers[0].first({**LIST, "items": [item for answer in found for item in items_of(answer)]})

    def _show(self, target: Target, printer: Printer) -> None:
        """Print the objects of one target. If some of the named objects do not exist, print the existing objects."""
        if not target.names:
            printer.pages(self._pages(target, printer.accept))
            return
        found: list[dict[str, Any]] = []
        try:
            self._fetch(target, printer.accept, found)
        finally:
            if len(found) == 1:
                printer.first(found[0])
            elif found and "columnDefinitions" in found[0]:
                printer.first({**found[0], "rows": [row for answer in found for row in answer.get("rows") or ()]})
            elif found:
                printer.first({**LIST, "items": found})

    def _pages(self, target: Target, accept: str) -> Iterator[dict[str, Any]]:
        path, query = target.resource.within(self._chosen["namespace"]), {**self._query, "sortBy": self._chosen["sort_by"]}
        return pages(self._client, path, query, accept=accept, limit=self._chosen["limit"])

    def _fetch(self, target: Target, accept: str, found: list[dict[str, Any]]) -> None:
        """Append each named object to `found`, even after failures. Raises CommandError if one is missing."""
        get = self._client.find if self._chosen["ignore_not_found"] else self._client.get

        def fetch(name: str) -> dict[str, Any] | None:
            return get(target.resource.of(name, self._chosen["namespace"]), accept=accept, at=self._query["at"])

        run_each(target.names, fetch, lambda answer: found.extend([] if answer is None else [answer]))

    def _watch(self, target: Target) -> None:
        """Print the objects, then each change. --sort-by does not apply to the changes."""
        printer = printer_of(self._print_options(target))
        if not target.resource.watchable:
            raise UsageError(f"{target.resource.words[0]} cannot be watched: leave out -w")
        if len(target.names) > 1:
            raise UsageError("only one name, or all objects, can be watched")
        from hubctl.output.watch import SessionFollower, follow  # noqa: PLC0415 - start-up time

        path = target.resource.within(self._chosen["namespace"])
        if self._query["where"] or self._query["fieldSelector"]:
            self._client.check_watch(path, self._query)
        if target.names:
            if not self._chosen["ignore_not_found"]:
                self._client.get(target.resource.of(target.names[0], self._chosen["namespace"]), accept=printer.accept)
            self._query["fieldSelector"] = f"metadata.name={target.names[0]}"
        has_sessions = target.resource.plural == CLUSTERS.plural and printer.accept == TABLE
        sessions = SessionFollower(self._client, printer, path, self._query) if has_sessions else None
        answer = join_pages(self._pages(target, printer.accept))
        if not self._chosen["watch_only"]:
            printer.first(answer)
        elif answer.get("columnDefinitions"):
            printer.first({**answer, "rows": []})
        if sessions is not None:
            sessions.start()
        follow(self._client, printer, path, self._query, str(answer["metadata"]["resourceVersion"]))
