"""Reads files, and writes files atomically so that only their owner can read them. Also declares the option --overwrite."""

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import click

from hubctl.errors import CommandError, UsageError


def read_text(name: str | Path) -> str:
    """Return the text of a file that the user has named. Raises UsageError."""
    try:
        return Path(name).read_text()
    except OSError as error:
        raise UsageError(f"{name} cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise UsageError(f"{name} cannot be read: it is not UTF-8 text") from None


def as_yaml(document: Mapping[str, Any], *, apart: bool = False) -> str:
    """Return a document as YAML. The order of keys stays. `apart`: begin with the line `---`."""
    from machinery.meta import bounded_yaml  # noqa: PLC0415 - the other forms do not wait for it

    return bounded_yaml.write(dict(document), explicit_start=apart)


@contextmanager
def private_file(path: Path) -> Iterator[BinaryIO]:
    """Context manager with a new file that only its owner can read. If the `with` block succeeds, the file replaces `path`.

    Raises CommandError.
    """
    try:
        descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    except OSError as error:
        raise CommandError(f"{path} cannot be written: {error.strerror}") from None
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


OVERWRITE = click.option("--overwrite", is_flag=True, help="Replace FILE even if this command did not create it.")


def output_file(name: str, is_own: Callable[[list[Any]], bool], *, overwrite: bool) -> AbstractContextManager[BinaryIO]:
    """Return a `private_file` for the path `name`. Symbolic links are followed.

    `is_own` returns whether the command itself has written these YAML documents. Raises CommandError if the file exists with
    other content, unless `overwrite`.
    """
    path = Path(name).resolve()
    if path.exists() and not path.is_file():
        raise UsageError(f"{name} is not a regular file")
    if path.exists() and not overwrite and not is_own(_documents(path)):
        raise UsageError(f"{name} already exists with other content: name another file, or set --overwrite")
    return private_file(path)


def single_user(documents: list[Any]) -> dict[str, Any] | None:
    """Return the user entry of a kubeconfig with one context, cluster and user; None if the documents are something else."""
    config = documents[0] if len(documents) == 1 else None
    if not isinstance(config, dict) or config.get("kind") != "Config":
        return None
    entries = [config.get(part) for part in ("clusters", "contexts", "users")]
    if not all(isinstance(each, list) and len(each) == 1 and isinstance(each[0], dict) for each in entries):
        return None
    return {**config["users"][0]}


def _documents(path: Path) -> list[Any]:
    """Return the file's documents; none for an empty file, and a single None for invalid YAML."""
    from machinery.meta.bounded_yaml import YamlError, load_all  # noqa: PLC0415 - only if the file exists

    try:
        content = path.read_bytes()
        return [each for each in load_all(content) if each is not None] if content.strip() else []
    except OSError as error:
        raise CommandError(f"{path} cannot be read: {error.strerror or error}") from None
    except YamlError:
        return [None]
