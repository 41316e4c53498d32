"""Loads kubeconfig files: one, or a list as in $KUBECONFIG, merged as by kubectl.

The first file wins for equal names of clusters, users and contexts, and for the current context. Missing files are skipped.
Relative paths in a file refer to its own folder.
"""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from hubctl.errors import CommandError
from machinery.client.kubeconfig import Kubeconfig, parse_kubeconfig, read_kubeconfig
from machinery.errors import InvalidError
from machinery.runtime.directory import default_data_dir

ADMIN_KUBECONFIG = "admin.kubeconfig"
VARIABLES = ("HUBCTL_KUBECONFIG", "KUBECONFIG")
PARTS = {"clusters": "cluster", "users": "user", "contexts": "context"}
FILES = {"cluster": ("certificate-authority",), "user": ("client-certificate", "client-key", "tokenFile")}


@dataclass(frozen=True)
class KubeconfigFiles:
    """The files in order."""

    paths: tuple[Path, ...]

    @classmethod
    def chosen(cls, given: str | None) -> "KubeconfigFiles":
        """The file of the flag, else those of $HUBCTL_KUBECONFIG or $KUBECONFIG, else the admin kubeconfig of a local hub.

        Raises CommandError when there is none.
        """
        if given:
            return cls((Path(given).expanduser(),))
        for variable in VARIABLES:
            named = [part for part in os.environ.get(variable, "").split(os.pathsep) if part]
            if named:
                return cls(tuple(dict.fromkeys(map(Path, named))))
        path = default_data_dir() / ADMIN_KUBECONFIG
        if not path.exists():
            raise CommandError(
                f"no kubeconfig: there is none at {path}, where a hub on this machine writes it. "
                "Give --kubeconfig FILE or set HUBCTL_KUBECONFIG",
                code=2,
            )
        return cls((path,))

    @property
    def first(self) -> Path:
        """The first that exists, else the first."""
        return next((path for path in self.paths if path.exists()), self.paths[0])

    @property
    def there(self) -> tuple[Path, ...]:
        """The files that exist; if none does, the first, so that reading it fails."""
        return tuple(path for path in self.paths if path.exists()) or (self.paths[0],)

    @property
    def source(self) -> str:
        """The files as named in errors."""
        return os.pathsep.join(map(str, self.there))

    def read(self, context: str | None = None) -> Kubeconfig:
        """Parse the named or current context. Raises CommandError with the file and the defect."""
        if context and context not in self.contexts:
            known = ", ".join(self.contexts) or "none"
            raise CommandError(f'kubeconfig {self.source} has no context "{context}": it has {known}', code=2)
        try:
            if len(self.there) == 1:
                return read_kubeconfig(self.there[0], context=context)
            import yaml  # noqa: PLC0415 - one file alone needs no writing

            whole = yaml.safe_dump(self.merged).encode()
            return parse_kubeconfig(whole, source=self.source, folder=Path(), context=context)
        except InvalidError as error:
            raise CommandError(error.message, code=2) from None

    @property
    def current(self) -> str:
        """The current context; empty if there is none. Raises CommandError."""
        return str(self.merged.get("current-context") or "")

    @property
    def contexts(self) -> dict[str, Mapping[str, Any]]:
        """Contexts by name. Raises CommandError."""
        return {str(entry["name"]): entry.get("context") or {} for entry in self.merged["contexts"]}

    @cached_property
    def documents(self) -> dict[Path, dict[str, Any]]:
        """The content of each file. Raises CommandError."""
        return {path: load(path) for path in self.there}

    @cached_property
    def merged(self) -> dict[str, Any]:
        """All files merged. Raises CommandError."""
        whole: dict[str, Any] = {"apiVersion": "v1", "kind": "Config"}
        for part, inner in PARTS.items():
            found: dict[str, Any] = {}
            for path, document in self.documents.items():
                for entry in entries(document, part, path):
                    found.setdefault(entry["name"], {**entry, inner: _placed(inner, entry.get(inner) or {}, path.parent)})
            whole[part] = list(found.values())
        whole["current-context"] = next(
            (document["current-context"] for document in self.documents.values() if document.get("current-context")), ""
        )
        return whole


def load(path: Path) -> dict[str, Any]:
    """Parse one file. Raises CommandError."""
    from machinery.meta import bounded_yaml as boundedyaml  # noqa: PLC0415 - only where there are several, or somebody asks for contexts

    try:
        document = boundedyaml.load(path.read_bytes())
    except OSError as error:
        raise CommandError(f"kubeconfig {path} cannot be read: {error.strerror or error}", code=2) from None
    except boundedyaml.YamlError as error:
        raise CommandError(f"kubeconfig {path}: is not YAML: {error}", code=2) from None
    if not isinstance(document, dict):
        raise CommandError(f"kubeconfig {path}: is empty or not a mapping", code=2)
    return document


def entries(document: Mapping[str, Any], part: str, path: Path) -> Iterator[dict[str, Any]]:
    """The named entries of one section. Raises CommandError."""
    for entry in document.get(part) or ():
        if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
            raise CommandError(f"kubeconfig {path}: has an entry without a name in {part}", code=2)
        yield entry


def _placed(inner: str, entry: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The entry with absolute paths."""
    placed: dict[str, Any] = {name: str((folder / entry[name]).absolute()) for name in FILES.get(inner, ()) if entry.get(name)}
    plugin = entry.get("exec")
    if isinstance(plugin, dict) and os.sep in str(plugin.get("command")):
        placed["exec"] = {**plugin, "command": str((folder / plugin["command"]).absolute())}
    return {**entry, **placed}
