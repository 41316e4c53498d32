"""hubctl history and diff: show the changes of one object, and the differences between two times."""

import difflib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import click

from hubctl.arguments.completion import where_option
from hubctl.arguments.targets import Target, TargetScope
from hubctl.client.connection import connected
from hubctl.client.http import ApiClient
from hubctl.client.resources import Catalogue, ResourceKind, items
from hubctl.errors import CommandError, UsageError
from hubctl.options import moment, text_option
from hubctl.output.printers import Printer, print_document
from hubctl.output.tables import Layout, print_lines, printable, table
from machinery.meta.differences import differences, readable

TITLES = ("Time", "Revision", "By", "What")
DERIVED_FIELDS = ("lastTransitionTime", "message")
"""Last parts of paths of fields that are derived from other fields. Only -o wide shows these fields."""
INTERNAL_FIELDS = tuple(
    f'metadata.annotations["hub.open-cluster-management.io/{name}"]'
    for name in ("hubs", "cluster-uid", "given-to-agent", "second-agent-refused", "wanted-by-uid")
)
"""Paths of internal annotations of hub and agent. Only -o wide shows them."""
MAX_VALUE_LENGTH = 60
SECONDS = len("2026-11-01T12:00:00")


@click.command()
@click.argument("words", nargs=-1, required=True, metavar="[KIND] NAME")
@text_option("-n", "--namespace", "CLUSTER", "For an add-on: the namespace of the cluster.")
@text_option("--since", "TIME", "Only changes after this time, or newer than a duration such as 2d.")
@text_option("--until", "TIME", "Only changes before this time.")
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
        raise UsageError("give one name, or a kind and one name: hubctl history edge1")
    kind, name = ("cluster", words[0]) if len(words) == 1 else words
    bounds = {name: moment(chosen[name]) for name in ("since", "until")}
    resource = Catalogue(client).named(kind)
    TargetScope(namespace).check(Target(resource, (name,)))
    if chosen["watch"] and chosen["output"] in ("json", "yaml"):
        raise UsageError("-w shows a table: leave out -o, or give -o wide")
    if chosen["watch"] and not resource.watchable:
        raise UsageError(f"{resource.words[0]} cannot be watched: leave out -w")
    if chosen["watch"] and bounds["until"]:
        raise UsageError("a watch has no end: leave out -w, or --until")
    path = f"{resource.of(name, namespace)}/history"
    answer = _changes(client, path, {**bounds, "limit": str(chosen["limit"])})
    if chosen["output"] in ("json", "yaml"):
        print_document(answer, chosen["output"])
        return
    if not answer["changes"] and any(bounds.values()) and not chosen["watch"]:
        span = " ".join(f"{word} {chosen[word]}" for word in ("since", "until") if chosen[word])
        click.echo(f'{resource.noun} "{name}" has no change {span}', err=True)
        return
    if not answer["changes"] and not chosen["watch"]:
        since = f" since {answer['began']}" if answer.get("began") else ""
        raise CommandError(f'there is no history of the {resource.noun} "{name}"{since}', reason="NotFound")
    printer = HistoryPrinter(client, path, bounds, chosen)
    printer.show(answer)
    if chosen["watch"]:
        from hubctl.output.watch import follow  # noqa: PLC0415 - start-up time

        query = {"fieldSelector": f"metadata.name={name}"}
        follow(client, printer, resource.within(namespace), query, answer["metadata"]["resourceVersion"])


def _changes(client: ApiClient, path: str, query: Mapping[str, str]) -> dict[str, Any]:
    """Read the newest changes, up to the query's limit. Join the pages with the first page's revision. Raises CommandError."""
    changes: list[dict[str, Any]] = []
    before, left, revision = "", int(query["limit"]), ""
    while True:
        answer = client.get(path, **{**query, "limit": str(left), "before": before})
        changes += answer.get("changes") or []
        revision = revision or answer["metadata"]["resourceVersion"]
        before, left = str(answer["metadata"].get("continue") or ""), int(query["limit"]) - len(changes)
        if not before or left <= 0:
            return {**answer, "metadata": {**answer["metadata"], "resourceVersion": revision}, "changes": changes}


