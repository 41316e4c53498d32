"""Cache of logins between runs: short-lived certificates, and tokens from a browser or standard input.

Files in the user's cache folder, mode 0600 in folders of 0700, written atomically. A file that others could read or write is
ignored.
"""

import json
import os
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from hubctl.errors import CommandError
from machinery.product import NAME
from machinery.runtime.directory import PRIVATE_DIRECTORY

CERTIFICATE, TOKENS = "certificate", "tokens"
_OTHERS = 0o077


def wallet_folder() -> Path:
    """`$XDG_CACHE_HOME/muster/logins`."""
    home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(home).expanduser() / NAME / "logins"


@dataclass(frozen=True, slots=True)
class Wallet:
    """The cached files of one login, identified by everything that it depends on."""

    folder: Path
    key: str

    @classmethod
    def of(cls, *parts: str) -> "Wallet":
        return cls(wallet_folder(), sha256(json.dumps(parts).encode()).hexdigest()[:32])

    def path(self, what: str) -> Path:
        return self.folder / f"{self.key}.{what}.json"

    def read(self, what: str) -> Mapping[str, Any]:
        """The document; empty when there is none or it cannot be trusted."""
        path = self.path(what)
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            return {}
        with os.fdopen(descriptor, "rb") as file:
            known = os.fstat(descriptor)
            if known.st_mode & _OTHERS or known.st_uid != os.geteuid():
                return {}
            try:
                document = json.load(file)
            except (OSError, ValueError):
                return {}
        return document if isinstance(document, dict) else {}

    def write(self, what: str, document: Mapping[str, Any]) -> Path:
        """Store a document; return its path. Raises CommandError."""
        path = self.path(what)
        try:
            self.folder.mkdir(mode=PRIVATE_DIRECTORY, parents=True, exist_ok=True)
            descriptor, name = tempfile.mkstemp(dir=self.folder, prefix=f".{path.name}.")  # 0600 from the first byte on
            try:
                with os.fdopen(descriptor, "w") as file:
                    json.dump(document, file)
                Path(name).replace(path)
            except BaseException:
                Path(name).unlink(missing_ok=True)
                raise
        except OSError as error:
            raise CommandError(f"{path} cannot be written: {error.strerror or error}") from None
        return path

    def forget(self) -> bool:
        """Delete the files; return whether there were any."""
        found = [path for path in (self.path(CERTIFICATE), self.path(TOKENS)) if path.exists()]
        for path in found:
            with suppress(FileNotFoundError):
                path.unlink()
        return bool(found)


def forget_all() -> int:
    """Delete the files of all logins; return their number."""
    found = list(wallet_folder().glob("*.json"))
    for path in found:
        path.unlink(missing_ok=True)
    return len(found)
