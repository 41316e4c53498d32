"""Writes key and certificate files atomically with mode 0600."""

import os
from pathlib import Path

from machinery.errors import UnavailableError
from machinery.runtime.directory import read_file, sync, write_private


def write_new(path: Path, content: bytes) -> None:
    """Create a file with `content`. Raises FileExistsError, UnavailableError."""
    staged = _stage(path, content)
    try:
        os.link(staged, path)
    finally:
        staged.unlink(missing_ok=True)
    sync(path.parent)


def replace(path: Path, content: bytes) -> None:
    """Replace the file's content atomically. Raises UnavailableError."""
    staged = _stage(path, content)
    try:
        staged.replace(path)
        sync(path.parent)
    except OSError as error:
        raise UnavailableError(f"{path} cannot be written: {error.strerror}") from error


def remove(path: Path) -> None:
    """Remove the file, if it exists. Raises UnavailableError."""
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise UnavailableError(f"{path} cannot be removed: {error.strerror}") from error


def read(path: Path) -> bytes | None:
    """The content; None: there is no such file. Raises UnavailableError if it cannot be read."""
    return read_file(path)


def _stage(path: Path, content: bytes) -> Path:
    staged = path.with_name(f".{path.name}.{os.getpid()}.new")
    try:
        write_private(staged, content)
    except OSError as error:
        raise UnavailableError(f"{path} cannot be written: {error.strerror}") from error
    return staged
