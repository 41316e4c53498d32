"""The objects that a command acts on: KIND NAME..., KIND/NAME..., KIND,KIND, a kind and a selector, or manifests."""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click

from hubctl.client.http import ApiClient, items
from hubctl.client.resources import Catalogue, ResourceKind
from hubctl.errors import FAILED, CommandError
from hubctl.files import read_text

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

    @classmethod
    def of(cls, chosen: Mapping[str, Any]) -> "TargetScope":
        """The scope in the options of a command; it need not have all of them."""
        fields = chosen.get("field_selector", "")
        return cls(chosen.get("namespace", ""), chosen.get("selector", ""), fields, chosen.get("everything", False))

    @property
    def query(self) -> dict[str, str]:
        return {"labelSelector": self.selector, "fieldSelector": self.fields}

    def check(self, target: Target) -> None:
        """Raises CommandError for names together with selectors, and for a name without its namespace."""
        if target.names and (self.selector or self.fields or self.everything):
            raise CommandError("give names, or --selector, --field-selector or --all, not both", code=2)
        if target.names and target.resource.namespaced and not self.namespace:
            noun = target.resource.noun
            article = "an" if noun[:1] in "aeiou" else "a"
            raise CommandError(f"{article} {noun} is found by its cluster too: give -n CLUSTER", code=2)


@dataclass(frozen=True, slots=True)
class One:
    """One object; as text, it is named as in messages."""

    resource: ResourceKind
    name: str
    namespace: str = ""

    def __str__(self) -> str:
        return f'{self.resource.noun} "{self.name}"'

    @property
    def path(self) -> str:
        return self.resource.of(self.name, self.namespace)


def read_targets(catalogue: Catalogue, words: Sequence[str]) -> list[Target]:
    """Parse kinds and names. Raises CommandError."""
    if not words:
        raise CommandError("say what: a kind, as in `clusters`, or KIND/NAME", code=2)
    if "/" in words[0]:
        named: dict[ResourceKind, dict[str, None]] = {}
        for word in words:
            kind, slash, name = word.partition("/")
            if not (kind and slash and name) or "/" in name:
                raise CommandError(f'"{word}" is not KIND/NAME, as the words before it are', code=2)
            named.setdefault(catalogue.named(kind), {})[name] = None
        return [Target(resource, tuple(names)) for resource, names in named.items()]
    if any("/" in word for word in words):
        raise CommandError("write KIND NAME... or KIND/NAME..., not both", code=2)
    kinds = [word for word in words[0].split(",") if word]
    if len(kinds) > 1 and len(words) > 1:
        raise CommandError("several kinds and a name do not go together: write KIND/NAME for each", code=2)
    return [Target(catalogue.named(kind), tuple(dict.fromkeys(words[1:]))) for kind in kinds]


def objects(client: ApiClient, words: Sequence[str], scope: TargetScope) -> tuple[One, ...]:
    """The chosen objects. Raises CommandError when there is no choice, or none is found."""
    found: list[One] = []
    for target in read_targets(Catalogue(client), words):
        scope.check(target)
        if target.names:
            found += [One(target.resource, name, scope.namespace) for name in target.names]
        elif scope.selector or scope.fields or scope.everything:
            listed = [item["metadata"] for item in items(client, target.resource.within(scope.namespace), scope.query)]
            if not listed:
                raise CommandError(f"there is no {target.resource.noun} like that", reason="NotFound")
            found += [One(target.resource, str(each["name"]), str(each.get("namespace") or "")) for each in listed]
        else:
            raise CommandError(f"say which {target.resource.words[0]}: names, a --selector, or --all", code=2)
    return tuple(dict.fromkeys(found))


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


def act_on(client: ApiClient, words: Sequence[str], chosen: Mapping[str, Any], act: Callable[[One], object]) -> None:
    """Call `act` for each object that the words and options of a command select, as `each` does. Raises CommandError."""
    each(objects(client, words, TargetScope.of(chosen)), act)


def retried(change: Callable[[], T]) -> T:
    """Call `change`, which reads an object and writes it, again after conflicts with others. Raises CommandError."""
    for _ in range(ATTEMPTS - 1):
        try:
            return change()
        except CommandError as error:
            if error.reason != "Conflict":
                raise
    return change()


ENDINGS = (".yaml", ".yml", ".json")
Manifest = dict[str, Any]


def read_manifests(files: Sequence[str], *, recursive: bool = False) -> list[Manifest]:
    """The objects of all files in order, lists expanded. Raises CommandError with the invalid file."""
    from machinery.meta import bounded_yaml  # noqa: PLC0415 - only for manifests

    found: list[Manifest] = []
    for name in files:
        for source in _sources(name, recursive=recursive):
            try:
                documents = bounded_yaml.load_all(sys.stdin.read() if source == "-" else read_text(Path(source)))
            except bounded_yaml.YamlError as error:
                raise CommandError(f"{_called(source)} is not YAML: {error}", code=2) from None
            found += [each for document in documents if document is not None for each in _checked(_called(source), document)]
    return found


def located(catalogue: Catalogue, manifest: Mapping[str, Any], namespace: str) -> One:
    """The object that a manifest is of. Raises CommandError."""
    metadata = manifest["metadata"]
    resource = catalogue.of_kind(manifest["apiVersion"], manifest["kind"])
    own = str(metadata.get("namespace") or "")
    if own and namespace and own != namespace and resource.namespaced:
        raise CommandError(f'{resource.noun} "{metadata["name"]}" is of namespace {own}, and -n says {namespace}', code=2)
    if resource.namespaced and not (own or namespace):
        raise CommandError(f'{resource.noun} "{metadata["name"]}" lacks its namespace: give -n CLUSTER', code=2)
    return One(resource, str(metadata["name"]), (own or namespace) if resource.namespaced else "")


def _sources(name: str, *, recursive: bool) -> list[str]:
    """The file, or the manifests in the directory."""
    if name == "-" or not Path(name).is_dir():
        return [name]
    inside = Path(name).rglob("*") if recursive else Path(name).glob("*")
    found = sorted(each for each in inside if each.suffix in ENDINGS and each.is_file())
    if not found:
        raise CommandError(f"{name} has no file that ends in {', '.join(ENDINGS)}", code=2)
    return [str(each) for each in found]


def _called(source: str) -> str:
    return "standard input" if source == "-" else source


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
