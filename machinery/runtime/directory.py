"""A program's data directory: private, locked by one process at a time, with atomic writes."""

import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from machinery.errors import UnavailableError
from machinery.product import NAME

PRIVATE_DIRECTORY = 0o700
PRIVATE_FILE = 0o600


def default_data_dir() -> Path:
    """Return the default data directory of the hub. hubctl also looks there for the admin kubeconfig."""
    home = os.environ.get("XDG_DATA_HOME") or "~/.local/share"
    return Path(home).expanduser() / NAME


@contextmanager
def _refused(what: str) -> Iterator[None]:
    """A block that raises UnavailableError instead of OSError. The message begins with `what`."""
    try:
        yield
    except OSError as error:
        raise UnavailableError(f"{what}: {error.strerror}") from error


def read_file(path: Path) -> bytes | None:
    """Return the content; None if there is no such file. Raises UnavailableError if the file exists but cannot be read."""
    with _refused(f"{path} cannot be read"), suppress(FileNotFoundError):
        return path.read_bytes()
    return None


def write_private(path: Path, content: bytes) -> None:
    """Replace `path` with a new file with mode 0600, and sync it to disk. Raises OSError."""
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, PRIVATE_FILE)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def sync(path: Path) -> None:
    """Sync a file's content, or the entries of a directory, to disk. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def lock_file(descriptor: int) -> str | None:
    """Lock an open file until it is closed, and write the pid of this process into it. Raises OSError.

    Return the pid of another process that holds the lock; None if this process has locked it.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return os.pread(descriptor, 32, 0).decode("ascii", "replace").strip() or "unknown"
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    return None


class DataDirectory:
    """Context manager that creates and locks the directory at `path`. `owner`: the program, for messages and lock file."""

    def __init__(self, path: Path, owner: str) -> None:
        self.path = path
        self._owner = owner
        self._lock: int | None = None

    def __enter__(self) -> Self:
        """Raises UnavailableError if the directory cannot be created or written, or if another process has locked it."""
        try:
            self.path.mkdir(mode=PRIVATE_DIRECTORY, parents=True, exist_ok=True)
        except FileExistsError:
            raise UnavailableError(f"the data directory {self.path} is a file: name another, or move the file away") from None
        except OSError as error:
            raise UnavailableError(f"the data directory {self.path} cannot be made: {error.strerror}") from error
        try:
            descriptor = os.open(self.path / f"{self._owner}.lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, PRIVATE_FILE)
        except OSError as error:
            raise UnavailableError(
                f"the data directory {self.path} cannot be written ({error.strerror}): "
                f"the {self._owner} keeps all its data there, so make it writable or name another"
            ) from error
        try:
            self._lock_by(descriptor)
        except BaseException:
            os.close(descriptor)
            raise
        self._lock = descriptor
        mode = stat.S_IMODE(self.path.stat().st_mode)
        if mode & stat.S_IRWXO:
            import structlog  # noqa: PLC0415 - hubctl uses this module and starts without it

            advice = f"chmod o-rwx {self.path}"
            structlog.get_logger(__name__).warning(
                "other users can enter the data directory", path=str(self.path), mode=f"{mode:04o}", advice=advice
            )
        return self

    def _lock_by(self, descriptor: int) -> None:
        with _refused(f"the data directory {self.path} cannot be written"):
            holder = lock_file(descriptor)
        if holder is not None:
            raise UnavailableError(
                f"the data directory {self.path} is in use by another {self._owner} (process {holder}): "
                "stop that one, or give this one a data directory of its own"
            )

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._lock is not None:
            os.close(self._lock)  # releases the lock; the file stays, so that no process locks a deleted file
            self._lock = None

    def read(self, name: str) -> bytes | None:
        """Return the content; None if there is no such file. Raises UnavailableError."""
        return read_file(self.path / name)

    def write(self, name: str, content: bytes) -> Path:
        """Atomically and durably write a file that only the user of this process can read. Raises UnavailableError."""
        path = self.path / name
        staged = path.with_name(f".{name}.new")
        with _refused(f"{path} cannot be written"):
            write_private(staged, content)
            staged.replace(path)
            sync(self.path)
        return path

    def rename(self, name: str, new: str) -> None:
        """Rename a file. Replace an existing file with the new name. Raises UnavailableError."""
        with _refused(f"{self.path / name} cannot be renamed"):
            (self.path / name).replace(self.path / new)

    def remove(self, name: str) -> None:
        """Remove a file, if it exists. Raises UnavailableError."""
        with _refused(f"{self.path / name} cannot be removed"):
            (self.path / name).unlink(missing_ok=True)
