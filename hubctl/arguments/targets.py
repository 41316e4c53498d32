"""Parses the objects on a command line: KIND NAME..., KIND/NAME..., KIND,KIND, or a kind and a selector."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import click

from hubctl.client.discovery import Catalogue
from hubctl.client.http import ApiClient
from hubctl.client.paging import pages
from hubctl.client.resources import ResourceKind
from hubctl.errors import FAILED, CommandError


@dataclass(frozen=True, slots=True)
class Target:
    """One kind and names of its objects; no names: all objects."""

    resource: ResourceKind
    names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TargetScope:
    """The namespace and selectors of a command."""

    namespace: str = ""
    selector: str = ""
    fields: str = ""
    everything: bool = False

    @property
    def query(self) -> dict[str, str]:
        return {"labelSelector": self.selector, "fieldSelector": self.fields}


@dataclass(frozen=True, slots=True)
class One:
    resource: ResourceKind
    name: str
    namespace: str = ""

    @property
    def path(self) -> str:
        return self.resource.of(self.name, self.namespace)

    @property
    def called(self) -> str:
        return self.resource.called(self.name)


def read_targets(catalogue: Catalogue, words: Sequence[str]) -> list[Target]:
    """Parse kinds and names. Raises CommandError."""
    if not words:
        raise CommandError("say what: a kind, as in `clusters`, or KIND/NAME", code=2)
    if "/" in words[0]:
        return _slashed(catalogue, words)
    if any("/" in word for word in words):
        raise CommandError("write KIND NAME... or KIND/NAME..., not both", code=2)
    kinds = [word for word in words[0].split(",") if word]
    if len(kinds) > 1 and len(words) > 1:
        raise CommandError("several kinds and a name do not go together: write KIND/NAME for each", code=2)
    return [Target(catalogue.named(kind), tuple(dict.fromkeys(words[1:]))) for kind in kinds]


def objects(client: ApiClient, words: Sequence[str], place: TargetScope) -> Iterator[One]:
    """Yield every chosen object. Raises CommandError when there is no choice, or none is found."""
    for target in read_targets(Catalogue(client), words):
        check(target, place)
        if target.names:
            yield from (One(target.resource, name, place.namespace) for name in target.names)
        elif place.selector or place.fields or place.everything:
            yield from _listed(client, target.resource, place)
        else:
            raise CommandError(f"say which {target.resource.words[0]}: names, a --selector, or --all", code=2)


def check(target: Target, place: TargetScope) -> None:
    """Raises CommandError for names together with selectors, and for a name without its namespace."""
    if target.names and (place.selector or place.fields or place.everything):
        raise CommandError("give names, or --selector, --field-selector or --all, not both", code=2)
    if target.names and target.resource.namespaced and not place.namespace:
        noun = target.resource.noun
        article = "an" if noun[:1] in "aeiou" else "a"
        raise CommandError(f"{article} {noun} is found by its cluster too: give -n CLUSTER", code=2)


def _listed(client: ApiClient, resource: ResourceKind, place: TargetScope) -> Iterator[One]:
    found = False
    for page in pages(client, resource.within(place.namespace), place.query):
        for item in page.get("items") or ():
            found = True
            metadata = item["metadata"]
            yield One(resource, str(metadata["name"]), str(metadata.get("namespace") or ""))
    if not found:
        raise CommandError(f"there is no {resource.noun} like that", reason="NotFound")


def _slashed(catalogue: Catalogue, words: Sequence[str]) -> list[Target]:
    found: dict[ResourceKind, list[str]] = {}
    for word in words:
        kind, slash, name = word.partition("/")
        if not (kind and slash and name) or "/" in name:
            raise CommandError(f'"{word}" is not KIND/NAME, as the words before it are', code=2)
        names = found.setdefault(catalogue.named(kind), [])
        if name not in names:
            names.append(name)
    return [Target(resource, tuple(names)) for resource, names in found.items()]


def each(names: Sequence[str], act: Callable[[str], None]) -> None:
    """Call `act` for every name, also after failures. Raises CommandError at the end, with the common exit code if any."""
    failed: list[CommandError] = []
    for name in names:
        try:
            act(name)
        except CommandError as error:
            failed.append(error)
            if len(names) > 1:
                click.echo(f"error: {error.sentence}", err=True)
    if len(names) > 1 and failed:
        codes = {error.code for error in failed}
        raise CommandError(f"{len(failed)} of {len(names)} failed", code=codes.pop() if len(codes) == 1 else FAILED)
    if failed:
        raise failed[0]
