"""hubctl events and audit: Events, ordered by time, and the hub's audit records."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

import click

from hubctl.client.connection import connected
from hubctl.client.http import ApiClient
from hubctl.client.resources import AUDIT, Catalogue, join_pages, pages
from hubctl.errors import UsageError
from hubctl.options import text_option
from hubctl.output.formats import OutputFormat, output_option
from hubctl.output.printers import Printer, PrintOptions, print_document, printer_of
from hubctl.output.tables import Layout, cell_text, print_lines
from machinery.meta.timestamps import format_micro_time

PATH = "/api/v1/{}events"
TITLES = ("Last Seen", "Type", "Reason", "Object", "Message")
TYPICAL_ROW = (("", "Warning", "ManagedClusterUnavailable", "managedcluster/" + 9 * "x", ""),)
"""A row that sets the width of the columns, so that later rows are aligned with the first ones."""


@click.command()
@text_option("-n", "--namespace", "CLUSTER", "Only Events in the namespace of one cluster.")
@click.option("-A", "--all-namespaces", "everywhere", is_flag=True, help="Events of all namespaces; this is the default.")
@text_option("--for", "about", "KIND/NAME", "Only Events about one object, such as cluster/edge1 or csr/edge1-x7k2p.")
@text_option("--types", "TYPE,TYPE", "Only Events of these types: Normal or Warning.")
@click.option("-w", "--watch", is_flag=True, help="Then show new Events until interrupted, also across restarts of the hub.")
@click.option("-o", "--output", type=click.Choice(("json", "yaml")), help="Output format.")
@connected
def events(
    client: ApiClient, namespace: str, about: str, types: str, output: str | None, *, everywhere: bool, watch: bool
) -> None:
    """Show Events about clusters, certificate requests, add-ons and the hub, the newest last.

    The hub keeps Events for one hour after they were last observed. `hubctl audit` shows audit records of the last 90 days.

    \b
    Examples:
      hubctl events
      hubctl events -n edge1 --types Warning
      hubctl events --for cluster/edge1 -w
    """
    if everywhere and namespace:
        raise UsageError("give -n or -A, not both")
    query = {"fieldSelector": _selector(client, about, types)}
    path = PATH.format(f"namespaces/{quote(namespace, safe='')}/" if namespace else "")
    answer = join_pages(pages(client, path, query))
    answer["items"] = sorted(answer.get("items") or [], key=last_seen)
    printer = EventDocuments(output) if output else EventRows()
    printer.first(answer)
    if watch:
        from hubctl.output.watch import follow  # noqa: PLC0415 - start-up time

        follow(client, printer, path, query, str(answer["metadata"]["resourceVersion"]))


def _selector(client: ApiClient, about: str, types: str) -> str:
    """Return the field selector. Raises CommandError."""
    terms = []
    if about:
        word, slash, name = about.partition("/")
        if not slash or not name:
            raise UsageError(f'--for "{about}" is not an object: write KIND/NAME, as in cluster/edge1')
        terms += [f"involvedObject.kind={Catalogue(client).named(word).kind}", f"involvedObject.name={name}"]
    chosen = [each.strip().capitalize() for each in types.split(",") if each.strip()]
    if not {"Normal", "Warning"}.issuperset(chosen):
        raise UsageError(f'--types "{types}": an Event is Normal or Warning')
    terms += [f"type={chosen[0]}"] if len(set(chosen)) == 1 else []
    return ",".join(terms)


def last_seen(event: Mapping[str, Any]) -> str:
    """Return the time of the last occurrence, in whole seconds and in the same format for all Events."""
    series = (event.get("series") or {}).get("lastObservedTime")
    found = str(series or event.get("lastTimestamp") or event.get("eventTime") or event["metadata"].get("creationTimestamp"))
    return f"{found[:19]}Z"


class EventRows(Printer):
    """Prints Events as a table, appends later Events, and ignores the deletion of old Events."""

    def __init__(self) -> None:
        self._layout: Layout | None = None

    def first(self, answer: dict[str, Any]) -> None:
        rows = [_cells(event) for event in answer.get("items") or ()]
        if not rows:
            click.echo("there is no event to show", err=True)
        self._layout = Layout(TITLES, [*rows, *TYPICAL_ROW])
        print_lines([self._layout.header, *map(self._layout.row, rows)])

    def event(self, kind: str, answer: dict[str, Any]) -> None:
        if kind != "DELETED" and self._layout is not None:
            click.echo(self._layout.row(_cells(answer)))


class EventDocuments(Printer):
    def __init__(self, form: str) -> None:
        self._form = form

    def first(self, answer: dict[str, Any]) -> None:
        for event in answer.get("items") or ():
            self.event("ADDED", {"apiVersion": "v1", "kind": "Event", **event})

    def event(self, kind: str, answer: dict[str, Any]) -> None:
        if kind != "DELETED":
            print_document(answer, self._form, apart=True)


def _cells(event: Mapping[str, Any]) -> list[str]:
    about = event.get("involvedObject") or {}
    name = f"{str(about.get('kind') or '').lower()}/{about.get('name') or ''}"
    count = int(event.get("count") or 1)
    message = f"{event.get('message') or ''}{f' (x{count})' if count > 1 else ''}"
    return [cell_text(cell) for cell in (last_seen(event), event.get("type"), event.get("reason"), name, message)]


WIDE_COLUMNS = ("Name", "Age")


@click.command()
@text_option("--user", "NAME", "Only requests of this authenticated user (before impersonation).")
@text_option(
    "--verb", "VERB", "Only requests with this verb: create, update, patch, delete, deletecollection, get, connect, ..."
)
@text_option("--resource", "PLURAL", "Only requests for this resource, such as managedclusters.")
@text_option("--name", "NAME", "Only requests for the object of this name.")
@text_option("-n", "--namespace", "NAMESPACE", "Only requests for objects in this namespace.")
@click.option("--since", default="24h", show_default=True, metavar="TIME", help="Start: a duration before now, or a time.")
@text_option("--until", "TIME", "End, in the same form. Default: now.")
@click.option("--limit", type=click.IntRange(min=1), metavar="NUMBER", help="Maximum number of records; the newest are shown.")
@output_option()
@connected
def audit(client: ApiClient, output: OutputFormat, limit: int | None, **chosen: str) -> None:
    """Show audit records: one line per request that changed an object or read a Secret, newest first.

    \b
    Examples:
      hubctl audit
      hubctl audit --verb delete --since 7d
      hubctl audit --user admin --resource managedclusters -o wide
      hubctl audit --since 2026-11-21T08:00:00Z --until 2026-11-21T09:00:00Z -o json
    """
    printer = printer_of(PrintOptions(AUDIT, output))
    query = {"fieldSelector": _audit_selector(chosen), "sortBy": "-time"}
    found = join_pages(pages(client, AUDIT.path, query, accept=printer.accept, limit=limit))
    if not output.given:
        for column in found.get("columnDefinitions") or ():
            column["priority"] = 1 if column["name"] in WIDE_COLUMNS else column["priority"]
    printer.first(found)


def _audit_selector(chosen: dict[str, str]) -> str:
    times = {name: _instant(name, chosen.pop(name)) for name in ("since", "until")}
    for name, value in chosen.items():
        if "," in value or "=" in value:
            raise UsageError(f'--{name}: "{value}" cannot contain a comma or an equals sign')
    return ",".join(f"{name}={value}" for name, value in (*chosen.items(), *times.items()) if value)


def _instant(name: str, text: str) -> str:
    """Return the time in the hub's format. Raises CommandError."""
    if not text:
        return ""
    from machinery.durations import parse_duration  # noqa: PLC0415 - start-up time
    from machinery.runtime.clock import SystemClock  # noqa: PLC0415 - likewise

    try:
        instant = SystemClock().now() - parse_duration(text)
    except ValueError:
        try:
            instant = datetime.fromisoformat(text).astimezone(UTC)
        except ValueError:
            why = "is neither a duration such as 2h nor a time in ISO 8601"
            raise UsageError(f'--{name}: "{text}" {why}') from None
    return format_micro_time(instant)
