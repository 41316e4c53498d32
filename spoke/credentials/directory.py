"""A directory that mirrors the hub kubeconfig secret and changes atomically, as a mounted secret does.

The directory has the kubelet's layout. Each set of files is in a new folder. The symbolic link `..data` names the current
folder and is replaced in one step. Each key is a link to `..data/<key>`. A reader that opens `..data` once never reads a mix of
two sets. Files of other programs stay. A directory that contains only files of other programs is refused.

The secret is authoritative, so the agent does not wait for the directory. A failed write, for example on a full disk, is
retried every minute. Otherwise readers of the directory would use an old certificate until the next renewal, weeks later.
"""

import re
import shutil
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import structlog

from machinery.errors import InvalidError, MusterError
from machinery.runtime.directory import sync, write_private
from spoke.ports.cluster import CredentialDirectory

log = structlog.get_logger(__name__)


DATA = "..data"
_STAGED = "..staged"
_KEY = re.compile(r"[-._a-zA-Z0-9]+")
_LONGEST_KEY = 253
_READ_ATTEMPTS = 100


class AtomicDirectory(CredentialDirectory):
    """The directory at `path`. The first write creates it. It supports one writer and any number of readers."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def replace(self, contents: Mapping[str, bytes]) -> None:
        """Replace the files in the directory. `contents`: the content of each file by its name.

        Raises InvalidError for a name that no key of a Secret can have, and for a directory with other files that was never
        used as a credential directory; OSError if the directory cannot be written. After an error the earlier contents stay.
        """
        for key in contents:
            if not _KEY.fullmatch(key) or key == "." or key.startswith("..") or len(key) > _LONGEST_KEY:
                raise InvalidError(f'"{key[:80]}" cannot be a file of a credential directory')
        self._path.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._claim()
        if self.read() != contents or not (self._path / DATA).is_symlink():
            self._publish(contents)
        for key in contents:
            target = f"{DATA}/{key}"
            if not (self._path / key).is_symlink() or str((self._path / key).readlink()) != target:
                self._swap(Path(key), target)
        self._sweep(contents)

    def read(self) -> Mapping[str, bytes]:
        """Return the current set of files as content by name; empty if nothing was written yet."""
        for _ in range(_READ_ATTEMPTS):
            folder = (self._path / DATA).resolve()
            with suppress(FileNotFoundError):
                contents = {file.name: file.read_bytes() for file in sorted(folder.iterdir())}
                if (self._path / DATA).resolve() == folder:
                    return contents  # otherwise a writer replaced and removed the folder during the read: read again
            if not (self._path / DATA).is_symlink():
                break
        return {}

    def _claim(self) -> None:
        foreign = [
            entry.name for entry in self._path.iterdir() if not entry.name.startswith("..") and entry.name != "lost+found"
        ]
        if foreign and not (self._path / DATA).is_symlink():
            raise InvalidError(f"{self._path} contains other files: name an empty directory for the hub kubeconfig")
        with suppress(PermissionError):  # a mounted volume may have another owner; our entries have the modes 0700 and 0600
            self._path.chmod(0o700)

    def _publish(self, contents: Mapping[str, bytes]) -> None:
        folder = Path(tempfile.mkdtemp(prefix="..", dir=self._path))
        try:
            for key, value in contents.items():
                write_private(folder / key, value)
            sync(folder)
            self._swap(Path(DATA), folder.name)
        except OSError:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        sync(self._path)

    def _swap(self, name: Path, target: str) -> None:
        staged = self._path / _STAGED
        staged.unlink(missing_ok=True)
        staged.symlink_to(target)
        staged.replace(self._path / name)

    def _sweep(self, contents: Mapping[str, bytes]) -> None:
        """Remove obsolete entries of this program: links of removed keys, folders of earlier sets and of interrupted writes."""
        current = str((self._path / DATA).readlink())
        for entry in self._path.iterdir():
            if entry.is_symlink():
                if entry.name not in (*contents, DATA) and str(entry.readlink()).startswith(".."):
                    entry.unlink(missing_ok=True)
            elif entry.is_dir() and entry.name.startswith("..") and entry.name != current:
                shutil.rmtree(entry, ignore_errors=True)


MIRROR_RETRY = timedelta(minutes=1)


class PatientDirectory(CredentialDirectory):
    """Wraps a credential directory. If a write fails, keeps the contents in memory until a retry (`again`) succeeds."""

    def __init__(self, inner: CredentialDirectory) -> None:
        self._inner = inner
        self._owed: Mapping[str, bytes] | None = None

    def replace(self, contents: Mapping[str, bytes]) -> None:
        """Replace the contents; after an OSError keep them for a retry. Raises InvalidError if the wrapped directory does."""
        self._owed = None
        try:
            self._inner.replace(contents)
        except OSError as error:
            self._owed = dict(contents)
            next_try = f"trying again every {MIRROR_RETRY.total_seconds():g} s; the secret holds the credential"
            log.warning("credential.not_mirrored", error=str(error), next=next_try)

    def read(self) -> Mapping[str, bytes]:
        return self._inner.read()

    def again(self) -> None:
        if self._owed is None:
            return
        try:
            self._inner.replace(self._owed)
        except (OSError, MusterError) as error:
            log.debug("credential.not_mirrored", error=str(error))
            return
        self._owed = None
        log.info("credential.mirrored")
