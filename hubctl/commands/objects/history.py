"""hubctl history: the changes of one object, with user and time."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import click

from hubctl.arguments.times import moment
from hubctl.client.connection import connected
from hubctl.client.discovery import Catalogue
from hubctl.client.http import JSON, ApiClient
from hubctl.client.resources import ResourceKind
from hubctl.errors import CommandError
from hubctl.output.tables import Layout, printable, wants_color

TITLES = ("Time", "Revision", "By", "What")
QUIET = ("lastTransitionTime", "message")
"""Fields that follow from others, shown only with -o wide."""
LONGEST = 60
"""Largest number of characters of a shown value."""
SECONDS = len("2026-11-01T12:00:00")
DID = {"ADDED": "added", "DELETED": "deleted"}


@click.command()
@click.argument("words", nargs=-1, required=True, metavar="[KIND] NAME")
@click.option("-n", "--namespace", default="", metavar="CLUSTER", help="Of an add-on: the cluster that it is on.")
@click.option("--since", default="", metavar="TIME", help="Only what came after: a time, or so long ago, such as 2d.")
@click.option("--until", default="", metavar="TIME", help="Only what came before.")
@click.option("--limit", default=100, show_default=True, type=click.IntRange(1), help="So many changes, the newest ones.")
@click.option("-w", "--watch", is_flag=True, help="Then show every change until interrupted; survives restarts of the hub.")
@click.option("-o", "--output", type=click.Choice(("table", "wide", "json", "yaml")), help="Another form; wide has all fields.")
@connected
def history(client: ApiClient, words: Sequence[str], namespace: str, **chosen: Any) -> None:
    """Show what became of a cluster, or of another object: every change with its time, who made it, and what it changed.

    Also of one that was deleted. The oldest change comes first. The hub keeps the past for 30 days, unless it is set otherwise.
    Secrets, Events and Leases have no history.

    \b
    Examples:
      hubctl history edge1
      hubctl history edge1 --since 2h
      hubctl history edge1 --since 2026-11-01T12:00Z --until 2026-11-02T12:00Z -o wide
      hubctl history edge1 -w
      hubctl history addon work-manager -n edge1
      hubctl history rule trusted -o yaml
    """
    if len(words) > 2:  # noqa: PLR2004 - a kind and a name
        raise CommandError("give one name, or a kind and one name: hubctl history edge1", code=2)
    kind, name = ("cluster", words[0]) if len(words) == 1 else words
    bounds = {name: moment(chosen[name]) for name in ("since", "until")}
    asked = HistoryQuestion(Catalogue(client).named(kind), name, namespace, bounds, chosen["limit"])
    if asked.resource.namespaced and not namespace:
        raise CommandError(f"an {asked.resource.noun} is found by its cluster too: give -n CLUSTER", code=2)
    if chosen["watch"] and chosen["output"] in ("json", "yaml"):
        raise CommandError("-w shows a table: leave out -o, or give -o wide", code=2)
    show(client, asked, watch=chosen["watch"], output=chosen["output"])


@dataclass(frozen=True, slots=True)
class HistoryQuestion:
    """The object and the part of its history."""

    resource: ResourceKind
    name: str
    namespace: str = ""
    bounds: Mapping[str, str] = field(default_factory=dict)
    limit: int = 100

    def of(self, client: ApiClient, *, after: str = "") -> dict[str, Any]:
        """Fetch the history from the hub and join the pages. Raises CommandError."""
        path = f"{self.resource.of(self.name, self.namespace)}/history"
        changes: list[dict[str, Any]] = []
        before, left = "", self.limit
        while True:
            answer = client.get(path, limit=str(left), before=before, after=after, **self.bounds)
            changes += answer.get("changes") or []
            before, left = str(answer["metadata"].get("continue") or ""), self.limit - len(changes)
            if not before or left <= 0:
                return {**answer, "changes": changes}


def show(client: ApiClient, asked: HistoryQuestion, *, watch: bool, output: str | None) -> None:
    """Print the history once, and with `watch` every further change. Raises CommandError."""
    told = asked.of(client)
    if output in ("json", "yaml"):
        _print_document(told, output)
        return
    if not told["changes"] and not watch:
        since = f" since {told['began']}" if told.get("began") else ""
        raise CommandError(f'nothing is known of the {asked.resource.noun} "{asked.name}"{since}', reason="NotFound")
    rows = HistoryRows(wide=output == "wide")
    rows.show(told["changes"])
    if watch:
        from hubctl.output.watch import Watched, follow  # noqa: PLC0415 - start-up time

        query = {"fieldSelector": f"metadata.name={asked.name}"}
        place = {"metadata": {"resourceVersion": told["metadata"]["resourceVersion"]}}
        follow(client, Watched(asked.resource.within(asked.namespace), query, place), _Following(client, asked, rows, place))


class _Following:
    """Fetches the new changes whenever the watch reports one."""

    accept = JSON

    def __init__(self, client: ApiClient, asked: HistoryQuestion, rows: "HistoryRows", place: Mapping[str, Any]) -> None:
        self._client = client
        self._asked = asked
        self._rows = rows
        self._seen = str(place["metadata"]["resourceVersion"])

    def first(self, answer: dict[str, Any]) -> None:
        """Called after a gap in the watch; the history has no gap."""
        del answer
        self._look()

    def event(self, kind: str, answer: dict[str, Any]) -> None:
        del kind, answer
        self._look()

    def _look(self) -> None:
        told = self._asked.of(self._client, after=self._seen)
        self._seen = str(told["metadata"]["resourceVersion"])
        self._rows.show(told["changes"])


class HistoryRows:
    """Prints a line for every field of every change, the oldest change first."""

    def __init__(self, *, wide: bool) -> None:
        self._wide = wide
        self._layout: Layout | None = None

    def show(self, changes: Sequence[Mapping[str, Any]]) -> None:
        rows = [row for change in reversed(changes) for row in lines(change, wide=self._wide)]
        if self._layout is None:
            self._layout = Layout(TITLES, rows, color=wants_color())
            click.echo(self._layout.header)
        for row in rows:
            click.echo(self._layout.row(row))


def lines(change: Mapping[str, Any], *, wide: bool) -> Iterator[tuple[str, str, str, str]]:
    """The rows of one change; only the first has time, revision and user."""
    time = str(change["time"])
    shown = time if wide else f"{time[:SECONDS]}Z"
    head = (shown, str(change["revision"]), printable(str(change["actor"])))
    for what in _told(change, wide=wide):
        yield (*head, what)
        head = ("", "", "")


def _told(change: Mapping[str, Any], *, wide: bool) -> Iterator[str]:
    did = DID.get(str(change["type"]))
    if did is not None:
        yield did
        if not wide:
            return
    fields = [each for each in change.get("fields") or [] if wide or not str(each["path"]).endswith(QUIET)]
    yield from map(field_line, fields)
    if change.get("more"):
        yield f"... and {change['more']} more fields"
    if not fields and did is None:
        yield "(written again)" if not change.get("fields") else "(messages)"


def field_line(field: Mapping[str, Any]) -> str:
    """`path: before -> after`, or with + or - for an added or removed value."""
    path = printable(str(field["path"]))
    if field.get("before") is None:
        return f"{path}: + {value(field.get('after'))}"
    if field.get("after") is None:
        return f"{path}: - {value(field['before'])}"
    return f"{path}: {value(field['before'])} -> {value(field['after'])}"


def value(found: Any) -> str:
    """The value on one line, shortened."""
    text = printable(found if isinstance(found, str) else json.dumps(found, ensure_ascii=False))
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 3]}..."


def _print_document(document: Mapping[str, Any], output: str) -> None:
    if output == "json":
        click.echo(json.dumps(document, indent=4))
        return
    import yaml  # noqa: PLC0415 - the other forms do not wait for it

    click.echo(yaml.safe_dump(dict(document), sort_keys=False, allow_unicode=True), nl=False)