class HistoryPrinter(Printer):
    """Prints a line for each field of each change, the oldest first. Reads new changes when the watch reports a change."""

    def __init__(self, client: ApiClient, path: str, bounds: Mapping[str, str], chosen: Mapping[str, Any]) -> None:
        self._client = client
        self._path = path
        self._query = {**bounds, "limit": str(chosen["limit"])}
        self._wide = chosen["output"] == "wide"
        self._layout: Layout | None = None

    def first(self, answer: dict[str, Any]) -> None:
        """Read and print the changes after the last printed change. A gap in the watch is harmless: the history has no gap."""
        del answer
        self.show(_changes(self._client, self._path, self._query))

    def event(self, kind: str, answer: dict[str, Any]) -> None:
        del kind
        self.first(answer)

    def show(self, answer: Mapping[str, Any]) -> None:
        """Print the changes in an answer of the hub. Later calls of `first` continue after them."""
        self._query = {**self._query, "limit": "1000000000", "after": str(answer["metadata"]["resourceVersion"])}
        rows = [row for change in reversed(answer["changes"]) for row in lines(change, wide=self._wide)]
        if self._layout is None:
            self._layout = Layout(TITLES, rows)
            click.echo(self._layout.header)
        print_lines(map(self._layout.row, rows))


def lines(change: Mapping[str, Any], *, wide: bool) -> Iterator[tuple[str, str, str, str]]:
    """Yield the rows of one change. Only the first row has time, revision and user.

    `wide`: also show internal and derived fields. Without it, a change of internal fields alone has no rows.
    """
    time = str(change["time"])
    head = (time if wide else f"{time[:SECONDS]}Z", str(change["revision"]), printable(str(change["actor"])))
    kind = {"ADDED": "added", "DELETED": "deleted"}.get(change["type"])
    changed = [each for each in change.get("fields") or [] if wide or each["path"] not in INTERNAL_FIELDS]
    if not changed and change.get("fields") and kind is None and not change.get("more"):
        return
    fields = [each for each in changed if wide or not str(each["path"]).endswith(DERIVED_FIELDS)]
    described = [] if kind is None else [kind]
    if kind is None or wide:
        described += map(field_line, fields)
        described += [f"... and {change['more']} more fields"] if change.get("more") else []
    if not fields and kind is None:
        described.append("(messages)" if change.get("fields") else "(written again)")
    for what in described:
        yield (*head, what)
        head = ("", "", "")


def field_line(field: Mapping[str, Any]) -> str:
    """Return `path: before -> after`; for an added or removed value, a text with + or -."""
    path = printable(str(field["path"]))
    if field.get("before") is None:
        return f"{path}: + {_short(field.get('after'))}"
    if field.get("after") is None:
        return f"{path}: - {_short(field['before'])}"
    return f"{path}: {_short(field['before'])} -> {_short(field['after'])}"


def _short(value: Any) -> str:
    text = printable(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))
    return text if len(text) <= MAX_VALUE_LENGTH else f"{text[: MAX_VALUE_LENGTH - 3]}..."


SAME, DIFFERENT, DIFF_FAILED = 0, 1, 2
"""Exit codes, as in diff and kubectl diff."""


