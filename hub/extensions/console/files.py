"""The console's files, read once at the start. A request selects a file by name and never reaches the file system.

All of them are sent with `HEADERS`.
"""

import gzip
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from importlib.resources.abc import Traversable
from pathlib import PurePosixPath
from typing import Self

ROOT = "/console"
POLICY = (
    "default-src 'none'; script-src 'self'; worker-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types muster-console"
)
"""The only Trusted Types policy, `muster-console`, makes the URL of the SharedWorker."""
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",
}
MEDIA = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".json": "application/json",
}
"""Media types by suffix. Files with another suffix, such as licences, are not served."""


@dataclass(frozen=True, slots=True)
class ConsoleFile:
    """A file in memory. `compressed`: by gzip. `etag`: of the content, quoted."""

    content: bytes
    compressed: bytes
    media: str
    etag: str

    @classmethod
    def of(cls, content: bytes, media: str) -> Self:
        return cls(content, gzip.compress(content, mtime=0), media, f'"{sha256(content).hexdigest()[:32]}"')


def read_files(folder: Traversable) -> dict[str, ConsoleFile]:
    """Return the files below a folder of a package, by their path in this folder, such as `vendor/preact.js`."""
    return {
        name: ConsoleFile.of(file.read_bytes(), media)
        for name, file in _files_in(folder, "")
        if (media := MEDIA.get(PurePosixPath(name).suffix)) is not None
    }


def _files_in(folder: Traversable, prefix: str) -> Iterator[tuple[str, Traversable]]:
    for entry in folder.iterdir():
        if entry.is_dir():
            yield from _files_in(entry, f"{prefix}{entry.name}/")
        else:
            yield f"{prefix}{entry.name}", entry
