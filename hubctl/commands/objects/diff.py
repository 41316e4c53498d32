"""hubctl diff: differences between two times, of one object or of all objects of a kind."""

import difflib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import click

from hubctl.arguments.times import moment
from hubctl.client.connection import connected
from hubctl.client.discovery import Catalogue
from hubctl.client.http import ApiClient
from hubctl.client.resources import ResourceKind
from hubctl.commands.objects.history import QUIET, field_line
from hubctl.errors import CommandError
from hubctl.output.tables import printable, table
from machinery.meta.differences import differences, readable

SAME, DIFFERENT, FAILED = 0, 1, 2
"""Exit codes, as in diff and kubectl diff."""
PAGE = 500


@click.command()
@click.argument("kind")
@click.argument("name", required=False)
@click.option("--from", "since", required=True, metavar="TIME", help="Then: a time, so long ago such as 2d, or a revision.")
@click.option("--to", "until", default="now", show_default=True, metavar="TIME", help="Until then.")
@click.option("-l", "--selector", default="", metavar="SELECTOR", help="Of all: those that have, or had, these labels.")
@click.option("--where", default="", metavar="CONDITION", help="Of clusters: those of which it is, or was, true.")
@click.option("-n", "--namespace", default="", metavar="CLUSTER", help="Of add-ons: those of one cluster.")
@click.option("-o", "--output", type=click.Choice(("unified", "fields", "json")), help="One object: unified, all: fields.")
@connected
def diff(client: ApiClient, kind: str, name: str | None, **chosen: Any) -> None:
    """Show what is different between two moments: of one object as unified YAML, of all of a kind field by field.

    The exit code is 0 when nothing is, 1 when something is, 2 when that could not be found out.

    \b
    Examples:
      hubctl diff cluster edge1 --from 2026-11-01T12:00Z
      hubctl diff cluster edge1 --from 2d --to 1d -o fields
      hubctl diff clusters --from 1h
      hubctl diff clusters --from '2026-11-01 12:00' -l region=eu
      hubctl diff addons -n edge1 --from 1h -o json
    """
    try:
        different = _show(client, kind, name, chosen)
    except CommandError as error:
        raise CommandError(error.sentence, code=FAILED, reason=error.reason) from None
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


def _show(client: ApiClient, kind: str, name: str | None, chosen: Mapping[str, Any]) -> bool:
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
    token = ""
    while True:
        answer = client.get(path, at=at, limit=str(PAGE), **{**query, "continue": token})
        for item in answer.get("items") or []:
            metadata = item["metadata"]
            yield "/".join(filter(None, (metadata.get("namespace"), metadata["name"]))), item
        token = str(answer["metadata"].get("continue") or "")
        if not token:
            return


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
    for field in shown[1:]:
        yield "", "", field_line(field)


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
