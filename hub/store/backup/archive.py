"""Backup files: a zip with the rows of each table as JSON lines, and a manifest with a digest of each table.

The format does not depend on the database, so a backup can be restored into SQLite or PostgreSQL. The manifest is written last.
The sealed keys are bound to the manifest's digest. So a reader that can unseal the keys knows that nothing was changed.
Bytes are base64; `unzip -p FILE tables/objects.jsonl` shows a table.
"""

import errno
import os
import zipfile
from base64 import b64decode
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from secrets import token_hex
from types import TracebackType
from typing import Any, Self

import msgspec

from machinery.errors import AlreadyExistsError, InvalidError, UnavailableError
from machinery.runtime.directory import sync

FORMAT = 1
MANIFEST, SEALED, PROOF = "manifest.json", "keys.sealed", "manifest.proof"
PRIVATE = 0o600
COMPRESSION = 6
CHUNK = 1 << 20
UNLINKABLE = frozenset((errno.EPERM, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK, errno.EINVAL))
"""Errors of `link` on file systems without hard links."""
DAMAGED = "the backup is damaged"


class TableEntry(msgspec.Struct, frozen=True):
    name: str
    columns: tuple[str, ...]
    binary: tuple[str, ...]
    """Columns that contain bytes."""
    rows: int
    sha256: str
    """SHA-256 of the table's lines, in hexadecimal."""


class Manifest(msgspec.Struct, frozen=True):
    format: int
    program: str
    """Version of the program that made the backup."""
    made: str
    """Time by the database's clock. The backup includes all earlier commits."""
    schema: str
    revision: int
    hub_id: str
    group_suffix: str
    tables: tuple[TableEntry, ...]
    key_place: str = "file"
    """Where the hub keeps the keys of its CAs."""


class ArchiveWriter:
    """Context manager that writes a backup. The file appears, complete and with mode 0600, only when `finish` returns."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._staged = file.with_name(f".{file.name}.{token_hex(4)}.new")
        self._entries: list[TableEntry] = []

    def __enter__(self) -> Self:
        """Begin the file. Raises AlreadyExistsError (a backup is never overwritten), UnavailableError."""
        if self._file.exists():
            raise AlreadyExistsError(f"{self._file} exists already, and backups are never overwritten: choose another file")
        with _accessing(f"{self._file} cannot be written"):
            descriptor = os.open(self._staged, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, PRIVATE)
            self._stream = os.fdopen(descriptor, "w+b")
            self._zip = zipfile.ZipFile(self._stream, "w", zipfile.ZIP_DEFLATED, compresslevel=COMPRESSION)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        with suppress(OSError, ValueError):
            self._zip.close()
        self._stream.close()
        self._staged.unlink(missing_ok=True)

    def table(self, name: str, columns: Sequence[str], binary: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
        """Write the rows of a table. Raises UnavailableError."""
        digest, count, encode = sha256(), 0, msgspec.json.Encoder().encode
        with _accessing(f"{self._file} cannot be written"), self._zip.open(_place(name), "w", force_zip64=True) as entry:
            for row in rows:
                line = encode(tuple(row)) + b"\n"
                digest.update(line)
                entry.write(line)
                count += 1
        self._entries.append(TableEntry(str(name), tuple(columns), tuple(binary), count, digest.hexdigest()))

    def finish(self, manifest: Manifest, seal: Callable[[bytes], bytes] | None = None, *, place: str = SEALED) -> Manifest:
        """Write the manifest and return it. Raises UnavailableError.

        `seal` gets the manifest's SHA-256 digest. It returns the sealed keys, or a proof: the file `place` in the archive.
        """
        whole = msgspec.structs.replace(manifest, tables=tuple(self._entries))
        encoded = msgspec.json.format(msgspec.json.encode(whole))
        with _accessing(f"{self._file} cannot be written"):
            self._zip.writestr(MANIFEST, encoded)
            if seal is not None:
                self._zip.writestr(place, seal(sha256(encoded).digest()), zipfile.ZIP_STORED)
            self._zip.close()
            self._stream.flush()
            os.fsync(self._stream.fileno())
            self._put()
            sync(self._file.parent)
        return whole

    def _put(self) -> None:
        """Move the file into place without overwriting.

        This also works on file systems without hard links (some NFS and SMB servers, FAT).
        """
        try:
            try:
                os.link(self._staged, self._file)
            except OSError as error:
                if error.errno not in UNLINKABLE:
                    raise
                os.close(os.open(self._file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, PRIVATE))
                self._staged.replace(self._file)
        except FileExistsError as error:
            raise AlreadyExistsError(
                f"{self._file} exists by now, and backups are never overwritten: choose another file"
            ) from error


class Archive:
    """Context manager that opens a backup. Each table can be read any number of times."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def __enter__(self) -> Self:
        """Open the file. Raises UnavailableError, or InvalidError if it is not a backup that this release can read."""
        with _accessing(f"the backup {self._file} cannot be read"):
            try:
                self._zip = zipfile.ZipFile(self._file)
                encoded = self._zip.read(MANIFEST)
                self.manifest = msgspec.json.decode(encoded, type=Manifest)
            except (zipfile.BadZipFile, KeyError, msgspec.DecodeError, EOFError):
                raise InvalidError(f"{self._file} is not a backup of a hub, or is incomplete: it has no manifest") from None
        if self.manifest.format > FORMAT:
            raise InvalidError(
                f"{self._file} was created by a newer release ({self.manifest.program}): restore it with that release"
            )
        self.digest = sha256(encoded).digest()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._zip.close()

    @property
    def sealed(self) -> bytes | None:
        """The sealed keys; None if the backup has none."""
        return self._read(SEALED)

    @property
    def proof(self) -> bytes | None:
        """Proof that a holder of the hub's secrets.key made the manifest; None if the backup has none."""
        return self._read(PROOF)

    def _read(self, name: str) -> bytes | None:
        return self._zip.read(name) if name in self._zip.namelist() else None

    def verify(self) -> None:
        """Check each table against its digest. Raises InvalidError."""
        for entry in self.manifest.tables:
            digest = sha256()
            try:
                with self._zip.open(_place(entry.name)) as lines:
                    while chunk := lines.read(CHUNK):
                        digest.update(chunk)
            except (KeyError, zipfile.BadZipFile, EOFError, OSError):
                raise InvalidError(f"{DAMAGED}: its table {entry.name} cannot be read; use another backup") from None
            if digest.hexdigest() != entry.sha256:
                raise InvalidError(f"{DAMAGED}: its table {entry.name} differs from its digest; use another backup")

    def rows(self, entry: TableEntry) -> Iterator[dict[str, Any]]:
        """Yield the rows of a table, each as a mapping from column name to value."""
        decode = msgspec.json.Decoder(list[Any]).decode
        with self._zip.open(_place(entry.name)) as lines:
            for line in lines:
                stored = line.replace(rb"\u0000", rb"\ufffd")  # SQLite stores NUL, PostgreSQL does not
                row = dict(zip(entry.columns, decode(stored), strict=True))
                yield row | {name: b64decode(row[name]) for name in entry.binary if row[name] is not None}


@contextmanager
def _accessing(what: str) -> Iterator[None]:
    """Convert an OSError of the block to an UnavailableError whose message begins with `what`."""
    try:
        yield
    except OSError as error:
        raise UnavailableError(f"{what}: {error.strerror or error}") from error


def _place(table: str) -> str:
    return f"tables/{table}.jsonl"
