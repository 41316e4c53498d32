"""Parses the objects that a command names: KIND NAME..., KIND/NAME..., KIND,KIND, a kind and a selector, or manifests."""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click

from hubctl.client.http import ApiClient, items
from hubctl.client.resources import Catalogue, ResourceKind
from hubctl.errors import FAILED, CommandError

T = TypeVar("T")
ATTEMPTS = 5
"""Of a change that conflicts with others."""


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


def objects(client: ApiClient, words: Sequence[str], place: TargetScope) -> tuple[One, ...]:
    """The chosen objects. Raises CommandError when there is no choice, or none is found."""
    return tuple(dict.fromkeys(_objects(client, words, place)))


def _objects(client: ApiClient, words: Sequence[str], place: TargetScope) -> Iterator[One]:
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
    for item in items(client, resource.within(place.namespace), place.query):
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


def each(items: Sequence[T], act: Callable[[T], object]) -> None:
    """Call `act` for every item, also after failures. Raises CommandError at the end, with the common exit code if any."""
    failed: list[CommandError] = []
    for item in items:
        try:
            act(item)
        except CommandError as error:
            failed.append(error)
            if len(items) > 1:
                click.echo(f"error: {error.sentence}", err=True)
    if len(items) > 1 and failed:
        codes = {error.code for error in failed}
        raise CommandError(f"{len(failed)} of {len(items)} failed", code=codes.pop() if len(codes) == 1 else FAILED)
    if failed:
        raise failed[0]


def retried(change: Callable[[], T]) -> T:
    """Call `change`, which reads an object and writes it, again after conflicts with others. Raises CommandError."""
    for left in reversed(range(ATTEMPTS)):
        try:
            return change()
        except CommandError as error:
            if error.reason != "Conflict" or not left:
                raise
    raise AssertionError


ENDINGS = (".yaml", ".yml", ".json")
Manifest = dict[str, Any]


def read_manifests(files: Sequence[str], *, recursive: bool = False) -> list[Manifest]:
    """The objects of all files in order, lists expanded. Raises CommandError with the invalid file."""
    return [each for name in files for source, text in _texts(name, recursive) for each in _manifests(source, text)]


def located(catalogue: Catalogue, manifest: Mapping[str, Any], namespace: str) -> One:
    """The location of an object. Raises CommandError."""
    metadata = manifest["metadata"]
    resource = catalogue.of_kind(manifest["apiVersion"], manifest["kind"])
    own = str(metadata.get("namespace") or "")
    if own and namespace and own != namespace and resource.namespaced:
        raise CommandError(f'{resource.noun} "{metadata["name"]}" is of namespace {own}, and -n says {namespace}', code=2)
    if resource.namespaced and not (own or namespace):
        raise CommandError(f'{resource.noun} "{metadata["name"]}" lacks its namespace: give -n CLUSTER', code=2)
    return One(resource, str(metadata["name"]), (own or namespace) if resource.namespaced else "")


def named_in(client: ApiClient, files: Sequence[str], namespace: str) -> list[One]:
    """The objects in the files, in reverse order. Raises CommandError."""
    catalogue = Catalogue(client)
    return [located(catalogue, manifest, namespace) for manifest in reversed(read_manifests(files))]


def _texts(name: str, recursive: bool) -> Iterator[tuple[str, str]]:  # noqa: FBT001 - an option, passed on
    if name == "-":
        yield "standard input", sys.stdin.read()
        return
    path = Path(name)
    if not path.is_dir():
        yield name, _text(path)
        return
    inside = path.rglob("*") if recursive else path.glob("*")
    found = sorted(each for each in inside if each.suffix in ENDINGS and each.is_file())
    if not found:
        raise CommandError(f"{name} has no file that ends in {', '.join(ENDINGS)}", code=2)
    for each in found:
        yield str(each), _text(each)


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError as error:
        raise CommandError(f"{path} cannot be read: {error.strerror or error}", code=2) from None
    except UnicodeDecodeError:
        raise CommandError(f"{path} cannot be read: it is no text", code=2) from None


def _manifests(source: str, text: str) -> Iterator[Manifest]:
    from machinery.meta import bounded_yaml as boundedyaml  # noqa: PLC0415 - only for manifests

    try:
        documents = boundedyaml.load_all(text)
    except boundedyaml.YamlError as error:
        raise CommandError(f"{source} is not YAML: {error}", code=2) from None
    for document in documents:
        if document is not None:
            yield from _checked(source, document)


def _checked(source: str, document: Any) -> Iterator[Manifest]:
    if not isinstance(document, dict):
        raise CommandError(f"{source}: an object is no mapping", code=2)
    if isinstance(document.get("items"), list) and str(document.get("kind")).endswith("List"):
        for item in document["items"]:
            yield from _checked(source, item)
        return
    metadata = document.get("metadata")
    missing = [part for part in ("apiVersion", "kind") if not isinstance(document.get(part), str)]
    if not isinstance(metadata, dict) or not isinstance(metadata.get("name"), str):
        missing.append("metadata.name")
    if missing:
        raise CommandError(f"{source}: an object lacks {' and '.join(missing)}", code=2)
    yield document
