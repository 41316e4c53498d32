"""Selects the objects of a command: by names, selectors, a condition, --all, or a file."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hubctl.arguments.completion import where_option
from hubctl.arguments.targets import ObjectReference, Target, TargetScope, located, read_manifests, read_sources, read_targets
from hubctl.client.http import JSON, PARTIAL, ApiClient
from hubctl.client.resources import Catalogue, ResourceKind, items
from hubctl.errors import CommandError, UsageError
from hubctl.options import EVERYTHING, FIELDS, FILES, SELECTOR

WHERE = where_option(help="Select clusters by a condition (`hubctl get --help`).")
SELECTION = (SELECTOR, FIELDS, WHERE, EVERYTHING, FILES)
"""Options that select objects. They are an alternative to names."""

NAME_LINE = re.compile(r"""(?:[A-Za-z0-9.-]+/)?[A-Za-z0-9][^\s/"'{}\[\],]*""")
"""Matches a line NAME, or KIND/NAME as `hubctl get -o name` prints it. In a manifest, at least one line does not match."""


@dataclass(frozen=True, slots=True)
class Selection:
    """The objects of a command. `is_named`: the user has named them on the command line or in a file, not by standard input."""

    objects: tuple[ObjectReference, ...]
    is_named: bool

    def __str__(self) -> str:
        """Return the number of objects and the first names, as in `12 clusters: edge1, edge2, ...`."""
        kinds = {one.resource for one in self.objects}
        is_same, count = len(kinds) == 1, len(self.objects)
        noun = next(iter(kinds)).noun if is_same else "object"
        names = [one.name if is_same else str(one) for one in self.objects[:NAMES_SHOWN]]
        more = f" and {count - NAMES_SHOWN} more" if count > NAMES_SHOWN else ""
        return f"{count} {noun}{'' if count == 1 else 's'}: {', '.join(names)}{more}"


NAMES_SHOWN = 10


def select_objects(
    client: ApiClient, words: Sequence[str], chosen: Mapping[str, Any], kind: ResourceKind | None = None, *, whole: bool = False
) -> Selection:
    """Return the objects that the words and options of a command select.

    `words`: KIND NAME..., or only names if `kind` is set. `chosen`: the options' values. `whole`: selectors read whole objects,
    not only their metadata. Raises CommandError if the options select no object, or if names and options are combined.
    """
    scope, files, catalogue = TargetScope.of(chosen), chosen.get("files") or (), Catalogue(client)
    if files and (words or scope.selects):
        raise UsageError("give names, or --filename, or --selector, --where or --all: one of them")
    if files:
        found = tuple(dict.fromkeys(_read_objects(catalogue, files, scope.namespace, kind)))
        if not found:
            raise UsageError(f"there is no object in {', '.join(files)}")
        return Selection(found, is_named="-" not in files)
    targets = read_targets(catalogue, words) if kind is None else [Target(kind, tuple(_name(kind, word) for word in words))]
    chosen_ones: list[ObjectReference] = []
    for target in targets:
        scope.check(target)
        if target.names:
            chosen_ones += [ObjectReference(target.resource, name, scope.namespace) for name in target.names]
        elif scope.selects:
            chosen_ones += _list_objects(client, target.resource, scope, JSON if whole else PARTIAL)
        else:
            ways = "names, a --selector, --all, or --filename" if "files" in chosen else "names, a --selector, or --all"
            raise UsageError(f"specify {target.resource.words[0]}: {ways}")
    return Selection(tuple(dict.fromkeys(chosen_ones)), is_named=not scope.selects)


def _list_objects(client: ApiClient, resource: ResourceKind, scope: TargetScope, accept: str) -> list[ObjectReference]:
    """Return the objects in the scope. Raises CommandError if there is none."""
    listed = list(items(client, resource.within(scope.namespace), scope.query, accept=accept))
    if not listed:
        raise CommandError(f"no {resource.noun} matches", reason="NotFound")
    places = ((item, item["metadata"]) for item in listed)
    return [ObjectReference(resource, str(each["name"]), str(each.get("namespace") or ""), item) for item, each in places]


def _read_objects(
    catalogue: Catalogue, files: Sequence[str], namespace: str, kind: ResourceKind | None
) -> Iterator[ObjectReference]:
    """Yield the objects in files, which contain manifests or lines with names. Raises CommandError."""
    for source, text in read_sources(files):
        lines = text.split("\n")
        names = [line.strip() for line in lines if line.strip()]
        if names and all(NAME_LINE.fullmatch(name) for name in names):
            for name in names:
                yield _named(catalogue, source, name, namespace, kind)
            continue
        for manifest in read_manifests(source, text):
            one = located(catalogue, manifest, namespace)
            if kind is not None and one.resource.plural != kind.plural:
                raise UsageError(f"{source}: {one} is not a {kind.noun}")
            yield one


def _named(catalogue: Catalogue, source: str, line: str, namespace: str, kind: ResourceKind | None) -> ObjectReference:
    if kind is not None:
        return ObjectReference(kind, _name(kind, line))
    word, slash, name = line.partition("/")
    if not slash:
        raise UsageError(f'{source}: the line "{line}" is not KIND/NAME')
    resource = catalogue.named(word)
    if resource.namespaced and not namespace:
        raise UsageError(f'{source}: {resource.noun} "{name}" lacks its namespace: give -n CLUSTER')
    return ObjectReference(resource, name, namespace if resource.namespaced else "")


def _name(kind: ResourceKind, word: str) -> str:
    """Return the name in NAME or KIND/NAME. Raises CommandError for another kind."""
    before, slash, name = word.partition("/")
    if slash and before.lower().partition(".")[0] not in kind.words:
        raise UsageError(f'"{word}" is not a {kind.noun}')
    return name if slash else word
