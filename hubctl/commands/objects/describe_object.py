"""hubctl describe KIND NAME for kinds without their own page: all fields of the object, and its Events."""

from collections.abc import Iterator, Mapping
from typing import Any

import click

from hubctl.arguments.completion import target_words
from hubctl.arguments.targets import One, TargetScope, each, objects
from hubctl.client.connection import connected
from hubctl.client.http import ApiClient
from hubctl.commands.objects.events import last_seen
from hubctl.errors import CommandError
from hubctl.options import EVERYTHING, NAMESPACE, SELECTOR, with_options
from hubctl.output.tables import shown, table

EVENTS = "/api/v1/events"
APART = ("apiVersion", "kind", "metadata")
INDENT, NONE = "  ", "<none>"
LEFT_OUT = frozenset(("managedFields", "name", "namespace", "labels", "annotations", "resourceVersion", "uid", "generation"))


@click.command("anything")
@click.argument("words", nargs=-1, required=True, metavar="KIND NAME...", shell_complete=target_words)
@with_options(SELECTOR, EVERYTHING, NAMESPACE)
@connected
def anything(client: ApiClient, words: tuple[str, ...], namespace: str, selector: str, *, everything: bool) -> None:
    """Show all that objects of any kind say, and their Events. Secrets are shown by the size of what is in them.

    \b
    Examples:
      hubctl describe rule edges
      hubctl describe addon/work-manager -n edge1
      hubctl describe clustersets --all
    """
    found = {one.path: one for one in objects(client, words, TargetScope(namespace, selector, everything=everything))}

    def show(path: str) -> None:
        one = found[path]
        document = client.get(path)
        if path != next(iter(found)):
            click.echo("\n")
        for line in lines(one, document):
            click.echo(line)
        for line in happened(client, one):
            click.echo(line)

    each(tuple(found), show)


def lines(one: One, document: Mapping[str, Any]) -> Iterator[str]:
    """The lines of the object's description."""
    metadata = document["metadata"]
    yield f"Name:         {metadata['name']}"
    yield from ([f"Namespace:    {metadata['namespace']}"] if metadata.get("namespace") else [])
    for title in ("Labels", "Annotations"):
        pairs = sorted((metadata.get(title.lower()) or {}).items())
        yield f"{title + ':':<13} {', '.join(f'{name}={shown(value)}' for name, value in pairs) or NONE}"
    yield f"API Version:  {one.resource.group_version}"
    yield f"Kind:         {one.resource.kind}"
    yield from _tree({"metadata": {name: value for name, value in metadata.items() if name not in LEFT_OUT}})
    rest = {name: value for name, value in document.items() if name not in APART}
    yield from _tree(_without_secrets(rest) if one.resource.kind == "Secret" else rest)


def happened(client: ApiClient, one: One) -> list[str]:
    """The Events about the object, the newest last."""
    asked = {"involvedObject.kind": one.resource.kind, "involvedObject.name": one.name}
    try:
        answer = client.get(EVENTS, fieldSelector=",".join(f"{name}={value}" for name, value in asked.items()))
    except CommandError as error:
        if error.reason != "Forbidden":
            raise
        return ["Events: (you may not see them)"]
    found = sorted(answer.get("items") or (), key=last_seen)
    if not found:
        return [f"Events: {NONE}"]
    rows = [[last_seen(event), *(shown(event.get(part)) for part in ("type", "reason", "message"))] for event in found]
    return ["Events:", *table(("Last Seen", "Type", "Reason", "Message"), rows, indent=INDENT)]


def _tree(value: Mapping[str, Any], indent: str = "") -> Iterator[str]:
    for name, part in value.items():
        yield from _branch(f"{indent}{shown(name[:1].upper() + name[1:])}:", part, indent + INDENT)


def _branch(title: str, part: Any, indent: str) -> Iterator[str]:
    if isinstance(part, Mapping) and part:
        yield title
        yield from _tree(part, indent)
    elif isinstance(part, list) and part:
        yield title
        for entry in part:
            if isinstance(entry, Mapping):
                first, *more = _tree(entry, indent + INDENT)
                yield f"{indent}- {first.strip()}"
                yield from more
            else:
                yield f"{indent}- {shown(entry)}"
    else:
        yield f"{title} {NONE if part in ({}, [], None) else shown(part)}"


def _without_secrets(document: Mapping[str, Any]) -> dict[str, Any]:
    from base64 import b64decode  # noqa: PLC0415 - only for Secrets

    data = {name: f"{len(b64decode(value or ''))} bytes" for name, value in (document.get("data") or {}).items()}
    return {**document, "data": data}
