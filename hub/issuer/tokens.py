"""The keys that ServiceAccounts' tokens are signed with: files of the data directory, exchanged at a start when they are old.

`token-<when it was made>.key`: the newest signs. The others verify what they have signed, until the longest token of theirs has
ended; then they go.
"""

from datetime import UTC, datetime, timedelta

import structlog

from machinery import pki
from machinery.directory import DataDirectory
from machinery.pki import TokenKeys

PREFIX, SUFFIX, FORM = "token-", ".key", "%Y%m%dT%H%M%SZ"
SIGNS_FOR = timedelta(days=90)
LONGEST_TOKEN = timedelta(days=366)

log = structlog.get_logger(__name__)


def open_token_keys(directory: DataDirectory, now: datetime) -> TokenKeys:
    """The keys that are good now; the newest is made when there is none young enough. Raises InvalidError, UnavailableError."""
    made = _made(directory)
    if not made or now - max(made) > SIGNS_FOR:
        directory.write(_name(now), pki.generate_key())
        log.info("key for ServiceAccounts' tokens made", key=_name(now))
        made = [*made, now]
    for each in sorted(made)[:-1]:
        if now - each > SIGNS_FOR + LONGEST_TOKEN:
            directory.remove(_name(each))
            made.remove(each)
    return TokenKeys([directory.read(_name(each)) or b"" for each in sorted(made, reverse=True)])


def _made(directory: DataDirectory) -> list[datetime]:
    found = []
    for path in directory.path.glob(f"{PREFIX}*{SUFFIX}"):
        try:
            moment = datetime.strptime(path.name, PREFIX + FORM + SUFFIX).replace(tzinfo=UTC)
        except ValueError:
            continue  # not one of ours
        found.append(moment)
    return found


def _name(made: datetime) -> str:
    return f"{PREFIX}{made.strftime(FORM)}{SUFFIX}"
