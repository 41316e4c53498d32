"""Key and certificate files: 0600, written whole or not at all, never over something that is there unless told so."""

import os
from pathlib import Path

from machinery.errors import UnavailableError
from machinery.runtime.directory import read_file, sync, write_private


def write_new(path: Path, content: bytes) -> None:
    """A new file with all of `content`. Raises FileExistsError, UnavailableError when it cannot be written."""
    staged = _stage(path, content)
    try:
        os.link(staged, path)
    finally:
        staged.unlink(missing_ok=True)
    sync(path.parent)


def replace(path: Path, content: bytes) -> None:
    """The file has `content` from one instant to the next. Raises UnavailableError when it cannot be written."""
    staged = _stage(path, content)
    try:
        staged.replace(path)
        sync(path.parent)
    except OSError as error:
        raise UnavailableError(f"{path} cannot be written: {error.strerror}") from error


def remove(path: Path) -> None:
    """Nothing happens when there is no such file. Raises UnavailableError when it cannot be removed."""
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise UnavailableError(f"{path} cannot be removed: {error.strerror}") from error


def read(path: Path) -> bytes | None:
    """None: no such file. Raises UnavailableError when it is there and cannot be read."""
    return read_file(path)


def _stage(path: Path, content: bytes) -> Path:
    staged = path.with_name(f".{path.name}.{os.getpid()}.new")
    try:
        write_private(staged, content)
    except OSError as error:
        raise UnavailableError(f"{path} cannot be written: {error.strerror}") from error
    return staged
