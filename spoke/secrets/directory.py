"""A directory that mirrors a secret and changes as a whole, as a mounted secret does.

After the kubelet's: the files lie in a fresh folder, `..data` is a symbolic link to it that is replaced in one step, and each
key is a link to `..data/<key>`. A reader that opens `..data` once reads one set and never a mix of two. Files that others
put into the directory are left alone, and a directory that is full of them is refused.
"""

import os
import re
import shutil
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from machinery.errors import InvalidError
from machinery.runtime.directory import sync
from spoke.ports import CredentialDirectory

DATA = "..data"
_STAGED = "..staged"
_KEY = re.compile(r"[-._a-zA-Z0-9]+")
_LONGEST_KEY = 253
_READ_ATTEMPTS = 100


class AtomicDirectory(CredentialDirectory):
    """The directory at `path`, which is made with its first content; one writer, any number of readers."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def replace(self, contents: Mapping[str, bytes]) -> None:
        """Raises InvalidError for a key that no secret can have and for a directory in use for something else.

        Nothing is touched then. Raises OSError when it cannot be written: what was there stays.
        """
        _check(contents)
        self._path.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._claim()
        if self.read() != contents or not (self._path / DATA).is_symlink():
            self._publish(contents)
        self._link(contents)
        self._sweep(contents)

    def read(self) -> Mapping[str, bytes]:
        """The contents of one instant; empty when nothing was ever written."""
        for _ in range(_READ_ATTEMPTS):
            folder = (self._path / DATA).resolve()
            with suppress(FileNotFoundError):
                contents = {file.name: file.read_bytes() for file in sorted(folder.iterdir())}
                if (self._path / DATA).resolve() == folder:
                    return contents  # else replaced while we read, and the old folder was being swept: look again
            if not (self._path / DATA).is_symlink():
                break
        return {}

    def _claim(self) -> None:
        foreign = [
            entry.name for entry in self._path.iterdir() if not entry.name.startswith("..") and entry.name != "lost+found"
        ]
        if foreign and not (self._path / DATA).is_symlink():
            raise InvalidError(f"{self._path} holds other files: name an empty directory for the hub kubeconfig")
        with suppress(PermissionError):  # a mounted volume may belong to somebody else; what lies in it is 0700 and 0600
            self._path.chmod(0o700)

    def _publish(self, contents: Mapping[str, bytes]) -> None:
        """Writes a fresh folder and makes it the visible one; durable before it is visible."""
        folder = Path(tempfile.mkdtemp(prefix="..", dir=self._path))
        try:
            for key, value in contents.items():
                _write(folder / key, value)
            sync(folder)
            self._swap(Path(DATA), folder.name)
        except OSError:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        sync(self._path)

    def _link(self, contents: Mapping[str, bytes]) -> None:
        for key in contents:
            target = f"{DATA}/{key}"
            if not (self._path / key).is_symlink() or str((self._path / key).readlink()) != target:
                self._swap(Path(key), target)

    def _swap(self, name: Path, target: str) -> None:
        staged = self._path / _STAGED
        staged.unlink(missing_ok=True)
        staged.symlink_to(target)
        staged.replace(self._path / name)

    def _sweep(self, contents: Mapping[str, bytes]) -> None:
        """Removes what was ours and is no longer: links of removed keys, folders of earlier sets and of torn writes."""
        current = str((self._path / DATA).readlink())
        for entry in self._path.iterdir():
            if entry.is_symlink():
                if entry.name not in (*contents, DATA) and str(entry.readlink()).startswith(".."):
                    entry.unlink(missing_ok=True)
            elif entry.is_dir() and entry.name.startswith("..") and entry.name != current:
                shutil.rmtree(entry, ignore_errors=True)


def _check(contents: Mapping[str, bytes]) -> None:
    for key in contents:
        if not _KEY.fullmatch(key) or key == "." or key.startswith("..") or len(key) > _LONGEST_KEY:
            raise InvalidError(f'"{key[:80]}" cannot be a file of a credential directory')


def _write(path: Path, content: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(descriptor)
