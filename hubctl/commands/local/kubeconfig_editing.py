"""Edits kubeconfig files: each change in the file that holds the entry, as in kubectl, and atomically."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hubctl.errors import CommandError
from hubctl.kubeconfig.loading import KubeconfigFiles, load
from hubctl.output.private_files import PrivateFile

Document = dict[str, Any]


def choose_context(files: KubeconfigFiles, name: str) -> None:
    """Make a context the current one. Raises CommandError."""
    _check_known(files, name)
    holder = next((path for path, document in files.documents.items() if document.get("current-context")), files.first)
    _edit(holder, lambda document: {**document, "current-context": name})


def set_context(files: KubeconfigFiles, name: str, changes: dict[str, str]) -> bool:
    """Create a context, or change it in its file; return whether it is new. Raises CommandError."""
    holder = _holder(files, name)

    def change(document: Document) -> Document:
        contexts = list(document.get("contexts") or ())
        for index, entry in enumerate(contexts):
            if entry.get("name") == name:
                contexts[index] = {**entry, "context": _changed(entry.get("context") or {}, changes)}
                return {**document, "contexts": contexts}
        return {**document, "contexts": [*contexts, {"name": name, "context": _changed({}, changes)}]}

    _edit(holder or files.first, change)
    return holder is None


def rename_context(files: KubeconfigFiles, name: str, new: str) -> None:
    """Rename a context; it stays the current one if it is. Raises CommandError."""
    _check_known(files, name)
    if new in files.contexts:
        raise CommandError(f'there is a context "{new}" already', code=2)
    holder, was_current = _holder(files, name), files.current == name

    def change(document: Document) -> Document:
        renamed = [{**entry, "name": new} if entry.get("name") == name else entry for entry in document["contexts"]]
        return {**document, "contexts": renamed}

    _edit(holder or files.first, change)
    if was_current:
        choose_context(KubeconfigFiles(files.paths), new)


def delete_context(files: KubeconfigFiles, name: str) -> None:
    """Delete a context; its cluster and user stay. Raises CommandError."""
    _check_known(files, name)

    def change(document: Document) -> Document:
        return {**document, "contexts": [entry for entry in document["contexts"] if entry.get("name") != name]}

    _edit(_holder(files, name) or files.first, change)


def _changed(context: Document, changes: dict[str, str]) -> Document:
    return {key: value for key, value in {**context, **changes}.items() if value != ""}


def _check_known(files: KubeconfigFiles, name: str) -> None:
    if name not in files.contexts:
        known = ", ".join(files.contexts) or "none"
        raise CommandError(f'there is no context "{name}": there is {known}', reason="NotFound")


def _holder(files: KubeconfigFiles, name: str) -> Path | None:
    """The first file with the context."""
    for path, document in files.documents.items():
        if any(entry.get("name") == name for entry in document.get("contexts") or ()):
            return path
    return None


def _edit(path: Path, change: Callable[[Document], Document]) -> None:
    """Read the file again under its lock and replace it, following a symbolic link."""
    from hubctl.output.printers import as_yaml  # noqa: PLC0415 - the form in which it is written

    target = path.resolve()
    with _locked(target):
        content = as_yaml(change(load(target)))
        mode = target.stat().st_mode
        with PrivateFile(target) as file:
            file.write(content.encode())
        target.chmod(mode)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Kubectl's lock: a file beside it. Raises CommandError when another process holds it."""
    lock = path.with_name(f"{path.name}.lock")
    try:
        os.close(os.open(lock, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    except FileExistsError:
        raise CommandError(f"{path} is being changed by another program: if there is none, remove {lock}") from None
    except OSError as error:
        raise CommandError(f"{path} cannot be changed: {error.strerror or error}") from None
    try:
        yield
    finally:
        lock.unlink(missing_ok=True)
