"""Files that hubctl writes: atomically, readable only by their owner, and other files only with --overwrite.

This protects, for example, a `~/.kube/config` with all its contexts.
"""

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import click

from hubctl.errors import CommandError


class PrivateFile:
    """A file readable only by its owner. It replaces the target when the block ends without error, else it is deleted."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> Self:
        try:
            descriptor, name = tempfile.mkstemp(dir=self._path.parent, prefix=f".{self._path.name}.")
        except OSError as error:
            raise CommandError(f"{self._path} cannot be written: {error.strerror}") from None
        self._descriptor, self._name = descriptor, name
        return self

    def write(self, content: bytes) -> None:
        with os.fdopen(os.dup(self._descriptor), "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        os.close(self._descriptor)
        if kind is not None:
            Path(self._name).unlink(missing_ok=True)
            return
        Path(self._name).replace(self._path)


OVERWRITE = click.option("--overwrite", is_flag=True, help="Replace FILE even if this command did not create it.")


def output_file(name: str, is_own: Callable[[list[Any]], bool], *, overwrite: bool) -> PrivateFile:
    """The file to write; symbolic links are followed.

    `is_own` decides whether the command itself wrote such YAML documents. Raises CommandError for a file with other content.
    """
    path = Path(name).resolve()
    if path.exists() and not path.is_file():
        raise CommandError(f"{name} is no file that can be replaced", code=2)
    if path.exists() and not overwrite and not is_own(_documents(path)):
        raise CommandError(f"{name} is there already and holds something else: name another file, or give --overwrite", code=2)
    return PrivateFile(path)


def only_user(documents: list[Any]) -> dict[str, Any] | None:
    """The user entry of a kubeconfig with one context, cluster and user; None for any other document."""
    config = documents[0] if len(documents) == 1 else None
    if not isinstance(config, dict) or config.get("kind") != "Config":
        return None
    entries = [config.get(part) for part in ("clusters", "contexts", "users")]
    if not all(isinstance(each, list) and len(each) == 1 and isinstance(each[0], dict) for each in entries):
        return None
    return {**config["users"][0]}


def _documents(path: Path) -> list[Any]:
    """The file's documents; empty for an empty file, and a single None for invalid YAML."""
    from machinery.meta.bounded_yaml import YamlError, load_all  # noqa: PLC0415 - only where a file is there already

    try:
        content = path.read_bytes()
        return [each for each in load_all(content) if each is not None] if content.strip() else []
    except OSError as error:
        raise CommandError(f"{path} cannot be read: {error.strerror or error}") from None
    except YamlError:
        return [None]
