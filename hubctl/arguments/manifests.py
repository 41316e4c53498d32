"""Reads manifests from files, folders or standard input."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hubctl.arguments.targets import One
from hubctl.client.discovery import Catalogue
from hubctl.client.http import ApiClient
from hubctl.errors import CommandError

ENDINGS = (".yaml", ".yml", ".json")
Manifest = dict[str, Any]


def read_manifests(files: Sequence[str], *, recursive: bool = False) -> list[Manifest]:
    """The objects of all files in order, lists expanded. Raises CommandError with the invalid file."""
    return [each for name in files for source, text in _texts(name, recursive) for each in _objects(source, text)]


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


def _objects(source: str, text: str) -> Iterator[Manifest]:
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
