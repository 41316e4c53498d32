"""hubctl history and diff: the changes of one object, and the differences between two times."""

import difflib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import click

from hubctl.client.connection import connected
from hubctl.client.http import JSON, ApiClient, items
from hubctl.client.resources import Catalogue, ResourceKind
from hubctl.errors import CommandError
from hubctl.options import moment
from hubctl.output.printers import print_document
from hubctl.output.tables import Layout, printable, table, wants_color
from machinery.meta.differences import differences, readable

TITLES = ("Time", "Revision", "By", "What")
QUIET = ("lastTransitionTime", "message")
"""Fields that follow from others, shown only with -o wide."""
LONGEST = 60
"""Largest number of characters of a shown value."""
SECONDS = len("2026-11-01T12:00:00")
DID = {"ADDED": "added", "DELETED": "deleted"}


@click.command()
@click.argument("words", nargs=-1, required=True, metavar="[KIND] NAME")
@click.option("-n", "--namespace", default="", metavar="CLUSTER", help="For an add-on: the namespace of the cluster.")
@click.option("--since", default="", metavar="TIME", help="Only changes after this time, or newer than a duration such as 2d.")
@click.option("--until", default="", metavar="TIME", help="Only changes before this time.")
@click.option(
    "--limit", default=100, show_default=True, type=click.IntRange(1), help="Maximum number of changes; the newest are shown."
)
@click.option("-w", "--watch", is_flag=True, help="Then show changes until interrupted, also across restarts of the hub.")
@click.option(
    "-o", "--output", type=click.Choice(("table", "wide", "json", "yaml")), help="Output format; wide shows all fields."
)
@connected
def history(client: ApiClient, words: Sequence[str], namespace: str, **chosen: Any) -> None:
    """Show the changes of a cluster or another object: time, author and changed fields.

    Deleted objects are included. The oldest change is first. The hub keeps the history for 30 days by default. Secrets,
    Events and Leases have no history.

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
    answer = asked.of(client)
    if output in ("json", "yaml"):
        print_document(answer, output)
        return
    if not answer["changes"] and not watch:
        since = f" since {answer['began']}" if answer.get("began") else ""
        raise CommandError(f'nothing is known of the {asked.resource.noun} "{asked.name}"{since}', reason="NotFound")
    rows = HistoryRows(wide=output == "wide")
    rows.show(answer["changes"])
    if watch:
        from hubctl.output.watch import Watched, follow  # noqa: PLC0415 - start-up time

        query = {"fieldSelector": f"metadata.name={asked.name}"}
        place = {"metadata": {"resourceVersion": answer["metadata"]["resourceVersion"]}}
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
        answer = self._asked.of(self._client, after=self._seen)
        self._seen = str(answer["metadata"]["resourceVersion"])
        self._rows.show(answer["changes"])


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


SAME, DIFFERENT, DIFF_FAILED = 0, 1, 2
"""Exit codes, as in diff and kubectl diff."""


@click.command()
@click.argument("kind")
@click.argument("name", required=False)
@click.option(
    "--from", "since", required=True, metavar="TIME", help="Start: a time, a duration before now such as 2d, or a revision."
)
@click.option("--to", "until", default="now", show_default=True, metavar="TIME", help="End, in the same form.")
@click.option("-l", "--selector", default="", metavar="SELECTOR", help="Only objects that have, or had, these labels.")
@click.option("--where", default="", metavar="CONDITION", help="Only clusters for which the condition is, or was, true.")
@click.option("-n", "--namespace", default="", metavar="CLUSTER", help="For add-ons: the namespace of one cluster.")
@click.option(
    "-o",
    "--output",
    type=click.Choice(("unified", "fields", "json")),
    help="Output format. Default: unified for one object, fields for all.",
)
@connected
def diff(client: ApiClient, kind: str, name: str | None, **chosen: Any) -> None:
    """Show the differences between two points in time: one object as a unified diff of YAML, a kind by field.

    Exit codes: 0 no differences, 1 differences, 2 an error.

    \b
    Examples:
      hubctl diff cluster edge1 --from 2026-11-01T12:00Z
      hubctl diff cluster edge1 --from 2d --to 1d -o fields
      hubctl diff clusters --from 1h
      hubctl diff clusters --from '2026-11-01 12:00' -l region=eu
      hubctl diff addons -n edge1 --from 1h -o json
    """
    try:
        different = _show_differences(client, kind, name, chosen)
    except CommandError as error:
        raise CommandError(error.sentence, code=DIFF_FAILED, reason=error.reason) from None
    raise click.exceptions.Exit(DIFFERENT if different else SAME)


@dataclass(frozen=True, slots=True)
class ObjectPair:
    """One object at both times; None: it did not exist."""

    name: str
    before: Mapping[str, Any] | None
    after: Mapping[str, Any] | None

    @property
    def what(self) -> str:
        if self.before is None:
            return "added"
        return "deleted" if self.after is None else "changed"

    @property
    def fields(self) -> list[dict[str, Any]]:
        found = differences(self.before, self.after)
        return [{"path": each.path, "before": each.before, "after": each.after} for each in found]


def _show_differences(client: ApiClient, kind: str, name: str | None, chosen: Mapping[str, Any]) -> bool:
    """Print the differences; return whether there are any."""
    resource = Catalogue(client).named(kind)
    moments = moment(chosen["since"]), moment(chosen["until"])
    if name and (chosen["selector"] or chosen["where"]):
        raise CommandError("give a name, or --selector and --where, not both")
    if name and resource.namespaced and not chosen["namespace"]:
        raise CommandError(f"an {resource.noun} is found by its cluster too: give -n CLUSTER")
    if name:
        before, after = (_one(client, resource.of(name, chosen["namespace"]), at) for at in moments)
        if before is None and after is None:
            raise CommandError(f'there is no {resource.noun} "{name}" at either moment')
        pairs = [ObjectPair(name, before, after)]
    else:
        pairs = _pairs(client, resource, moments, chosen)
    different = [pair for pair in pairs if _same(pair.before) != _same(pair.after)]
    _print(different, chosen["output"] or ("unified" if name else "fields"), (chosen["since"], chosen["until"]))
    return bool(different)


def _same(document: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    return None if document is None else readable(document)


def _one(client: ApiClient, path: str, at: str) -> dict[str, Any] | None:
    try:
        return client.get(path, at=at)
    except CommandError as error:
        if error.reason == "NotFound":
            return None
        raise


def _pairs(client: ApiClient, resource: ResourceKind, moments: tuple[str, str], chosen: Mapping[str, Any]) -> list[ObjectPair]:
    """The objects that match at either time, each at both times."""
    query = {"labelSelector": chosen["selector"], "where": chosen["where"]}
    path = resource.within(chosen["namespace"])
    before, after = (dict(_all(client, path, query, at)) for at in moments)
    pairs = []
    for key in sorted({*before, *after}):
        old, new = before.get(key), after.get(key)
        if (old is None or new is None) and any(query.values()):
            namespace, _, name = key.rpartition("/")
            place = resource.of(name, namespace)
            old, new = old or _one(client, place, moments[0]), new or _one(client, place, moments[1])
        pairs.append(ObjectPair(key, old, new))
    return pairs


def _all(client: ApiClient, path: str, query: Mapping[str, str], at: str) -> Iterator[tuple[str, dict[str, Any]]]:
    for item in items(client, path, {**query, "at": at}):
        metadata = item["metadata"]
        yield "/".join(filter(None, (metadata.get("namespace"), metadata["name"]))), item


def _print(pairs: list[ObjectPair], output: str, moments: tuple[str, str]) -> None:
    if output == "json":
        click.echo(json.dumps([{"name": pair.name, "what": pair.what, "fields": pair.fields} for pair in pairs], indent=4))
    elif output == "unified":
        for pair in pairs:
            for line in _unified(pair, moments):
                click.echo(line)
    elif pairs:
        rows = [row for pair in pairs for row in _rows(pair)]
        for line in table(("Name", "What", "Field"), rows):
            click.echo(line)


def _rows(pair: ObjectPair) -> Iterator[tuple[str, str, str]]:
    shown = [field for field in pair.fields if not str(field["path"]).endswith(QUIET)] if pair.what == "changed" else []
    yield printable(pair.name), pair.what, field_line(shown[0]) if shown else ""
    for each in shown[1:]:
        yield "", "", field_line(each)


def _unified(pair: ObjectPair, moments: tuple[str, str]) -> Iterator[str]:
    old, new = _yaml(pair.before), _yaml(pair.after)
    then, later = (f"{pair.name} ({at})" for at in moments)
    for line in difflib.unified_diff(old, new, then, later, lineterm=""):
        yield printable(line) if line.strip() else line


def _yaml(document: Mapping[str, Any] | None) -> list[str]:
    if document is None:
        return []
    import yaml  # noqa: PLC0415 - the other forms do not wait for it

    text: str = yaml.safe_dump(readable(document), sort_keys=True, allow_unicode=True)
    return text.splitlines()
