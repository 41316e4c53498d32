"""Kubeconfigs as documents: reading, merging several files like kubectl, and choosing a context."""

import base64
import binascii
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from machinery.client.exec_credential import exec_error
from machinery.errors import InvalidError
from machinery.meta import bounded_yaml as boundedyaml

Document = dict[str, Any]

KINDS = {"clusters": "cluster", "users": "user", "contexts": "context"}
"""Maps each section to the key of the content in its entries."""
FILES = {"cluster": ("certificate-authority",), "user": ("client-certificate", "client-key", "tokenFile")}
"""Maps `cluster` and `user` to keys with file names, relative to the kubeconfig's folder. `-data` keys have the content."""


@dataclass(frozen=True, slots=True)
class ChosenContext:
    name: str
    namespace: str | None
    cluster_name: str
    cluster: Document
    user_name: str
    user: Document


@dataclass(frozen=True, slots=True)
class Impersonation:
    """The identity that the user impersonates: `as`, `as-groups`, `as-uid` and `as-user-extra`. All empty: none."""

    user: str = ""
    groups: tuple[str, ...] = ()
    uid: str = ""
    extra: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def read_document(path: Path) -> Document:
    """Read a kubeconfig file. Raises InvalidError if it is unreadable or not a mapping."""
    try:
        text = path.read_bytes()
    except OSError as error:
        raise InvalidError(f"kubeconfig {path} cannot be read: {error.strerror or error}") from None
    return parse_document(text, str(path))


def parse_document(text: bytes, source: str) -> Document:
    """Parse the content of a kubeconfig file. Raises InvalidError with the name `source`."""
    try:
        document = boundedyaml.load(text)
    except boundedyaml.YamlError as error:
        raise InvalidError(f"kubeconfig {source} is not YAML: {error}") from None
    if not isinstance(document, dict):
        raise InvalidError(f"kubeconfig {source} is empty or not a mapping")
    return document


def merged(documents: Mapping[Path, Document]) -> Document:
    """Merge files. For equal names, and for the current context, the first file counts. Paths become absolute.

    Raises InvalidError for an entry without a name.
    """
    whole: Document = {"apiVersion": "v1", "kind": "Config"}
    for section, kind in KINDS.items():
        found: Document = {}
        for path, document in documents.items():
            for entry in document.get(section) or ():
                if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
                    raise InvalidError(f"kubeconfig {path} has an entry without a name in {section}")
                found.setdefault(entry["name"], {**entry, kind: _placed(kind, entry.get(kind) or {}, path.parent)})
        whole[section] = list(found.values())
    chosen = [each["current-context"] for each in documents.values() if each.get("current-context")]
    whole["current-context"] = chosen[0] if chosen else ""
    return whole


def _placed(kind: str, entry: Document, folder: Path) -> Document:
    placed: Document = {name: str((folder / entry[name]).absolute()) for name in FILES.get(kind, ()) if entry.get(name)}
    plugin = entry.get("exec")
    if isinstance(plugin, dict) and os.sep in str(plugin.get("command")):
        placed["exec"] = {**plugin, "command": str((folder / plugin["command"]).absolute())}
    return {**entry, **placed}


def choose(document: Mapping[str, Any], source: str, context: str | None = None) -> ChosenContext:
    """Return the context with this name, by default the current context. Raises InvalidError."""
    name = context or document.get("current-context")
    if not isinstance(name, str) or not name:
        raise InvalidError(f"kubeconfig {source} has no current-context")
    chosen = _named(document, "context", name)
    if chosen is None:
        raise InvalidError(f'kubeconfig {source} has no context "{name}"')
    cluster, user = (_named(document, kind, chosen.get(kind)) for kind in ("cluster", "user"))
    if cluster is None or user is None:
        missing = [
            f'no {kind} "{chosen[kind]}"' if chosen.get(kind) else f'no {kind} in context "{name}"'
            for kind, entry in (("cluster", cluster), ("user", user))
            if entry is None
        ]
        raise InvalidError(f"kubeconfig {source} has {' and '.join(missing)}")
    return ChosenContext(name, chosen.get("namespace"), chosen["cluster"], cluster, chosen["user"], user)


def _named(document: Mapping[str, Any], kind: str, name: object) -> Document | None:
    for entry in entries_of(document, f"{kind}s"):
        if entry.get("name") == name and isinstance(entry.get(kind), dict):
            content: Document = entry[kind]
            return content
    return None


def entries_of(document: Mapping[str, Any], section: str) -> Iterator[Document]:
    """Yield the mappings in the list `section` (such as `users`) of a kubeconfig. The list may be missing."""
    listed = document.get(section)
    yield from (entry for entry in listed if isinstance(entry, dict)) if isinstance(listed, list) else ()


def with_one_context(name: str, cluster: Document, user: Document, *, user_name: str = "") -> Document:
    """Return a kubeconfig with one cluster, one user and one context, all named `name` unless `user_name` is given."""
    user_name = user_name or name
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": name, "cluster": cluster}],
        "users": [{"name": user_name, "user": user}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": user_name}}],
        "current-context": name,
    }


def encoded(pem: bytes) -> str:
    """Return the base64 value for a key that ends in `-data`."""
    return base64.b64encode(pem).decode("ascii")


def decoded(inline: object, what: str) -> bytes:
    """Decode the value of a key that ends in `-data`. Raises InvalidError, whose message begins with `what`."""
    try:
        return base64.b64decode(str(inline), validate=True)
    except (binascii.Error, ValueError):
        raise InvalidError(f"{what} is not base64") from None


def extension_of(entry: Mapping[str, Any], name: str) -> Any:
    """Return the extension with this name; None if there is none."""
    found = (each for each in entries_of(entry, "extensions") if each.get("name") == name)
    return next(found, {}).get("extension")


def credential_error(entry: Mapping[str, Any]) -> str:
    """Return a message about an unsupported credential of a user, as the rest of a sentence; empty: none."""
    if entry.get("username") or entry.get("password"):
        return "has a username or a password, which a hub does not accept: use a token, an exec plug-in or `hubctl login`"
    if entry.get("auth-provider"):
        return "has an auth-provider, which Kubernetes no longer supports: use an exec plug-in, or `hubctl login`"
    if impersonation_of(entry) is None:
        return "has a value in as, as-uid, as-groups or as-user-extra that is not a string, or not a list of strings"
    return exec_error(entry)


def impersonation_of(entry: Mapping[str, Any]) -> Impersonation | None:
    """Return the identity that a user impersonates; None if a field has a wrong type."""
    user, uid = entry.get("as") or "", entry.get("as-uid") or ""
    groups, extra = entry.get("as-groups") or [], entry.get("as-user-extra") or {}
    lists = [groups, *(extra.values() if isinstance(extra, dict) else [None])]
    if not all(isinstance(each, list) for each in lists):
        return None
    if not all(isinstance(text, str) for text in (user, uid, *extra, *(text for each in lists for text in each))):
        return None
    return Impersonation(user, tuple(groups), uid, {key: tuple(values) for key, values in extra.items()})


def is_host(address: str) -> bool:
    """Whether the URL has a host and no invalid port."""
    try:
        parts = urlsplit(address)
        host, _port = parts.hostname, parts.port
    except ValueError:
        return False
    return bool(host)
