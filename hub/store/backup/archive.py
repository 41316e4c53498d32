"""A backup as a file: a zip with the rows of each table as JSON lines, and a manifest that has a digest of each.

The form is the same whichever database the rows come from, so that one may be restored into the other. The manifest is written
when everything else is, and what is sealed beside it is bound to it: who can open that knows that nothing was changed.
Bytes are base64; whoever wants to look takes `unzip -p FILE tables/objects.jsonl`.
"""

import errno
import os
import zipfile
from base64 import b64decode
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
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
"""What file systems say that know no hard links."""
DAMAGED = "the backup is damaged"


class TableEntry(msgspec.Struct, frozen=True):
    """One table as it was."""

    name: str
    columns: tuple[str, ...]
    binary: tuple[str, ...]
    """The columns that hold bytes."""
    rows: int
    sha256: str
    """Of its lines."""


class Manifest(msgspec.Struct, frozen=True):
    """What a backup is of."""

    format: int
    program: str
    """The version that made it."""
    made: str
    """By the database's clock: everything that was committed before is in it."""
    schema: str
    revision: int
    hub_id: str
    group_suffix: str
    tables: tuple[TableEntry, ...]
    key_place: str = "file"
    """Where the hub kept the keys of its CAs."""

    def rows_of(self, table: str) -> int:
        return sum(entry.rows for entry in self.tables if entry.name == table)


class ArchiveWriter:
    """A `with` block: the file is there, whole and its owner's alone, once `finish` has returned, and else never."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._staged = file.with_name(f".{file.name}.{token_hex(4)}.new")
        self._entries: list[TableEntry] = []

    def __enter__(self) -> Self:
        """Raises AlreadyExistsError: no backup is overwritten; UnavailableError."""
        if self._file.exists():
            raise AlreadyExistsError(f"{self._file} is there already, and no backup is overwritten: name another file")
        with _told(f"{self._file} cannot be written"):
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
        """Takes the rows in. Raises UnavailableError."""
        digest, count, encode = sha256(), 0, msgspec.json.Encoder().encode
        with _told(f"{self._file} cannot be written"), self._zip.open(_place(name), "w", force_zip64=True) as entry:
            for row in rows:
                line = encode(tuple(row)) + b"\n"
                digest.update(line)
                entry.write(line)
                count += 1
        self._entries.append(TableEntry(str(name), tuple(columns), tuple(binary), count, digest.hexdigest()))

    def finish(self, manifest: Manifest, seal: Callable[[bytes], bytes] | None = None, *, place: str = SEALED) -> Manifest:
        """The manifest with its tables. `seal` makes the entry `place` for the manifest's digest. Raises UnavailableError."""
        whole = msgspec.structs.replace(manifest, tables=tuple(self._entries))
        encoded = msgspec.json.format(msgspec.json.encode(whole))
        with _told(f"{self._file} cannot be written"):
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
        """In its place, never over another file, also on file systems that know no links (NFS and SMB of some servers, FAT)."""
        try:
            try:
                os.link(self._staged, self._file)
            except OSError as error:
                if error.errno not in UNLINKABLE:
                    raise
                os.close(os.open(self._file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, PRIVATE))
                self._staged.replace(self._file)
        except FileExistsError as error:
            raise AlreadyExistsError(f"{self._file} is there by now, and no backup is overwritten: name another") from error


class Archive:
    """A backup that was opened: a `with` block, in which every table can be read any number of times."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def __enter__(self) -> Self:
        """Raises UnavailableError; InvalidError: it is no backup, or one that this release cannot read."""
        with _told(f"the backup {self._file} cannot be read"):
            try:
                self._zip = zipfile.ZipFile(self._file)
                encoded = self._zip.read(MANIFEST)
                self.manifest = msgspec.json.decode(encoded, type=Manifest)
            except (zipfile.BadZipFile, KeyError, msgspec.DecodeError, EOFError):
                raise InvalidError(f"{self._file} is no backup of a hub, or is cut off: it has no manifest") from None
        if self.manifest.format > FORMAT:
            raise InvalidError(f"{self._file} was made by a newer release ({self.manifest.program}): restore it with that one")
        self.digest = sha256(encoded).digest()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._zip.close()

    @property
    def sealed(self) -> bytes | None:
        """The sealed keys; None: it was made without."""
        return self._read(SEALED)

    @property
    def proof(self) -> bytes | None:
        """That a holder of the hub's secrets.key made the manifest; None: it was made without."""
        return self._read(PROOF)

    def _read(self, name: str) -> bytes | None:
        return self._zip.read(name) if name in self._zip.namelist() else None

    def verify(self) -> None:
        """Reads everything once. Raises InvalidError for what is not as the manifest says."""
        for entry in self.manifest.tables:
            digest = sha256()
            try:
                with self._zip.open(_place(entry.name)) as lines:
                    while chunk := lines.read(CHUNK):
                        digest.update(chunk)
            except (KeyError, zipfile.BadZipFile, EOFError, OSError):
                raise InvalidError(f"{DAMAGED}: its table {entry.name} cannot be read; take another one") from None
            if digest.hexdigest() != entry.sha256:
                raise InvalidError(f"{DAMAGED}: its table {entry.name} is not what was written; take another one")

    def rows(self, entry: TableEntry) -> Iterator[dict[str, Any]]:
        """Each row by its columns."""
        decode = msgspec.json.Decoder(list[Any]).decode
        with self._zip.open(_place(entry.name)) as lines:
            for line in lines:
                row = dict(zip(entry.columns, decode(line), strict=True))
                yield row | {name: b64decode(row[name]) for name in entry.binary if row[name] is not None}


class _told:  # noqa: N801 - reads as a word in a `with`
    """A block whose failures of the operating system are told as `what`, with the reason."""

    def __init__(self, what: str) -> None:
        self._what = what

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if isinstance(error, OSError):
            raise UnavailableError(f"{self._what}: {error.strerror or error}") from error


def _place(table: str) -> str:
    return f"tables/{table}.jsonl"
