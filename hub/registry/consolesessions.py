"""ConsoleSession, a kind of this project: a user's sign-in at the console's own listener. Its deletion signs the user out."""

from hub.api.consolesessions import GROUP, MAX_PER_USER, VERSION, ConsoleSession
from hub.api.logins import JWT, Reference
from hub.api.managed_fields import HUB_WRITER
from hub.api.meta.change import CONSOLE_SESSIONS
from hub.ports import Transaction
from hub.registry import authenticators
from hub.registry.generic import declared, objects
from hub.registry.generic.definition import ResourceDefinition
from machinery.errors import UnauthorizedError
from machinery.meta.objects import Key, Query, StoredObject
from machinery.product import GROUP_SUFFIX


def begin(tx: Transaction, session: ConsoleSession) -> None:
    """Store a new session, and end the user's oldest sessions above MAX_PER_USER.

    Raises UnauthorizedError if the authenticator has changed since it verified the token.
    """
    if not _is_open(tx, session):
        raise UnauthorizedError("the authenticator has changed during the sign-in")
    held = sorted((each for each in _all(tx) if ConsoleSession.of(each.document).user == session.user), key=_revision)
    for oldest in held[: max(len(held) + 1 - MAX_PER_USER, 0)]:
        objects.remove(tx, CONSOLE_SESSIONS, oldest, session.user)
    group = objects.group_of(GROUP, tx.facts.get("group-suffix") or GROUP_SUFFIX)
    objects.write(tx, CONSOLE_SESSIONS, session.document(f"{group}/{VERSION}"), None, session.user, writer=HUB_WRITER)


def find_open(tx: Transaction, name: str) -> ConsoleSession | None:
    """Return the session with this name; None: there is no such session, or it has ended."""
    stored = tx.objects.get(CONSOLE_SESSIONS, Key("", name))
    session = None if stored is None else ConsoleSession.of(stored.document)
    return session if session is not None and _is_open(tx, session) else None


def end(tx: Transaction, name: str, actor: str) -> None:
    """Delete the session, if it exists."""
    if (stored := tx.objects.get(CONSOLE_SESSIONS, Key("", name))) is not None:
        objects.remove(tx, CONSOLE_SESSIONS, stored, actor)


def ended(tx: Transaction) -> tuple[str, ...]:
    """Return the names of stored sessions that have ended."""
    return tuple(each.key.name for each in _all(tx) if not _is_open(tx, ConsoleSession.of(each.document)))


def _all(tx: Transaction) -> tuple[StoredObject, ...]:
    return tuple(tx.objects.find(CONSOLE_SESSIONS, Query()).items)


def _revision(stored: StoredObject) -> int:
    return stored.revision


def _is_open(tx: Transaction, session: ConsoleSession) -> bool:
    return session.is_open(authenticators.authenticator(tx, Reference(JWT, session.authenticator)), tx.now)


CONSOLE_SESSION = ResourceDefinition(declared(CONSOLE_SESSIONS))