@click.command()
@click.argument("kind")
@click.argument("name", required=False)
@click.option(
    "--from", "since", required=True, metavar="TIME", help="Start: a time, a duration before now such as 2d, or a revision."
)
@click.option("--to", "until", default="now", show_default=True, metavar="TIME", help="End, in the same form.")
@text_option("-l", "--selector", "SELECTOR", "Only objects that have, or had, these labels.")
@where_option(help="Only clusters for which the condition is, or was, true.")
@text_option("-n", "--namespace", "CLUSTER", "For add-ons: the namespace of one cluster.")
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
    """One object at the two times of `hubctl diff`. `before` or `after` None: the object did not exist."""

    name: str
    before: Mapping[str, Any] | None
    after: Mapping[str, Any] | None

    @property
    def what(self) -> str:
        return "added" if self.before is None else "deleted" if self.after is None else "changed"

    @property
    def is_unchanged(self) -> bool:
        before, after = (None if document is None else readable(document) for document in (self.before, self.after))
        return before == after

    @property
    def fields(self) -> list[dict[str, Any]]:
        found = differences(self.before, self.after)
        return [{"path": each.path, "before": each.before, "after": each.after} for each in found]


def _show_differences(client: ApiClient, kind: str, name: str | None, chosen: Mapping[str, Any]) -> bool:
    resource = Catalogue(client).named(kind)
    times = moment(chosen["since"]), moment(chosen["until"])
    if name and (chosen["selector"] or chosen["where"]):
        raise CommandError("give a name, or --selector and --where, not both")
    if name:
        TargetScope(chosen["namespace"]).check(Target(resource, (name,)))
        before, after = (client.find(resource.of(name, chosen["namespace"]), at=at) for at in times)
        if before is None and after is None:
            raise CommandError(f'there is no {resource.noun} "{name}" at either time')
        pairs = [ObjectPair(name, before, after)]
    else:
        pairs = _pairs(client, resource, times, chosen)
    different = [pair for pair in pairs if not pair.is_unchanged]
    output = chosen["output"] or ("unified" if name else "fields")
    if output == "json":
        click.echo(json.dumps([{"name": pair.name, "what": pair.what, "fields": pair.fields} for pair in different], indent=4))
    elif output == "unified":
        for pair in different:
            then, later = (f"{pair.name} ({at})" for at in (chosen["since"], chosen["until"]))
            unified = difflib.unified_diff(_yaml(pair.before), _yaml(pair.after), then, later, lineterm="")
            print_lines(printable(line) if line.strip() else line for line in unified)
    elif different:
        print_lines(table(("Name", "What", "Field"), [row for pair in different for row in _rows(pair)]))
    return bool(different)


def _pairs(client: ApiClient, resource: ResourceKind, times: tuple[str, str], chosen: Mapping[str, Any]) -> list[ObjectPair]:
    """Return the objects that match at one of the times or both, each as it was at both times."""
    query = {"labelSelector": chosen["selector"], "where": chosen["where"]}
    found: list[dict[str, dict[str, Any]]] = []
    for at in times:
        documents = items(client, resource.within(chosen["namespace"]), {**query, "at": at})
        named = ((document["metadata"], document) for document in documents)
        found.append({"/".join(filter(None, (each.get("namespace"), each["name"]))): document for each, document in named})
    pairs = []
    for key in sorted({*found[0], *found[1]}):
        old, new = (documents.get(key) for documents in found)
        if (old is None or new is None) and any(query.values()):
            namespace, _, name = key.rpartition("/")
            path = resource.of(name, namespace)
            old, new = old or client.find(path, at=times[0]), new or client.find(path, at=times[1])
        pairs.append(ObjectPair(key, old, new))
    return pairs


def _rows(pair: ObjectPair) -> Iterator[tuple[str, str, str]]:
    fields = (
        [field for field in pair.fields if not str(field["path"]).endswith(DERIVED_FIELDS)] if pair.what == "changed" else []
    )
    yield printable(pair.name), pair.what, field_line(fields[0]) if fields else ""
    for each in fields[1:]:
        yield "", "", field_line(each)


def _yaml(document: Mapping[str, Any] | None) -> list[str]:
    if document is None:
        return []
    from machinery.meta import bounded_yaml  # noqa: PLC0415 - the other forms do not wait for it

    return bounded_yaml.write(readable(document), sort_keys=True).splitlines()
