"""Kubeconfig files: one file, or a list as in $KUBECONFIG, merged as by kubectl. Also completes the names of contexts.

For equal names of clusters, users and contexts, and for the current context, the first file counts. Missing files are skipped.
Relative paths in a file start at the folder of the file.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from hubctl.errors import CommandError, UsageError, usage_errors
from hubctl.files import as_yaml, private_file
from machinery.runtime.directory import PRIVATE_DIRECTORY, default_data_dir

if TYPE_CHECKING:
    from machinery.client.kubeconfig import Kubeconfig

Document = dict[str, Any]
ADMIN_KUBECONFIG = "admin.kubeconfig"
USER_KUBECONFIG = "~/.kube/config"
VARIABLES = ("HUBCTL_KUBECONFIG", "KUBECONFIG")


def admin_kubeconfig() -> Path:
    """Return the path to which a hub on this machine writes its admin kubeconfig at each start."""
    return default_data_dir() / ADMIN_KUBECONFIG


@dataclass(frozen=True)
class KubeconfigFiles:
    """The kubeconfig files, in order of precedence. `is_default`: neither a flag nor a variable names them."""

    paths: tuple[Path, ...]
    is_default: bool = False

    @classmethod
    def chosen(cls, given: str | None) -> "KubeconfigFiles":
        """Return the files of `given` (--kubeconfig) or a variable; else the local hub's admin kubeconfig; else ~/.kube/config.

        Raises CommandError if nothing is named and neither of the two files exists.
        """
        files = cls.to_change(given)
        if not files.is_default:
            return files
        for path in (admin_kubeconfig(), *files.paths):
            if path.exists():
                return cls((path,), is_default=True)
        raise UsageError(
            f"no kubeconfig at {admin_kubeconfig()}, where a hub on this machine writes it, or at {files.source}. "
            "Give --kubeconfig FILE or set HUBCTL_KUBECONFIG"
        )

    @classmethod
    def to_change(cls, given: str | None) -> "KubeconfigFiles":
        """Return the file `given` (--kubeconfig), else those of $HUBCTL_KUBECONFIG or $KUBECONFIG, else ~/.kube/config.

        The files need not exist.
        """
        if given:
            return cls((Path(given).expanduser(),))
        for variable in VARIABLES:
            named = [part for part in os.environ.get(variable, "").split(os.pathsep) if part]
            if named:
                return cls(tuple(dict.fromkeys(map(Path, named))))
        return cls((Path(USER_KUBECONFIG).expanduser(),), is_default=True)

    @property
    def present(self) -> tuple[Path, ...]:
        """The files that exist. If none exists, the first file, so that reading it raises the error."""
        return tuple(path for path in self.paths if path.exists()) or (self.paths[0],)

    @property
    def source(self) -> str:
        """The paths of the present files, for messages."""
        return os.pathsep.join(map(str, self.present))

    def read(self, context: str | None = None) -> "Kubeconfig":
        """Parse the context with this name, or the current one. Raises CommandError with the file and the problem."""
        from machinery.client.kubeconfig import parsed, read_kubeconfig  # noqa: PLC0415 - not for `hubctl --help`

        if context and context not in self.contexts:
            known = ", ".join(self.contexts) or "none"
            raise UsageError(f'kubeconfig {self.source} has no context "{context}": it has {known}')
        with usage_errors():
            if len(self.present) == 1:
                return read_kubeconfig(self.present[0], context=context)
            return parsed(self.merged, source=self.source, folder=Path(), context=context)

    @property
    def current(self) -> str:
        """The name of the current context; empty if there is none. Raises CommandError."""
        return str(self.merged.get("current-context") or "")

    @property
    def contexts(self) -> dict[str, Mapping[str, Any]]:
        """The contexts of all files by name. Raises CommandError."""
        return {str(entry["name"]): entry.get("context") or {} for entry in self.merged["contexts"]}

    def holding(self, section: str, name: str | None = None) -> Path:
        """Return the first file with entry `name` (None: any) in `section`; else `for_new_entries`. Raises CommandError."""
        for path in (path for path in self.paths if path.exists()):
            found = self.documents[path].get(section)
            if found and (name is None or any(each.get("name") == name for each in found)):
                return path
        return self.for_new_entries

    @property
    def for_new_entries(self) -> Path:
        """Return the first file that exists; if none exists, the last file, as in kubectl."""
        return next((path for path in self.paths if path.exists()), self.paths[-1])

    @cached_property
    def documents(self) -> dict[Path, dict[str, Any]]:
        """The content of each file. Raises CommandError."""
        return {path: load(path) for path in self.present}

    @cached_property
    def merged(self) -> dict[str, Any]:
        """All files merged. Raises CommandError."""
        from machinery.client import kubeconfig_documents  # noqa: PLC0415 - as above

        with usage_errors():
            return kubeconfig_documents.merged(self.documents)


def has_kubeconfig(context: click.Context) -> bool:
    """Whether the user has named a kubeconfig, or there is one at a default place."""
    try:
        return bool(option_of(context, "kubeconfig")) or any(path.exists() for path in KubeconfigFiles.chosen(None).paths)
    except CommandError:
        return False


def has_content(path: Path) -> bool:
    return path.exists() and path.stat().st_size > 0


def edit_kubeconfig(path: Path, change: Callable[[Document], Document], *, mode: int | None = None) -> None:
    """Change a file atomically, under kubectl's lock. Create a missing file with mode 0600. Follow symbolic links.

    `mode`: the new mode of the file; None: it keeps its mode. Raises CommandError.
    """
    path = path.resolve()
    try:
        path.parent.mkdir(mode=PRIVATE_DIRECTORY, parents=True, exist_ok=True)
    except OSError as error:
        raise CommandError(f"{path} cannot be written: {error.strerror or error}") from None
    with _locked(path):
        document = change(load(path) if has_content(path) else {"apiVersion": "v1", "kind": "Config"})
        if mode is None and path.exists():
            mode = path.stat().st_mode
        with private_file(path) as file:
            file.write(as_yaml(document).encode())
        if mode is not None:
            path.chmod(mode)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold kubectl's lock, a file next to the kubeconfig. Raises CommandError if another process holds it."""
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


def load(path: Path) -> dict[str, Any]:
    """Parse one kubeconfig file. Raises CommandError."""
    from machinery.client import kubeconfig_documents  # noqa: PLC0415 - as above

    with usage_errors():
        return kubeconfig_documents.read_document(path)


def context_names(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    del parameter

    return complete_words(lambda: KubeconfigFiles.chosen(option_of(context, "kubeconfig")).contexts, incomplete)


def option_of(context: click.Context, name: str) -> str | None:
    """Return the value of the option `name`, set at the command or before it; None: the option is not set."""
    return next((str(found) for at in context_chain(context) if (found := at.params.get(name))), None)


def context_chain(context: click.Context) -> Iterator[click.Context]:
    """Yield the command's context, then its parents."""
    at: click.Context | None = context
    while at is not None:
        yield at
        at = at.parent


def complete_words(find: Callable[[], Iterable[str]], incomplete: str) -> list[CompletionItem]:
    """Return the words with the prefix `incomplete`. After an error, return none."""
    try:
        return [CompletionItem(word) for word in find() if word.startswith(incomplete)]
    except (CommandError, click.ClickException):
        return []
