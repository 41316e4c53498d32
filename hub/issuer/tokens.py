"""The signing keys of ServiceAccount tokens: files `token-<creation time>.key`, of which the newest signs.

The older ones verify. A hub that replaces its keys by itself removes one when its longest token has expired.
"""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import structlog

from machinery import pki
from machinery.runtime.directory import DataDirectory

PREFIX, SUFFIX, FORM = "token-", ".key", "%Y%m%dT%H%M%SZ"
SIGNS_FOR = timedelta(days=90)
LONGEST_TOKEN = timedelta(days=366)

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class TokenKey:
    """A private key (PEM) and its creation time."""

    made: datetime
    key: bytes

    def __repr__(self) -> str:
        return f"TokenKey({self.name})"

    @property
    def name(self) -> str:
        """The name of its file."""
        return _name(self.made)

    @property
    def mark(self) -> str:
        """The form stored in the database: creation time and fingerprint of the public key."""
        return f"{self.made.strftime(FORM)} {pki.key_hash(pki.public_key_of(self.key))}"


def read_token_keys(directory: DataDirectory) -> list[TokenKey]:
    """The keys, newest first. Raises InvalidError for a file without a key, UnavailableError."""
    found = [TokenKey(made, directory.read(_name(made)) or b"") for made in sorted(_made(directory), reverse=True)]
    pki.TokenKeys([each.key for each in found] or [pki.generate_key()])
    return found


def make_token_key(directory: DataDirectory, now: datetime) -> str:
    """Make a key. Returns its file name. Raises UnavailableError."""
    directory.write(_name(now), pki.generate_key())
    log.info("key for ServiceAccounts' tokens made", key=_name(now))
    return _name(now)


def exchange_token_keys(directory: DataDirectory, now: datetime) -> str | None:
    """Make a key if none is young enough to sign, and remove expired ones. Returns the new file's name, if any."""
    made, new = _made(directory), None
    if not made or now - max(made) > SIGNS_FOR:
        new = make_token_key(directory, now)
    for each in sorted(made):
        if now - each > SIGNS_FOR + LONGEST_TOKEN:
            directory.remove(_name(each))
    return new


def _made(directory: DataDirectory) -> list[datetime]:
    found = []
    for path in directory.path.glob(f"{PREFIX}*{SUFFIX}"):
        try:
            moment = datetime.strptime(path.name, PREFIX + FORM + SUFFIX).replace(tzinfo=UTC)
        except ValueError:
            continue  # another file
        found.append(moment)
    return found


def _name(made: datetime) -> str:
    return f"{PREFIX}{made.strftime(FORM)}{SUFFIX}"
