"""Objects as the user writes them: KIND NAME..., KIND/NAME..., KIND,KIND, selectors, and manifests."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hubctl.client.resources import Catalogue, ResourceKind
from hubctl.errors import UsageError
from hubctl.files import read_text


@dataclass(frozen=True, slots=True)
class Target:
    """A kind, with the names of the selected objects. Without names: all objects of the kind."""

    resource: ResourceKind
    names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TargetScope:
    namespace: str = ""
    selector: str = ""
    fields: str = ""
    where: str = ""
    everything: bool = False

    @classmethod
    def of(cls, chosen: Mapping[str, Any]) -> "TargetScope":
        """Return the scope that the options of a command specify. A command need not have all options."""
        namespace, selector, fields, where = (
            str(chosen.get(option) or "") for option in ("namespace", "selector", "field_selector", "where")
        )
        return cls(namespace, selector, fields, where, bool(chosen.get("everything")))

    @property
    def query(self) -> dict[str, str]:
        return {"labelSelector": self.selector, "fieldSelector": self.fields, "where": self.where}

    @property
    def selects(self) -> bool:
        return self.everything or any(self.query.values())

    def check(self, target: Target) -> None:
        """Raise CommandError if names and selectors are combined, or if a target with names needs a namespace and has none."""
        if target.names and self.selects:
            raise UsageError("give names, or --selector, --field-selector, --where or --all, not both")
        if target.names and target.resource.namespaced and not self.namespace:
            noun = target.resource.noun
            article = "an" if noun[:1] in "aeiou" else "a"
            raise UsageError(f"{article} {noun} has a namespace: give -n CLUSTER")


@dataclass(frozen=True, slots=True)
class ObjectReference:
    """One object. `str` returns its name for messages, such as `cluster "edge1"`."""

    resource: ResourceKind
    name: str
    namespace: str = ""
    listed: Mapping[str, Any] | None = field(default=None, compare=False, repr=False)
    """The object as the hub listed it; None if the user has named it."""

    def __str__(self) -> str:
        return f'{self.resource.noun} "{self.name}"'

    @property
    def path(self) -> str:
        return self.resource.of(self.name, self.namespace)


def read_targets(catalogue: Catalogue, words: Sequence[str]) -> list[Target]:
    """Parse words such as KIND NAME..., KIND/NAME... or KIND,KIND. Raises CommandError."""
    if not words:
        raise UsageError("specify a kind, such as `clusters`, or KIND/NAME")
    if "/" in words[0]:
        named: dict[ResourceKind, dict[str, None]] = {}
        for word in words:
            kind, slash, name = word.partition("/")
            if not (kind and slash and name) or "/" in name:
                raise UsageError(f'"{word}" is not KIND/NAME, unlike the words before it')
            named.setdefault(catalogue.named(kind), {})[name] = None
        return [Target(resource, tuple(names)) for resource, names in named.items()]
    if any("/" in word for word in words):
        raise UsageError("write KIND NAME... or KIND/NAME..., not both")
    kinds = [word for word in words[0].split(",") if word]
    if len(kinds) > 1 and len(words) > 1:
        raise UsageError("names cannot follow several kinds: write KIND/NAME for each")
    return [Target(catalogue.named(kind), tuple(dict.fromkeys(words[1:]))) for kind in kinds]


ENDINGS = (".yaml", ".yml", ".json")
Manifest = dict[str, Any]


def read_sources(files: Sequence[str], *, recursive: bool = False) -> Iterator[tuple[str, str]]:
    """Yield name and text of each file, or of a folder's YAML and JSON files. Name -: standard input. Raises CommandError."""
    for name in files:
        for source in _sources(name, recursive=recursive):
            yield ("standard input", sys.stdin.read()) if source == "-" else (source, read_text(Path(source)))


def read_manifests(source: str, text: str) -> list[Manifest]:
    """Return the objects in the text of a file. Lists are expanded. Raises CommandError with the name of the file."""
    from machinery.meta import bounded_yaml  # noqa: PLC0415 - only for manifests

    try:
        documents = bounded_yaml.load_all(text)
    except bounded_yaml.YamlError as error:
        raise UsageError(f"{source} is not YAML: {error}") from None
    return [each for document in documents if document is not None for each in _checked(source, document)]


def located(catalogue: Catalogue, manifest: Mapping[str, Any], namespace: str) -> ObjectReference:
    """Return the object that a manifest describes. `namespace`: the value of -n; "": not set. Raises CommandError."""
    metadata = manifest["metadata"]
    resource = catalogue.of_kind(manifest["apiVersion"], manifest["kind"])
    own = str(metadata.get("namespace") or "")
    if own and namespace and own != namespace and resource.namespaced:
        raise UsageError(f'{resource.noun} "{metadata["name"]}" has the namespace {own}, and -n is {namespace}')
    if resource.namespaced and not (own or namespace):
        raise UsageError(f'{resource.noun} "{metadata["name"]}" lacks its namespace: give -n CLUSTER')
    return ObjectReference(resource, str(metadata["name"]), (own or namespace) if resource.namespaced else "")


def _sources(name: str, *, recursive: bool) -> list[str]:
    if name == "-" or not Path(name).is_dir():
        return [name]
    inside = Path(name).rglob("*") if recursive else Path(name).glob("*")
    found = sorted(each for each in inside if each.suffix in ENDINGS and each.is_file())
    if not found:
        raise UsageError(f"{name} has no file that ends in {', '.join(ENDINGS)}")
    return [str(each) for each in found]


def _checked(source: str, document: Any) -> Iterator[Manifest]:
    if not isinstance(document, dict):
        raise UsageError(f"{source}: an object is not a mapping")
    if isinstance(document.get("items"), list) and str(document.get("kind")).endswith("List"):
        for item in document["items"]:
            yield from _checked(source, item)
        return
    metadata = document.get("metadata")
    missing = [part for part in ("apiVersion", "kind") if not isinstance(document.get(part), str)]
    if not isinstance(metadata, dict) or not isinstance(metadata.get("name"), str):
        missing.append("metadata.name")
    if missing:
        raise UsageError(f"{source}: an object lacks {' and '.join(missing)}")
    yield document
